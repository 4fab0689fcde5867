//! An adaptive concurrency limit that threads share.
//!
//! The rules are those of the controller in `ratekeeper-control`, which learns from windows of samples. Each thread
//! collects the samples of its requests in a shard of its own; now and then one of them merges the shards, and if that
//! closes a window, sets the next limit. So the lock of a shard is hardly ever waited for.
//!
//! With many requests, not all of them are timed: those that are not take and release a permit, and add to a counter.

mod permit;
mod samples;

use std::fmt;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::time::Duration;

#[cfg(feature = "tokio")]
use ratekeeper_control::QueueOrder;
#[cfg(feature = "policy")]
use ratekeeper_control::adaptive::SampleOutcome;
use ratekeeper_control::adaptive::{AdaptiveConfig, AdaptiveError};

pub use self::permit::AdaptivePermit;
use self::samples::{Learner, Shared, shards_max};
use crate::bulkhead::{BulkheadError, BulkheadStats};
use crate::clock::{Clock, SystemClock};
use crate::queued_permits::PermitSettings;
use crate::shedder::Shedder;

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
        let learner = Learner::new(config)?;
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
        self.shared.stats()
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
        self.learner.begin_with(u32::try_from(limit).unwrap_or(u32::MAX));
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
        let shards = self.shards.unwrap_or_else(shards_max);
        let shared = Shared::new(self.learner, self.permits.build(), self.clock, shards);
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
