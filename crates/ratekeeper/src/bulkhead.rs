//! A bulkhead: permits, a bounded queue and a deadline.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_control::Overload;
#[cfg(feature = "tokio")]
use ratekeeper_control::QueueOrder;

use crate::clock::Clock;
use crate::concurrency::{ConcurrencyLimit, Permit, ZeroPermits};
#[cfg(feature = "tokio")]
use crate::concurrency::{NoPermit, QueueSettings};
use crate::histogram::{DurationCounts, Histogram};
use crate::shedder::Shedder;

/// All permits of a bulkhead have one key.
const KEY: &[u8] = b"";

/// Limits how many requests to one dependency are in flight, so that a slow dependency cannot take all tasks or
/// connections of the program.
///
/// Without a queue, a request that finds no permit is rejected at once. With one (`Bulkhead::with_queue`, feature
/// `tokio`), up to a number of requests wait, for up to a time: first come, first served. Dropping the future of
/// `acquire` leaves the queue. Clones share the permits.
///
/// ```
/// use ratekeeper::Bulkhead;
///
/// let database = Bulkhead::new(2)?;
/// let (first, second) = (database.try_acquire()?, database.try_acquire()?);
/// assert!(database.try_acquire().is_err());
/// drop(first);
/// assert!(database.try_acquire().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// For limits per key, see [`ConcurrencyLimit`].
#[derive(Clone)]
pub struct Bulkhead {
    limit: ConcurrencyLimit,
    #[cfg(feature = "tokio")]
    queue: QueueSettings,
    /// How long a request waits in the queue.
    #[cfg(feature = "tokio")]
    wait_max: Duration,
    report: Option<Arc<Report>>,
    counters: Arc<Counters>,
}

type Report = dyn Fn(Overload) + Send + Sync;

#[derive(Debug, Default)]
struct Counters {
    admitted: AtomicU64,
    full: AtomicU64,
    timed_out: AtomicU64,
    evicted: AtomicU64,
    cancelled: AtomicU64,
    waits: Histogram,
}

impl Bulkhead {
    /// Returns a bulkhead with this many permits and no queue.
    ///
    /// # Errors
    ///
    /// If `permits_max` is 0.
    pub fn new(permits_max: usize) -> Result<Self, ZeroPermits> {
        let limit = ConcurrencyLimit::new(permits_max)?;
        #[cfg(feature = "tokio")]
        let queue = QueueSettings { waiting_max: 0, order: QueueOrder::default() };
        Ok(Self {
            #[cfg(feature = "tokio")]
            limit: limit.with_queue(queue),
            #[cfg(not(feature = "tokio"))]
            limit,
            #[cfg(feature = "tokio")]
            queue,
            #[cfg(feature = "tokio")]
            wait_max: Duration::ZERO,
            report: None,
            counters: Arc::default(),
        })
    }

    /// Returns a bulkhead of its own, with as many permits, in which up to `waiting_max` requests wait for up to
    /// `wait_max`.
    ///
    /// A queue is for bursts. Its length should be about what the dependency completes within the wait; what is
    /// beyond that would only wait in vain.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn with_queue(self, waiting_max: usize, wait_max: Duration) -> Self {
        let queue = QueueSettings { waiting_max, ..self.queue };
        self.rebuilt(queue, wait_max)
    }

    /// Returns a bulkhead of its own, with another order of the queue.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn with_order(self, order: QueueOrder) -> Self {
        let queue = QueueSettings { order, ..self.queue };
        let wait_max = self.wait_max;
        self.rebuilt(queue, wait_max)
    }

    /// Returns a bulkhead that shares nothing with clones of this one.
    #[cfg(feature = "tokio")]
    fn rebuilt(self, queue: QueueSettings, wait_max: Duration) -> Self {
        let limit = self.limit.with_queue(queue);
        Self { limit, queue, wait_max, report: self.report, counters: Arc::default() }
    }

    /// Reports to a shedder how busy the bulkhead is: how long requests wait, or without a queue, the share of
    /// permits that are in use.
    ///
    /// ```
    /// use ratekeeper::{Bulkhead, Shedder, ShedderConfig};
    ///
    /// let shedder = Shedder::new(ShedderConfig::DEFAULT)?;
    /// let bulkhead = Bulkhead::new(40)?.with_shedder(&shedder);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_shedder<C: Clock + 'static>(self, shedder: &Shedder<C>) -> Self {
        let shedder = shedder.clone();
        Self { report: Some(Arc::new(move |signal| shedder.observe(signal))), ..self }
    }

    /// Returns a permit if one is free and no request waits for it.
    ///
    /// # Errors
    ///
    /// If all permits are in use.
    pub fn try_acquire(&self) -> Result<Permit, BulkheadError> {
        let result = self.limit.try_acquire(KEY);
        let result = result.ok_or_else(|| BulkheadError::Full { waiting: self.waiting() });
        self.record(&result, Duration::ZERO);
        result
    }

    /// Waits for a permit, as long as the queue allows.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::Bulkhead;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let database = Bulkhead::new(40)?.with_queue(100, Duration::from_millis(500));
    /// let permit = database.acquire().await?;
    /// // query the database; then:
    /// drop(permit);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the queue is full, the wait is over, or a newer request took the place in the queue.
    #[cfg(feature = "tokio")]
    pub async fn acquire(&self) -> Result<Permit, BulkheadError> {
        self.acquire_within(self.wait_max).await
    }

    /// Waits for a permit as [`Bulkhead::acquire`] does, and no longer than `timeout`: what is left of the deadline
    /// of a request.
    ///
    /// # Errors
    ///
    /// As [`Bulkhead::acquire`].
    #[cfg(feature = "tokio")]
    pub async fn acquire_within(&self, timeout: Duration) -> Result<Permit, BulkheadError> {
        let mut cancelled = CountCancelled { counters: &self.counters, is_cancelled: true };
        let began = tokio::time::Instant::now();
        let result = self.limit.wait(KEY, timeout.min(self.wait_max)).await;
        let waited = began.elapsed();
        cancelled.is_cancelled = false;
        let result = result.map_err(|error| match error {
            NoPermit::Full => BulkheadError::Full { waiting: self.waiting() },
            NoPermit::TimedOut => BulkheadError::TimedOut { waited },
            NoPermit::Evicted => BulkheadError::Evicted { waited },
        });
        self.record(&result, waited);
        result
    }

    /// Returns how many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.limit.in_flight(KEY)
    }

    /// Returns how many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        #[cfg(feature = "tokio")]
        return self.limit.waiting();
        #[cfg(not(feature = "tokio"))]
        0
    }

    /// Returns what happened so far, and what is in flight and waits now.
    #[must_use]
    pub fn stats(&self) -> BulkheadStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &*self.counters;
        BulkheadStats {
            permits_max: self.limit.permits_max(),
            in_flight: self.in_flight(),
            waiting: self.waiting(),
            admitted: read(&counters.admitted),
            full: read(&counters.full),
            timed_out: read(&counters.timed_out),
            evicted: read(&counters.evicted),
            cancelled: read(&counters.cancelled),
            waits: counters.waits.counts(),
        }
    }

    /// Counts how a request ended its wait, and reports it.
    fn record(&self, result: &Result<Permit, BulkheadError>, waited: Duration) {
        let counters = &*self.counters;
        let counter = match result {
            Ok(_) => &counters.admitted,
            Err(BulkheadError::Full { .. }) => &counters.full,
            Err(BulkheadError::TimedOut { .. }) => &counters.timed_out,
            Err(BulkheadError::Evicted { .. }) => &counters.evicted,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if result.is_ok() {
            counters.waits.record(waited, 1);
        }
        if let Some(report) = &self.report
            && let Some(signal) = self.signal(result, waited)
        {
            report(signal);
        }
    }

    /// Returns what the end of a wait says about overload.
    fn signal(&self, result: &Result<Permit, BulkheadError>, waited: Duration) -> Option<Overload> {
        #[cfg(feature = "tokio")]
        if self.queue.waiting_max > 0 {
            // A request that is rejected at once says nothing about those who wait. One that is served before
            // older ones does not either, so the oldest one counts.
            let has_waited = !matches!(result, Err(BulkheadError::Full { .. }));
            let waited = waited.max(self.limit.oldest_wait(KEY));
            return has_waited.then_some(Overload::QueueTime(waited));
        }
        let _ = (result, waited);
        let utilization = self.in_flight() as f64 / self.limit.permits_max() as f64;
        Some(Overload::Utilization(utilization))
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Bulkhead");
        debug.field("permits_max", &self.limit.permits_max());
        #[cfg(feature = "tokio")]
        debug.field("queue", &self.queue).field("wait_max", &self.wait_max);
        debug.finish_non_exhaustive()
    }
}

/// Counts a wait whose future was dropped.
#[cfg(feature = "tokio")]
struct CountCancelled<'a> {
    counters: &'a Counters,
    is_cancelled: bool,
}

#[cfg(feature = "tokio")]
impl Drop for CountCancelled<'_> {
    fn drop(&mut self) {
        let cancelled = u64::from(self.is_cancelled);
        self.counters.cancelled.fetch_add(cancelled, Ordering::Relaxed);
    }
}

/// Why a request has no permit of a [`Bulkhead`].
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Bulkhead, BulkheadError};
///
/// let bulkhead = Bulkhead::new(1)?;
/// let permit = bulkhead.try_acquire();
/// let error = bulkhead.try_acquire().unwrap_err();
/// assert_eq!(error, BulkheadError::Full { waiting: 0 });
/// assert_eq!(error.waited(), Duration::ZERO);
/// # Ok::<(), ratekeeper::ZeroPermits>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BulkheadError {
    /// All permits are in use, and as many requests wait as may. It did not wait.
    #[error("all permits of the bulkhead are in use, and {waiting} requests wait")]
    Full {
        /// The requests that wait.
        waiting: usize,
    },
    /// No permit became free in time.
    #[error("no permit of the bulkhead became free within {waited:?}")]
    TimedOut {
        /// How long it waited.
        waited: Duration,
    },
    /// A newer request took its place in the full queue.
    #[error("a newer request took the place in the queue of the bulkhead after {waited:?}")]
    Evicted {
        /// How long it waited.
        waited: Duration,
    },
}

impl BulkheadError {
    /// Returns how long the request waited.
    #[must_use]
    pub fn waited(&self) -> Duration {
        match self {
            Self::Full { .. } => Duration::ZERO,
            Self::TimedOut { waited } | Self::Evicted { waited } => *waited,
        }
    }
}

/// What happened at a [`Bulkhead`], for metrics.
///
/// ```
/// use ratekeeper::Bulkhead;
///
/// let bulkhead = Bulkhead::new(1)?;
/// let permit = bulkhead.try_acquire();
/// let rejected = bulkhead.try_acquire();
/// let stats = bulkhead.stats();
/// assert_eq!((stats.in_flight, stats.admitted, stats.full), (1, 1, 1));
/// # Ok::<(), ratekeeper::ZeroPermits>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkheadStats {
    /// The number of permits.
    pub permits_max: usize,
    /// The requests that are in flight now.
    pub in_flight: usize,
    /// The requests that wait now.
    pub waiting: usize,
    /// The requests that got a permit.
    pub admitted: u64,
    /// The requests that were rejected because the queue was full.
    pub full: u64,
    /// The requests that waited in vain.
    pub timed_out: u64,
    /// The requests whose place a newer one took.
    pub evicted: u64,
    /// The requests that were dropped while they waited.
    pub cancelled: u64,
    /// How long the requests that got a permit had waited.
    pub waits: DurationCounts,
}
