//! Permits that are counted in an atomic, and a bounded queue of the requests that wait for one.
//!
//! Permits in use and requests that wait share one word. So a permit is taken and released in one step, without a
//! lock, as long as no request waits. Those that wait are in a queue behind a lock, and a permit that is released
//! goes to the next of them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(feature = "tokio")]
use {
    ratekeeper_control::QueueOrder,
    std::collections::VecDeque,
    std::sync::{Mutex, MutexGuard, PoisonError},
    std::time::Duration,
    tokio::sync::oneshot::{Receiver, Sender},
    tokio::time::Instant,
};

/// A number of permits, which can change.
///
/// The order of the fields is fixed so that the cache line that every request writes has nothing that is only read.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PermitPool {
    /// Permits in use, and requests that wait times [`WAITING`].
    counts: AtomicU64,
    #[cfg(feature = "tokio")]
    queue: Mutex<PermitQueue>,
    #[cfg(feature = "tokio")]
    settings: QueueSettings,
    permits_max: AtomicU32,
}

/// More than any number of permits.
const WAITING: u64 = 1 << 32;

impl PermitPool {
    /// Returns a pool without a queue.
    pub(crate) fn new(permits_max: usize) -> Self {
        Self {
            counts: AtomicU64::new(0),
            permits_max: AtomicU32::new(clamp(permits_max)),
            #[cfg(feature = "tokio")]
            settings: QueueSettings::default(),
            #[cfg(feature = "tokio")]
            queue: Mutex::default(),
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn with_queue(self, settings: QueueSettings) -> Self {
        Self { settings, ..self }
    }

    /// Takes a permit if one is free and no request waits for it, and returns whether it did.
    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        self.take_below(self.permits_max.load(Ordering::Relaxed))
    }

    /// Does what [`PermitPool::try_take`] does, with another number of permits.
    #[cfg(feature = "policy")]
    pub(crate) fn try_take_of(&self, permits_max: usize) -> bool {
        self.take_below(clamp(permits_max))
    }

    #[inline]
    fn take_below(&self, permits_max: u32) -> bool {
        // A guess instead of a look: also if it fails, it brings the cache line to this core for the next attempt.
        let mut counts = 0;
        while counts < u64::from(permits_max) {
            let (order, weak) = (Ordering::Acquire, Ordering::Relaxed);
            match self.counts.compare_exchange_weak(counts, counts + 1, order, weak) {
                Ok(_) => return true,
                Err(now) => counts = now,
            }
        }
        false
    }

    /// Releases a permit, to the next request that waits. Returns how many were in use before.
    #[inline]
    pub(crate) fn release(&self) -> u32 {
        let counts = self.counts.fetch_sub(1, Ordering::Release);
        #[cfg(feature = "tokio")]
        if counts >= WAITING {
            self.grant(&mut self.queue());
        }
        in_use(counts)
    }

    /// Returns how many permits are in use.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        in_use(self.counts.load(Ordering::Relaxed))
    }

    /// Returns how many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        (self.counts.load(Ordering::Relaxed) / WAITING) as usize
    }

    pub(crate) fn permits_max(&self) -> usize {
        self.permits_max.load(Ordering::Relaxed) as usize
    }

    /// Changes the number of permits. If it is fewer than are in use, none is granted until enough are released.
    pub(crate) fn set_permits_max(&self, permits_max: usize) {
        self.permits_max.store(clamp(permits_max), Ordering::Relaxed);
        #[cfg(feature = "tokio")]
        self.grant(&mut self.queue());
    }
}

fn clamp(permits_max: usize) -> u32 {
    u32::try_from(permits_max).unwrap_or(u32::MAX)
}

fn in_use(counts: u64) -> u32 {
    counts as u32
}

#[cfg(feature = "tokio")]
impl PermitPool {
    /// Waits for a permit, and takes it.
    pub(crate) async fn wait(&self, timeout: Duration) -> Result<(), NoPermit> {
        if self.try_take() {
            return Ok(());
        }
        let Some(mut waiting) = self.join()? else { return Ok(()) };
        match tokio::time::timeout(timeout, &mut waiting.granted).await {
            Ok(Ok(())) => {
                waiting.is_taken = true;
                Ok(())
            }
            Ok(Err(_)) => Err(NoPermit::Evicted),
            Err(_) => Err(NoPermit::TimedOut),
        }
    }

    /// Joins the queue, unless a permit is free: `None` if it was, and was taken.
    fn join(&self) -> Result<Option<PermitWaiter<'_>>, NoPermit> {
        let QueueSettings { waiting_max, order } = self.settings;
        let mut queue = self.queue();
        let is_full = queue.waiting.len() >= waiting_max;
        // Nothing else adds a request, so only the permits in use can change.
        loop {
            if self.try_take() {
                return Ok(None);
            }
            if is_full {
                match queue.evict_oldest(order) {
                    true => break,
                    false => return Err(NoPermit::Full),
                }
            }
            let counts = self.counts.load(Ordering::Relaxed);
            if counts < u64::from(self.permits_max.load(Ordering::Relaxed)) {
                continue;
            }
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            let after = counts + WAITING;
            if self.counts.compare_exchange(counts, after, success, failure).is_ok() {
                break;
            }
        }
        let (grant, granted) = tokio::sync::oneshot::channel();
        queue.push(grant);
        Ok(Some(PermitWaiter { pool: self, granted, is_taken: false }))
    }

    /// Hands free permits to the requests that wait.
    fn grant(&self, queue: &mut PermitQueue) {
        loop {
            let counts = self.counts.load(Ordering::Relaxed);
            if counts < WAITING || in_use(counts) >= self.permits_max.load(Ordering::Relaxed) {
                return;
            }
            let Some(next) = queue.pop(self.settings.order) else { return };
            // One more is in use, and one less waits.
            self.counts.fetch_sub(WAITING - 1, Ordering::AcqRel);
            if next.grant.send(()).is_err() {
                self.counts.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Returns how long the oldest request has waited; zero if none waits.
    pub(crate) fn oldest_wait(&self) -> Duration {
        if self.waiting() == 0 {
            return Duration::ZERO;
        }
        let queue = self.queue();
        queue.waiting.front().map_or(Duration::ZERO, |waiting| waiting.since.elapsed())
    }

    fn queue(&self) -> MutexGuard<'_, PermitQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting request. Dropped, it leaves the queue, and hands on a permit that was just granted.
#[cfg(feature = "tokio")]
struct PermitWaiter<'p> {
    pool: &'p PermitPool,
    granted: Receiver<()>,
    is_taken: bool,
}

#[cfg(feature = "tokio")]
impl Drop for PermitWaiter<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        self.granted.close();
        let mut queue = self.pool.queue();
        let left = queue.remove_closed() as u64;
        self.pool.counts.fetch_sub(left * WAITING, Ordering::AcqRel);
        drop(queue);
        if self.granted.try_recv().is_ok() {
            self.pool.release();
        }
    }
}

/// Why a request that would wait has no permit.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPermit {
    /// Too many requests wait.
    Full,
    TimedOut,
    /// A newer request took its place in the queue.
    Evicted,
}

/// How requests wait for a permit. By default, none does.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueSettings {
    /// How many requests can wait.
    pub(crate) waiting_max: usize,
    pub(crate) order: QueueOrder,
}

/// How long a queue has to be not empty until it is overloaded.
#[cfg(feature = "tokio")]
const STANDING_QUEUE: Duration = Duration::from_millis(100);

/// A request that waits for a permit.
#[cfg(feature = "tokio")]
#[derive(Debug)]
struct Waiting {
    /// A message is a permit.
    grant: Sender<()>,
    since: Instant,
}

/// The requests that wait for a permit.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
struct PermitQueue {
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    /// Since when it has not been empty.
    standing_since: Option<Instant>,
}

#[cfg(feature = "tokio")]
impl PermitQueue {
    fn push(&mut self, grant: Sender<()>) {
        let since = Instant::now();
        if self.waiting.is_empty() {
            self.standing_since = Some(since);
        }
        self.waiting.push_back(Waiting { grant, since });
    }

    /// Takes out the request to serve next.
    fn pop(&mut self, order: QueueOrder) -> Option<Waiting> {
        match self.is_newest_first(order) {
            true => self.waiting.pop_back(),
            false => self.waiting.pop_front(),
        }
    }

    /// Removes the oldest request to make room for a newer one, and returns whether it did.
    fn evict_oldest(&mut self, order: QueueOrder) -> bool {
        self.is_newest_first(order) && self.waiting.pop_front().is_some()
    }

    fn is_newest_first(&self, order: QueueOrder) -> bool {
        let since = self.standing_since.filter(|_| !self.waiting.is_empty());
        order == QueueOrder::AdaptiveLifo
            && since.is_some_and(|since| since.elapsed() >= STANDING_QUEUE)
    }

    /// Removes the requests that have given up, and returns how many.
    fn remove_closed(&mut self) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| !waiting.grant.is_closed());
        before - self.waiting.len()
    }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_permits_applies_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let settings = QueueSettings { waiting_max: 2, order: QueueOrder::Fifo };
            let pool = PermitPool::new(2).with_queue(settings);
            assert!(pool.try_take() && pool.try_take() && !pool.try_take());
            let second = Duration::from_secs(1);
            let (first, other) = (pool.wait(second), pool.wait(second));
            let raise = async {
                assert_eq!((pool.in_flight(), pool.waiting()), (2, 2));
                pool.set_permits_max(4);
                assert_eq!((pool.in_flight(), pool.waiting()), (4, 0));
                pool.set_permits_max(1);
            };
            assert_eq!(tokio::join!(first, other, raise), (Ok(()), Ok(()), ()));
            (0..3).for_each(|_| {
                pool.release();
            });
            assert!(!pool.try_take(), "one is in use, and one may be");
            pool.release();
            assert!(pool.try_take());
        });
    }
}
