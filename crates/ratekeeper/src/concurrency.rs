//! A limit on how many requests are in flight.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "tokio")]
use ratekeeper_control::QueueOrder;
use ratekeeper_core::Key;

/// Limits how many requests are in flight per key, for example calls to one dependency (a bulkhead).
///
/// A permit is released when it is dropped, and goes to the request that has waited longest.
///
/// ```
/// use ratekeeper::ConcurrencyLimit;
///
/// let bulkhead = ConcurrencyLimit::new(2)?;
/// let first = bulkhead.try_acquire("database").expect("free");
/// let second = bulkhead.try_acquire("database").expect("free");
/// assert!(bulkhead.try_acquire("database").is_none());
/// assert!(bulkhead.try_acquire("mail").is_some());
///
/// drop(first);
/// assert!(bulkhead.try_acquire("database").is_some());
/// # Ok::<(), ratekeeper::ZeroPermits>(())
/// ```
#[derive(Clone)]
pub struct ConcurrencyLimit {
    state: Arc<LimitState>,
}

struct LimitState {
    permits_max: usize,
    #[cfg(feature = "tokio")]
    queue: QueueSettings,
    keys: Mutex<Keys>,
}

/// How requests wait for a permit.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueSettings {
    /// How many requests can wait, of all keys.
    pub(crate) waiting_max: usize,
    pub(crate) order: QueueOrder,
}

/// How long a queue has to be not empty until it is overloaded.
#[cfg(feature = "tokio")]
const STANDING_QUEUE: std::time::Duration = std::time::Duration::from_millis(100);

/// Only keys of which a permit is held, so there are never more than permits.
#[derive(Default)]
struct Keys {
    by_name: HashMap<Box<[u8]>, InFlight>,
    /// The requests in all queues.
    #[cfg(feature = "tokio")]
    waiting: usize,
}

#[derive(Default)]
struct InFlight {
    permits: usize,
    #[cfg(feature = "tokio")]
    queue: PermitQueue,
}

/// A request that waits for a permit.
#[cfg(feature = "tokio")]
struct Waiting {
    /// A message is a permit.
    grant: tokio::sync::oneshot::Sender<()>,
    since: tokio::time::Instant,
}

/// The requests that wait for a permit.
#[cfg(feature = "tokio")]
#[derive(Default)]
struct PermitQueue {
    /// The oldest first.
    waiting: std::collections::VecDeque<Waiting>,
    /// Since when it has not been empty.
    standing_since: Option<tokio::time::Instant>,
}

#[cfg(feature = "tokio")]
impl PermitQueue {
    fn push(&mut self, grant: tokio::sync::oneshot::Sender<()>) {
        let since = tokio::time::Instant::now();
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

impl ConcurrencyLimit {
    /// Returns a limit whose number of permits is an argument of each call.
    #[cfg(feature = "policy")]
    pub(crate) fn unbounded() -> Self {
        Self::with_state(
            usize::MAX,
            #[cfg(feature = "tokio")]
            QueueSettings::FIFO,
        )
    }

    fn with_state(permits_max: usize, #[cfg(feature = "tokio")] queue: QueueSettings) -> Self {
        let state = LimitState {
            permits_max,
            #[cfg(feature = "tokio")]
            queue,
            keys: Mutex::default(),
        };
        Self { state: Arc::new(state) }
    }

    /// Returns a limit of its own with the same number of permits and another queue.
    #[cfg(feature = "tokio")]
    pub(crate) fn with_queue(&self, queue: QueueSettings) -> Self {
        Self::with_state(self.state.permits_max, queue)
    }

    pub(crate) fn permits_max(&self) -> usize {
        self.state.permits_max
    }

    /// Returns a limit of `permits_max` in flight per key.
    ///
    /// # Errors
    ///
    /// If `permits_max` is 0.
    pub fn new(permits_max: usize) -> Result<Self, ZeroPermits> {
        if permits_max == 0 {
            return Err(ZeroPermits);
        }
        Ok(Self::with_state(
            permits_max,
            #[cfg(feature = "tokio")]
            QueueSettings::FIFO,
        ))
    }

    /// Returns a permit if one is free and no request waits for it.
    pub fn try_acquire<K: Key + ?Sized>(&self, key: &K) -> Option<Permit> {
        self.try_acquire_of(self.state.permits_max, key.key_bytes())
    }

    /// Does what [`ConcurrencyLimit::try_acquire`] does, with another number of permits.
    pub(crate) fn try_acquire_of(&self, permits_max: usize, key: &[u8]) -> Option<Permit> {
        let mut keys = self.state.keys();
        let in_flight = match keys.by_name.get_mut(key) {
            Some(in_flight) => in_flight,
            None => keys.by_name.entry(key.into()).or_default(),
        };
        if in_flight.permits >= permits_max {
            return None;
        }
        in_flight.permits += 1;
        Some(Permit { state: self.state.clone(), key: key.into() })
    }

    /// Returns how many requests are in flight for `key`.
    pub fn in_flight<K: Key + ?Sized>(&self, key: &K) -> usize {
        self.state.keys().by_name.get(key.key_bytes()).map_or(0, |in_flight| in_flight.permits)
    }

    /// Returns how many requests wait, of all keys.
    #[cfg(feature = "tokio")]
    pub(crate) fn waiting(&self) -> usize {
        self.state.keys().waiting
    }

    /// Returns how long the oldest request of a key has waited; zero if none waits.
    #[cfg(feature = "tokio")]
    pub(crate) fn oldest_wait(&self, key: &[u8]) -> std::time::Duration {
        let keys = self.state.keys();
        let oldest = keys.by_name.get(key).and_then(|in_flight| in_flight.queue.waiting.front());
        oldest.map_or(std::time::Duration::ZERO, |waiting| waiting.since.elapsed())
    }

    /// Waits for a permit. Returns `None` after `timeout`, or at once if [`WAITERS_MAX`](crate::WAITERS_MAX)
    /// requests are waiting already. First come, first served; dropping the future leaves the queue.
    #[cfg(feature = "tokio")]
    pub async fn acquire<K: Key + ?Sized>(
        &self,
        key: &K,
        timeout: std::time::Duration,
    ) -> Option<Permit> {
        self.wait(key.key_bytes(), timeout).await.ok()
    }

    /// Does what [`ConcurrencyLimit::acquire`] does, and says why there is no permit.
    #[cfg(feature = "tokio")]
    pub(crate) async fn wait(
        &self,
        key: &[u8],
        timeout: std::time::Duration,
    ) -> Result<Permit, NoPermit> {
        let mut waiting = match self.state.join_queue(key)? {
            Joined::Granted(permit) => return Ok(permit),
            Joined::Waiting(waiting) => waiting,
        };
        match tokio::time::timeout(timeout, &mut waiting.granted).await {
            Ok(Ok(())) => Ok(waiting.into_permit()),
            Ok(Err(_)) => Err(NoPermit::Evicted),
            Err(_) => Err(NoPermit::TimedOut),
        }
    }
}

#[cfg(feature = "tokio")]
impl QueueSettings {
    const FIFO: Self = Self { waiting_max: crate::WAITERS_MAX, order: QueueOrder::Fifo };
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

#[cfg(feature = "tokio")]
enum Joined {
    Granted(Permit),
    Waiting(PermitWaiter),
}

impl fmt::Debug for ConcurrencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permits_max = self.state.permits_max;
        f.debug_struct("ConcurrencyLimit").field("permits_max", &permits_max).finish()
    }
}

impl LimitState {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free permit, or joins the queue.
    #[cfg(feature = "tokio")]
    fn join_queue(self: &Arc<Self>, key: &[u8]) -> Result<Joined, NoPermit> {
        let mut keys = self.keys();
        let Keys { by_name, waiting } = &mut *keys;
        let in_flight = match by_name.get_mut(key) {
            Some(in_flight) => in_flight,
            None => by_name.entry(key.into()).or_default(),
        };
        if in_flight.permits < self.permits_max {
            in_flight.permits += 1;
            return Ok(Joined::Granted(Permit { state: self.clone(), key: key.into() }));
        }
        let QueueSettings { waiting_max, order } = self.queue;
        match *waiting < waiting_max {
            true => *waiting += 1,
            false if in_flight.queue.evict_oldest(order) => {}
            false => return Err(NoPermit::Full),
        }
        let (grant, granted) = tokio::sync::oneshot::channel();
        in_flight.queue.push(grant);
        let (state, key) = (self.clone(), key.into());
        Ok(Joined::Waiting(PermitWaiter { state, key, granted, is_taken: false }))
    }

    /// Hands a permit to the next request that still waits, or counts it as free.
    fn release(&self, key: &[u8]) {
        let mut keys = self.keys();
        let keys = &mut *keys;
        let Some(in_flight) = keys.by_name.get_mut(key) else {
            return;
        };
        #[cfg(feature = "tokio")]
        while let Some(next) = in_flight.queue.pop(self.queue.order) {
            keys.waiting -= 1;
            if next.grant.send(()).is_ok() {
                return;
            }
        }
        in_flight.permits -= 1;
        if in_flight.permits == 0 {
            keys.by_name.remove(key);
        }
    }
}

/// A waiting request. Dropped, it leaves the queue, and hands on a permit that was just granted.
#[cfg(feature = "tokio")]
struct PermitWaiter {
    state: Arc<LimitState>,
    key: Box<[u8]>,
    granted: tokio::sync::oneshot::Receiver<()>,
    is_taken: bool,
}

#[cfg(feature = "tokio")]
impl PermitWaiter {
    fn into_permit(mut self) -> Permit {
        self.is_taken = true;
        Permit { state: self.state.clone(), key: self.key.clone() }
    }
}

#[cfg(feature = "tokio")]
impl Drop for PermitWaiter {
    fn drop(&mut self) {
        self.granted.close();
        if self.is_taken {
            return;
        }
        let mut keys = self.state.keys();
        let Keys { by_name, waiting } = &mut *keys;
        if let Some(in_flight) = by_name.get_mut(&self.key) {
            *waiting -= in_flight.queue.remove_closed();
        }
        drop(keys);
        if self.granted.try_recv().is_ok() {
            self.state.release(&self.key);
        }
    }
}

/// A permit to be in flight until it is dropped.
///
/// ```
/// use ratekeeper::ConcurrencyLimit;
///
/// let limit = ConcurrencyLimit::new(1)?;
/// let permit = limit.try_acquire("db");
/// assert_eq!(limit.in_flight("db"), 1);
/// drop(permit);
/// assert_eq!(limit.in_flight("db"), 0);
/// # Ok::<(), ratekeeper::ZeroPermits>(())
/// ```
#[must_use = "a permit that is dropped is released"]
pub struct Permit {
    state: Arc<LimitState>,
    key: Box<[u8]>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.state.release(&self.key);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("key", &String::from_utf8_lossy(&self.key)).finish()
    }
}

/// A concurrency limit of 0.
///
/// ```
/// use ratekeeper::{ConcurrencyLimit, ZeroPermits};
///
/// assert_eq!(ConcurrencyLimit::new(0).unwrap_err(), ZeroPermits);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a concurrency limit must allow at least 1 in flight")]
pub struct ZeroPermits;
