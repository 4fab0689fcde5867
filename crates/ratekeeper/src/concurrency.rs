//! A limit on how many requests are in flight.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    keys: Mutex<Keys>,
}

/// Only keys of which a permit is held, so there are never more than permits.
#[derive(Default)]
struct Keys {
    by_name: HashMap<Box<[u8]>, InFlight>,
    #[cfg(feature = "tokio")]
    waiting: usize,
}

#[derive(Default)]
struct InFlight {
    permits: usize,
    /// The requests that wait, longest first. A message is a permit.
    #[cfg(feature = "tokio")]
    queue: std::collections::VecDeque<tokio::sync::oneshot::Sender<()>>,
}

impl ConcurrencyLimit {
    /// Returns a limit whose number of permits is an argument of each call.
    #[cfg(feature = "policy")]
    pub(crate) fn unbounded() -> Self {
        Self { state: Arc::new(LimitState { permits_max: usize::MAX, keys: Mutex::default() }) }
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
        Ok(Self { state: Arc::new(LimitState { permits_max, keys: Mutex::default() }) })
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

    /// Waits for a permit. Returns `None` after `timeout`, or at once if [`WAITERS_MAX`](crate::WAITERS_MAX)
    /// requests are waiting already. First come, first served; dropping the future leaves the queue.
    #[cfg(feature = "tokio")]
    pub async fn acquire<K: Key + ?Sized>(
        &self,
        key: &K,
        timeout: std::time::Duration,
    ) -> Option<Permit> {
        if let Some(permit) = self.try_acquire(key) {
            return Some(permit);
        }
        let mut waiting = self.state.join_queue(key.key_bytes())?;
        match tokio::time::timeout(timeout, &mut waiting.granted).await {
            Ok(Ok(())) => Some(waiting.into_permit()),
            _ => None,
        }
    }
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

    #[cfg(feature = "tokio")]
    fn join_queue(self: &Arc<Self>, key: &[u8]) -> Option<PermitWaiter> {
        let mut keys = self.keys();
        if keys.waiting >= crate::WAITERS_MAX {
            return None;
        }
        keys.waiting += 1;
        let (grant, granted) = tokio::sync::oneshot::channel();
        let in_flight = keys.by_name.entry(key.into()).or_default();
        if in_flight.permits < self.permits_max {
            // One was released since it was tried.
            in_flight.permits += 1;
            let _ = grant.send(());
        } else {
            in_flight.queue.push_back(grant);
        }
        Some(PermitWaiter { state: self.clone(), key: key.into(), granted, is_taken: false })
    }

    /// Hands a permit to the first request that still waits, or counts it as free.
    fn release(&self, key: &[u8]) {
        let mut keys = self.keys();
        let Some(in_flight) = keys.by_name.get_mut(key) else {
            return;
        };
        #[cfg(feature = "tokio")]
        while let Some(next) = in_flight.queue.pop_front() {
            if next.send(()).is_ok() {
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
        let mut keys = self.state.keys();
        keys.waiting -= 1;
        if let Some(in_flight) = keys.by_name.get_mut(&self.key) {
            in_flight.queue.retain(|grant| !grant.is_closed());
        }
        drop(keys);
        if !self.is_taken && self.granted.try_recv().is_ok() {
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
