//! Permits with a queue and a deadline, counted, for bulkheads and adaptive limits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_control::Overload;
#[cfg(feature = "tokio")]
use ratekeeper_control::QueueOrder;

use crate::bulkhead::{BulkheadError, BulkheadStats};
use crate::clock::Clock;
use crate::histogram::{DurationCounts, Histogram};
use crate::permit_pool::PermitPool;
#[cfg(feature = "tokio")]
use crate::permit_pool::{NoPermit, QueueSettings};
use crate::shedder::Shedder;

/// How many permits there are at first, and how requests wait for one.
#[derive(Clone)]
pub(crate) struct PermitSettings {
    pub(crate) permits_max: usize,
    #[cfg(feature = "tokio")]
    queue: QueueSettings,
    /// How long a request waits in the queue.
    #[cfg(feature = "tokio")]
    wait_max: Duration,
    report: Option<Arc<Report>>,
    counters: Arc<Counters>,
}

pub(crate) type Report = dyn Fn(Overload) + Send + Sync;

/// Permits of which each request takes one. Who takes one releases it.
pub(crate) struct QueuedPermits {
    pool: PermitPool,
    settings: PermitSettings,
}

#[derive(Debug, Default)]
struct Counters {
    full: AtomicU64,
    timed_out: AtomicU64,
    evicted: AtomicU64,
    cancelled: AtomicU64,
    /// Of the requests that did not get a permit at once.
    waits: Histogram,
}

impl PermitSettings {
    /// Returns settings without a queue.
    pub(crate) fn new(permits_max: usize) -> Self {
        Self {
            permits_max,
            #[cfg(feature = "tokio")]
            queue: QueueSettings::default(),
            #[cfg(feature = "tokio")]
            wait_max: Duration::ZERO,
            report: None,
            counters: Arc::default(),
        }
    }

    /// Counts together with those of other settings.
    #[cfg(feature = "policy")]
    pub(crate) fn with_counters(self, of: &Self) -> Self {
        Self { counters: Arc::clone(&of.counters), ..self }
    }

    /// Counts by itself.
    pub(crate) fn with_own_counters(self) -> Self {
        Self { counters: Arc::default(), ..self }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn with_queue(self, waiting_max: usize, wait_max: Duration) -> Self {
        let queue = QueueSettings { waiting_max, ..self.queue };
        Self { queue, wait_max, ..self }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn with_order(self, order: QueueOrder) -> Self {
        let queue = QueueSettings { order, ..self.queue };
        Self { queue, ..self }
    }

    pub(crate) fn with_shedder<C: Clock + 'static>(self, shedder: &Shedder<C>) -> Self {
        let shedder = shedder.clone();
        self.with_report(Arc::new(move |signal| shedder.observe(signal)))
    }

    /// Reports how busy the permits are.
    pub(crate) fn with_report(self, report: Arc<Report>) -> Self {
        Self { report: Some(report), ..self }
    }

    pub(crate) fn build(self) -> QueuedPermits {
        let pool = PermitPool::new(self.permits_max);
        #[cfg(feature = "tokio")]
        let pool = pool.with_queue(self.queue);
        QueuedPermits { pool, settings: self }
    }
}

impl fmt::Debug for PermitSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PermitSettings");
        debug.field("permits_max", &self.permits_max);
        #[cfg(feature = "tokio")]
        debug.field("queue", &self.queue).field("wait_max", &self.wait_max);
        debug.finish_non_exhaustive()
    }
}

impl QueuedPermits {
    /// Takes a permit if one is free and no request waits for it.
    #[inline]
    pub(crate) fn try_take(&self) -> Result<(), BulkheadError> {
        if self.pool.try_take() {
            self.report(true, Duration::ZERO);
            return Ok(());
        }
        Err(self.reject(BulkheadError::Full { waiting: self.pool.waiting() }))
    }

    /// Waits for a permit, as long as the queue allows and no longer than `timeout`, and takes it.
    #[cfg(feature = "tokio")]
    pub(crate) async fn take_within(&self, timeout: Duration) -> Result<(), BulkheadError> {
        if self.pool.try_take() {
            self.report(true, Duration::ZERO);
            return Ok(());
        }
        let mut cancelled =
            CountCancelled { counters: &self.settings.counters, is_cancelled: true };
        let began = tokio::time::Instant::now();
        let result = self.pool.wait(timeout.min(self.settings.wait_max)).await;
        let waited = began.elapsed();
        cancelled.is_cancelled = false;
        match result {
            Ok(()) => {
                self.settings.counters.waits.record(waited, 1);
                self.report(true, waited);
                Ok(())
            }
            Err(NoPermit::Full) => {
                Err(self.reject(BulkheadError::Full { waiting: self.pool.waiting() }))
            }
            Err(NoPermit::TimedOut) => Err(self.reject(BulkheadError::TimedOut { waited })),
            Err(NoPermit::Evicted) => Err(self.reject(BulkheadError::Evicted { waited })),
        }
    }

    /// Waits as [`QueuedPermits::take_within`] does, up to the longest wait of the queue.
    #[cfg(feature = "tokio")]
    pub(crate) async fn take(&self) -> Result<(), BulkheadError> {
        self.take_within(self.settings.wait_max).await
    }

    /// Releases a permit, and returns how many were in use before.
    #[inline]
    pub(crate) fn release(&self) -> u32 {
        self.pool.release()
    }

    #[inline]
    pub(crate) fn pool(&self) -> &PermitPool {
        &self.pool
    }

    pub(crate) fn settings(&self) -> &PermitSettings {
        &self.settings
    }

    /// Returns what happened so far. The caller counts how many requests got a permit.
    pub(crate) fn stats(&self, admitted: u64) -> BulkheadStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.settings.counters;
        let waits = counters.waits.counts();
        let at_once = admitted.saturating_sub(waits.count);
        BulkheadStats {
            permits_max: self.pool.permits_max(),
            in_flight: self.pool.in_flight() as usize,
            waiting: self.pool.waiting(),
            admitted,
            full: read(&counters.full),
            timed_out: read(&counters.timed_out),
            evicted: read(&counters.evicted),
            cancelled: read(&counters.cancelled),
            waits: with_zeros(&waits, at_once),
        }
    }

    #[cold]
    fn reject(&self, error: BulkheadError) -> BulkheadError {
        let counters = &self.settings.counters;
        let counter = match error {
            BulkheadError::Full { .. } => &counters.full,
            BulkheadError::TimedOut { .. } => &counters.timed_out,
            BulkheadError::Evicted { .. } => &counters.evicted,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let has_waited = !matches!(error, BulkheadError::Full { .. });
        self.report(has_waited, error.waited());
        error
    }

    /// Reports what the end of a wait says about overload.
    #[inline]
    fn report(&self, has_waited: bool, waited: Duration) {
        if let Some(report) = &self.settings.report
            && let Some(signal) = self.signal(has_waited, waited)
        {
            report(signal);
        }
    }

    fn signal(&self, has_waited: bool, waited: Duration) -> Option<Overload> {
        #[cfg(feature = "tokio")]
        if self.settings.queue.waiting_max > 0 {
            // A request that is rejected at once says nothing about those who wait. One that is served before
            // older ones does not either, so the oldest one counts.
            let waited = waited.max(self.pool.oldest_wait());
            return has_waited.then_some(Overload::QueueTime(waited));
        }
        let _ = (has_waited, waited);
        let utilization = f64::from(self.pool.in_flight()) / self.pool.permits_max() as f64;
        Some(Overload::Utilization(utilization))
    }
}

impl fmt::Debug for QueuedPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedPermits").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Adds waits of zero.
fn with_zeros(waits: &DurationCounts, times: u64) -> DurationCounts {
    let within = waits.within.map(|count| count + times);
    DurationCounts { within, count: waits.count + times, sum: waits.sum }
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
