//! A bulkhead: permits, a bounded queue and a deadline.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::concurrency::{Permit, ZeroPermits};
use crate::histogram::DurationCounts;
use crate::queued_permits::{PermitSettings, QueuedPermits};
use crate::shedder::Shedder;
#[cfg(feature = "tokio")]
use ratekeeper_control::QueueOrder;

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
/// For limits per key, see [`ConcurrencyLimit`](crate::ConcurrencyLimit).
#[derive(Clone)]
pub struct Bulkhead {
    permits: Arc<QueuedPermits>,
    admitted: Arc<AtomicU64>,
}

impl Bulkhead {
    /// Returns a bulkhead with this many permits and no queue.
    ///
    /// # Errors
    ///
    /// If `permits_max` is 0.
    pub fn new(permits_max: usize) -> Result<Self, ZeroPermits> {
        match permits_max {
            0 => Err(ZeroPermits),
            _ => Ok(Self::with_settings(PermitSettings::new(permits_max))),
        }
    }

    pub(crate) fn with_settings(settings: PermitSettings) -> Self {
        Self { permits: Arc::new(settings.build()), admitted: Arc::default() }
    }

    /// Returns a bulkhead of its own, with as many permits, in which up to `waiting_max` requests wait for up to
    /// `wait_max`.
    ///
    /// A queue is for bursts. Its length should be about what the dependency completes within the wait; what is
    /// beyond that would only wait in vain.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn with_queue(self, waiting_max: usize, wait_max: Duration) -> Self {
        Self::with_settings(self.settings().with_queue(waiting_max, wait_max))
    }

    /// Returns a bulkhead of its own, with another order of the queue.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn with_order(self, order: QueueOrder) -> Self {
        Self::with_settings(self.settings().with_order(order))
    }

    /// Returns a bulkhead of its own that reports to a shedder how busy it is: how long requests wait, or without
    /// a queue, the share of permits that are in use.
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
        Self::with_settings(self.settings().with_shedder(shedder))
    }

    fn settings(&self) -> PermitSettings {
        self.permits.settings().clone().with_own_counters()
    }

    /// Returns a permit if one is free and no request waits for it.
    ///
    /// # Errors
    ///
    /// If all permits are in use.
    pub fn try_acquire(&self) -> Result<Permit, BulkheadError> {
        self.permits.try_take()?;
        Ok(self.permit())
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
        self.permits.take().await?;
        Ok(self.permit())
    }

    /// Waits for a permit as [`Bulkhead::acquire`] does, and no longer than `timeout`: what is left of the deadline
    /// of a request.
    ///
    /// # Errors
    ///
    /// As [`Bulkhead::acquire`].
    #[cfg(feature = "tokio")]
    pub async fn acquire_within(&self, timeout: Duration) -> Result<Permit, BulkheadError> {
        self.permits.take_within(timeout).await?;
        Ok(self.permit())
    }

    /// Returns a permit that was taken.
    fn permit(&self) -> Permit {
        self.admitted.fetch_add(1, Ordering::Relaxed);
        Permit::of_bulkhead(Arc::clone(&self.permits))
    }

    /// Returns whether this is the only handle, and no permit is held.
    #[cfg(feature = "policy")]
    pub(crate) fn is_unused(&self) -> bool {
        Arc::strong_count(&self.permits) == 1
    }

    /// Returns how many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.permits.pool().in_flight() as usize
    }

    /// Returns how many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.permits.pool().waiting()
    }

    /// Returns what happened so far, and what is in flight and waits now.
    #[must_use]
    pub fn stats(&self) -> BulkheadStats {
        self.permits.stats(self.admitted.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.permits.settings();
        f.debug_struct("Bulkhead").field("settings", settings).finish_non_exhaustive()
    }
}

/// Why a request has no permit of a [`Bulkhead`] or of an [`AdaptiveLimit`](crate::AdaptiveLimit).
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
    #[error("all permits are in use, and {waiting} requests wait")]
    Full {
        /// The requests that wait.
        waiting: usize,
    },
    /// No permit became free in time.
    #[error("no permit became free within {waited:?}")]
    TimedOut {
        /// How long it waited.
        waited: Duration,
    },
    /// A newer request took its place in the full queue.
    #[error("a newer request took the place in the queue after {waited:?}")]
    Evicted {
        /// How long it waited.
        waited: Duration,
    },
}

impl BulkheadError {
    /// Returns the code in the body of a response.
    #[cfg(feature = "policy")]
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::TimedOut { .. } => "BULKHEAD_TIMEOUT",
            Self::Full { .. } | Self::Evicted { .. } => "BULKHEAD_FULL",
        }
    }

    /// Returns how long the request waited.
    #[must_use]
    pub fn waited(&self) -> Duration {
        match self {
            Self::Full { .. } => Duration::ZERO,
            Self::TimedOut { waited } | Self::Evicted { waited } => *waited,
        }
    }
}

/// What happened at a [`Bulkhead`] or an [`AdaptiveLimit`](crate::AdaptiveLimit), for metrics.
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
