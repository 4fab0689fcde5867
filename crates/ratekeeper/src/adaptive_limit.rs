//! An adaptive concurrency limit that threads share.
//!
//! The rules are those of the controller in `ratekeeper-control`, which learns from windows of samples. Each thread
//! collects the samples of its requests in a shard of its own; now and then one of them merges the shards, and if that
//! closes a window, sets the next limit. So the lock of a shard is hardly ever waited for.

mod permit;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ratekeeper_control::adaptive::{
    AdaptiveConfig, AdaptiveError, ConcurrencyController, LimitAlgorithm, SampleOutcome, Window,
    WindowAggregator,
};
use ratekeeper_core::Micros;

pub use self::permit::AdaptivePermit;
use crate::bulkhead::{BulkheadError, BulkheadStats};
use crate::clock::{Clock, SystemClock};
use crate::padded::Padded;
use crate::queued_permits::{PermitSettings, QueuedPermits};
use crate::shedder::Shedder;
#[cfg(feature = "tokio")]
use ratekeeper_control::QueueOrder;

/// Limits how many requests to a service are in flight, to a number that it learns from latency and throughput.
///
/// Each request takes a permit, and reports how it ended. [`AdaptiveConfig`] has the algorithm and the bounds of the
/// limit. It needs no runtime and no background task. Share it by reference or by cloning: clones share their state.
///
/// ```
/// use ratekeeper::AdaptiveLimit;
///
/// # fn query() -> Result<&'static str, std::io::Error> { Ok("3 rows") }
/// # fn respond_503() {}
/// let limit = AdaptiveLimit::default();
/// match limit.try_acquire() {
///     Ok(permit) => match query() {
///         Ok(rows) => permit.success(),
///         Err(error) if error.kind() == std::io::ErrorKind::TimedOut => permit.overloaded(),
///         Err(error) => permit.ignore(),
///     },
///     Err(full) => respond_503(),
/// }
/// ```
///
/// Requests can wait for a permit, in a bounded queue: `AdaptiveLimitBuilder::queue` (feature `tokio`). For a limit
/// that is chosen, see [`Bulkhead`](crate::Bulkhead).
pub struct AdaptiveLimit<C = SystemClock> {
    shared: Arc<Shared<C>>,
}

impl AdaptiveLimit {
    /// Returns a limit that begins with the initial one, without a queue.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::{AdaptiveConfig, AdaptiveLimit, Bounds};
    ///
    /// let config = AdaptiveConfig::DEFAULT
    ///     .with_bounds(Bounds::new(5, 50, 500)?)
    ///     .with_target(Duration::from_millis(200));
    /// let limit = AdaptiveLimit::new(config)?;
    /// assert_eq!(limit.limit(), 50);
    /// # Ok::<(), ratekeeper::AdaptiveError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the target is zero, or a window is not possible.
    pub fn new(config: AdaptiveConfig) -> Result<Self, AdaptiveError> {
        Ok(Self::builder(config)?.build())
    }

    /// Returns a builder for a limit with a queue, another clock or a shedder.
    ///
    /// # Errors
    ///
    /// If the target is zero, or a window is not possible.
    pub fn builder(config: AdaptiveConfig) -> Result<AdaptiveLimitBuilder, AdaptiveError> {
        let learner = Learner {
            window: WindowAggregator::new(config.window())?,
            controller: config.controller()?,
            target: config.target(),
        };
        let permits = PermitSettings::new(config.bounds().initial() as usize);
        Ok(AdaptiveLimitBuilder { learner, permits, shards: None, clock: SystemClock })
    }
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        Self::new(AdaptiveConfig::DEFAULT).expect("the default is valid")
    }
}

impl<C: Clock> AdaptiveLimit<C> {
    /// Returns a permit if fewer requests than the limit are in flight, and none waits.
    ///
    /// # Errors
    ///
    /// If all permits are in use.
    #[inline]
    pub fn try_acquire(&self) -> Result<AdaptivePermit<'_, C>, BulkheadError> {
        self.shared.permits.try_take()?;
        Ok(AdaptivePermit::begin(&self.shared))
    }

    /// Waits for a permit, as long as the queue allows.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::{AdaptiveConfig, AdaptiveLimit};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limit = AdaptiveLimit::builder(AdaptiveConfig::DEFAULT)?
    ///     .queue(100, Duration::from_millis(500))
    ///     .build();
    /// let permit = limit.acquire().await?;
    /// // send the request; then:
    /// permit.success();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the queue is full, the wait is over, or a newer request took the place in the queue.
    #[cfg(feature = "tokio")]
    pub async fn acquire(&self) -> Result<AdaptivePermit<'_, C>, BulkheadError> {
        self.shared.permits.take().await?;
        Ok(AdaptivePermit::begin(&self.shared))
    }

    /// Waits for a permit as [`AdaptiveLimit::acquire`] does, and no longer than `timeout`: what is left of the
    /// deadline of a request.
    ///
    /// # Errors
    ///
    /// As [`AdaptiveLimit::acquire`].
    #[cfg(feature = "tokio")]
    pub async fn acquire_within(
        &self,
        timeout: Duration,
    ) -> Result<AdaptivePermit<'_, C>, BulkheadError> {
        self.shared.permits.take_within(timeout).await?;
        Ok(AdaptivePermit::begin(&self.shared))
    }
}

impl<C> AdaptiveLimit<C> {
    /// Returns whether this is the only handle, and no permit is held.
    #[cfg(feature = "policy")]
    pub(crate) fn is_unused(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// Returns how many requests may be in flight now.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.shared.permits.pool().permits_max()
    }

    /// Returns how many requests are in flight. They can be more than the limit just after it was lowered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.permits.pool().in_flight() as usize
    }

    /// Returns how many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.permits.pool().waiting()
    }

    /// Returns what happened so far, and what is in flight and waits now.
    #[must_use]
    pub fn stats(&self) -> AdaptiveStats {
        let mut stats = AdaptiveStats {
            algorithm: self.shared.learner().controller.name(),
            successes: 0,
            overloads: 0,
            ignored: 0,
            permits: self.shared.permits.stats(0),
        };
        let mut released = 0;
        for shard in &self.shared.shards {
            let shard = lock(shard);
            stats.successes += shard.successes;
            stats.overloads += shard.overloads;
            stats.ignored += shard.ignored;
            released += shard.released;
        }
        stats.permits = self.shared.permits.stats(released + self.in_flight() as u64);
        stats
    }
}

impl<C> Clone for AdaptiveLimit<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<C> fmt::Debug for AdaptiveLimit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, in_flight) = (self.limit(), self.in_flight());
        let mut debug = f.debug_struct("AdaptiveLimit");
        debug.field("limit", &limit).field("in_flight", &in_flight).finish_non_exhaustive()
    }
}

/// Builds an [`AdaptiveLimit`], from [`AdaptiveLimit::builder`].
///
/// ```
/// use ratekeeper::{AdaptiveConfig, AdaptiveLimit, ManualClock, Shedder, ShedderConfig};
///
/// let shedder = Shedder::new(ShedderConfig::DEFAULT)?;
/// let limit = AdaptiveLimit::builder(AdaptiveConfig::DEFAULT)?
///     .clock(ManualClock::new())
///     .shedder(&shedder)
///     .build();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "call `build`"]
pub struct AdaptiveLimitBuilder<C = SystemClock> {
    learner: Learner,
    permits: PermitSettings,
    shards: Option<usize>,
    clock: C,
}

impl<C: Clock> AdaptiveLimitBuilder<C> {
    /// Uses this clock.
    pub fn clock<D: Clock>(self, clock: D) -> AdaptiveLimitBuilder<D> {
        let Self { learner, permits, shards, .. } = self;
        AdaptiveLimitBuilder { learner, permits, shards, clock }
    }

    /// Begins with a limit that was learned before, as far as the bounds allow.
    #[cfg(feature = "policy")]
    pub(crate) fn begin_with(mut self, limit: usize) -> Self {
        self.learner.controller.begin_with(u32::try_from(limit).unwrap_or(u32::MAX));
        self
    }

    /// Uses these settings of the permits, but for their number.
    #[cfg(feature = "policy")]
    pub(crate) fn permits(self, permits: PermitSettings) -> Self {
        Self { permits, ..self }
    }

    /// Collects samples in so many shards; as many as threads can run at once if absent.
    #[cfg(feature = "policy")]
    pub(crate) fn shards(self, shards: Option<usize>) -> Self {
        Self { shards, ..self }
    }

    /// Lets up to `waiting_max` requests wait for a permit, for up to `wait_max`.
    #[cfg(feature = "tokio")]
    pub fn queue(self, waiting_max: usize, wait_max: Duration) -> Self {
        Self { permits: self.permits.with_queue(waiting_max, wait_max), ..self }
    }

    /// Sets the order of the queue.
    #[cfg(feature = "tokio")]
    pub fn order(self, order: QueueOrder) -> Self {
        Self { permits: self.permits.with_order(order), ..self }
    }

    /// Reports to a shedder how busy the limit is: how long requests wait, or without a queue, the share of permits
    /// that are in use.
    pub fn shedder<D: Clock + 'static>(self, shedder: &Shedder<D>) -> Self {
        Self { permits: self.permits.with_shedder(shedder), ..self }
    }

    /// Returns the limit.
    pub fn build(self) -> AdaptiveLimit<C> {
        let shard = || Shard::new(self.learner.window.clone());
        let count = self.shards.unwrap_or_else(shards);
        let shards = (0..count).map(|_| Padded(Mutex::new(shard()))).collect();
        let permits = self.permits.build();
        permits.pool().set_permits_max(self.learner.controller.limit() as usize);
        let given_up_us = self.learner.target.map_or(u64::MAX, micros);
        let shared = Shared {
            permits: Padded(permits),
            clock: self.clock,
            given_up_us: AtomicU64::new(given_up_us),
            next_merge_us: AtomicU64::new(0),
            learner: Mutex::new(self.learner),
            shards,
        };
        AdaptiveLimit { shared: Arc::new(shared) }
    }
}

impl<C> fmt::Debug for AdaptiveLimitBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permits = &self.permits;
        f.debug_struct("AdaptiveLimitBuilder").field("permits", permits).finish_non_exhaustive()
    }
}

/// What happened at an [`AdaptiveLimit`], for metrics.
///
/// ```
/// use ratekeeper::AdaptiveLimit;
///
/// let limit = AdaptiveLimit::default();
/// limit.try_acquire()?.success();
/// let in_flight = limit.try_acquire()?;
/// let stats = limit.stats();
/// assert_eq!((stats.permits.permits_max, stats.permits.in_flight), (20, 1));
/// assert_eq!((stats.permits.admitted, stats.successes), (2, 1));
/// # Ok::<(), ratekeeper::BulkheadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdaptiveStats {
    /// The name of the algorithm.
    pub algorithm: &'static str,
    /// The requests whose service did the work.
    pub successes: u64,
    /// The requests that ended because the service is overloaded.
    pub overloads: u64,
    /// The requests that said nothing about load.
    pub ignored: u64,
    /// The permits and the queue. The number of permits is the limit.
    pub permits: BulkheadStats,
}

/// How often the shards are merged, to see whether a window is complete.
const MERGE_EVERY: Duration = Duration::from_millis(10);

/// A request that is dropped is one whose caller gave up if it took so many times longer than 90% of the others.
const GIVEN_UP: u64 = 3;

struct Shared<C> {
    permits: Padded<QueuedPermits>,
    clock: C,
    /// When a request that is dropped counts as overload, in microseconds.
    given_up_us: AtomicU64,
    next_merge_us: AtomicU64,
    learner: Mutex<Learner>,
    shards: Box<[Padded<Mutex<Shard>>]>,
}

struct Learner {
    window: WindowAggregator,
    controller: ConcurrencyController<Box<dyn LimitAlgorithm + Send>>,
    target: Option<Duration>,
}

/// What the requests of some threads showed.
struct Shard {
    window: WindowAggregator,
    successes: u64,
    overloads: u64,
    ignored: u64,
    released: u64,
}

impl Shard {
    fn new(window: WindowAggregator) -> Self {
        Self { window, successes: 0, overloads: 0, ignored: 0, released: 0 }
    }

    #[inline]
    fn count(&mut self, outcome: SampleOutcome) {
        match outcome {
            SampleOutcome::Success => self.successes += 1,
            SampleOutcome::Overload => self.overloads += 1,
            SampleOutcome::Ignored => self.ignored += 1,
        }
    }
}

impl<C> Shared<C> {
    fn learner(&self) -> MutexGuard<'_, Learner> {
        lock(&self.learner)
    }

    #[inline]
    fn shard(&self) -> MutexGuard<'_, Shard> {
        lock(&self.shards[thread_index() % self.shards.len()])
    }
}

impl<C: Clock> Shared<C> {
    /// Records how a request ended, and releases its permit.
    #[inline]
    fn end(&self, began: Micros, outcome: SampleOutcome) {
        let in_flight = self.permits.release();
        let now = self.clock.now();
        let mut shard = self.shard();
        shard.released += 1;
        shard.count(outcome);
        shard.window.record(outcome, now.since(began), in_flight, now);
        drop(shard);
        self.merge_if_due(now);
    }

    /// Records a request that is dropped, and releases its permit.
    fn abandon(&self, began: Micros) {
        let took = micros(self.clock.now().since(began));
        let outcome = match took < self.given_up_us.load(Ordering::Relaxed) {
            true => SampleOutcome::Ignored,
            false => SampleOutcome::Overload,
        };
        self.end(began, outcome);
    }

    /// Records a request that stays in flight.
    fn sample(&self, began: Micros, outcome: SampleOutcome) {
        let (in_flight, now) = (self.permits.pool().in_flight(), self.clock.now());
        let mut shard = self.shard();
        shard.count(outcome);
        shard.window.record(outcome, now.since(began), in_flight, now);
        drop(shard);
        self.merge_if_due(now);
    }

    /// Releases the permit of a request that was recorded before.
    fn release(&self) {
        self.permits.release();
        self.shard().released += 1;
    }

    #[inline]
    fn merge_if_due(&self, now: Micros) {
        if now.get() >= self.next_merge_us.load(Ordering::Relaxed) {
            self.merge(now);
        }
    }

    /// Merges the shards. If that closes a window, sets the next limit.
    #[cold]
    fn merge(&self, now: Micros) {
        // Another thread that does it does it for all.
        let Ok(mut learner) = self.learner.try_lock() else { return };
        self.next_merge_us.store(now.after(MERGE_EVERY).get(), Ordering::Relaxed);
        for shard in &self.shards {
            learner.window.merge(&mut lock(shard).window);
        }
        let Some(window) = learner.window.try_close(now) else { return };
        for shard in &self.shards {
            // They begin where it does.
            lock(shard).window = learner.window.clone();
        }
        self.given_up_us.store(learner.given_up_us(&window), Ordering::Relaxed);
        let limit = learner.controller.update(&window);
        self.permits.pool().set_permits_max(limit as usize);
    }
}

impl Learner {
    /// Returns how long a request takes whose caller has given up.
    fn given_up_us(&self, window: &Window) -> u64 {
        let usual = match window.samples {
            0 => u64::MAX,
            _ => micros(window.latency_p90).saturating_mul(GIVEN_UP),
        };
        usual.min(self.target.map_or(u64::MAX, micros))
    }
}

/// Returns what a response shows about the load of a service.
#[cfg(feature = "policy")]
pub(crate) fn load_of(status: u16, grpc_status: Option<&[u8]>) -> SampleOutcome {
    match (grpc_status, status) {
        (Some(b"4" | b"14"), _) => SampleOutcome::Overload,
        (Some(b"2" | b"8" | b"13" | b"15"), _) => SampleOutcome::Ignored,
        (_, 503 | 504) => SampleOutcome::Overload,
        (_, 429 | 500..) => SampleOutcome::Ignored,
        _ => SampleOutcome::Success,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of shards: as many as threads can run at once.
fn shards() -> usize {
    const SHARDS_MAX: usize = 32;
    static SHARDS: OnceLock<usize> = OnceLock::new();
    *SHARDS.get_or_init(|| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        threads.clamp(1, SHARDS_MAX)
    })
}

/// Returns a number of this thread.
#[inline]
fn thread_index() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static INDEX: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    INDEX.with(|index| *index)
}
