//! A limit on how many requests are in flight per key.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ratekeeper_core::Key;

use crate::permit_pool::PermitPool;
use crate::queued_permits::QueuedPermits;

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
    /// Only keys of which a permit is held or waited for, so there are never more than requests.
    keys: Mutex<HashMap<Box<[u8]>, Arc<PermitPool>>>,
    /// The requests that wait, of all keys.
    #[cfg(feature = "tokio")]
    waiting: std::sync::atomic::AtomicUsize,
}

impl ConcurrencyLimit {
    /// Returns a limit whose number of permits is an argument of each call.
    #[cfg(feature = "policy")]
    pub(crate) fn unbounded() -> Self {
        Self::with_permits(usize::MAX)
    }

    fn with_permits(permits_max: usize) -> Self {
        let state = LimitState {
            permits_max,
            keys: Mutex::default(),
            #[cfg(feature = "tokio")]
            waiting: Default::default(),
        };
        Self { state: Arc::new(state) }
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
        Ok(Self::with_permits(permits_max))
    }

    /// Returns a permit if one is free and no request waits for it.
    pub fn try_acquire<K: Key + ?Sized>(&self, key: &K) -> Option<Permit> {
        let entry = self.enter(key.key_bytes());
        entry.pool().try_take().then(|| Permit::keyed(entry))
    }

    /// Does what [`ConcurrencyLimit::try_acquire`] does, with another number of permits.
    #[cfg(feature = "policy")]
    pub(crate) fn try_acquire_of(&self, permits_max: usize, key: &[u8]) -> Option<Permit> {
        let entry = self.enter(key);
        entry.pool().try_take_of(permits_max).then(|| Permit::keyed(entry))
    }

    /// Returns how many requests are in flight for `key`.
    pub fn in_flight<K: Key + ?Sized>(&self, key: &K) -> usize {
        self.state.keys().get(key.key_bytes()).map_or(0, |pool| pool.in_flight() as usize)
    }

    /// Waits for a permit. Returns `None` after `timeout`, or at once if [`WAITERS_MAX`](crate::WAITERS_MAX)
    /// requests are waiting already. First come, first served; dropping the future leaves the queue.
    #[cfg(feature = "tokio")]
    pub async fn acquire<K: Key + ?Sized>(
        &self,
        key: &K,
        timeout: std::time::Duration,
    ) -> Option<Permit> {
        let entry = self.enter(key.key_bytes());
        if !entry.pool().try_take() {
            let _counted = CountWaiting::try_new(&self.state.waiting)?;
            entry.pool().wait(timeout).await.ok()?;
        }
        Some(Permit::keyed(entry))
    }

    /// Returns the permits of a key, which are kept as long as this is.
    fn enter(&self, key: &[u8]) -> KeyEntry {
        let mut keys = self.state.keys();
        let pool = match keys.get(key) {
            Some(pool) => Arc::clone(pool),
            None => {
                let pool = Arc::new(self.state.pool());
                keys.insert(key.into(), Arc::clone(&pool));
                pool
            }
        };
        KeyEntry { pool: Some(pool), state: Arc::clone(&self.state), key: key.into() }
    }
}

impl fmt::Debug for ConcurrencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permits_max = self.state.permits_max;
        f.debug_struct("ConcurrencyLimit").field("permits_max", &permits_max).finish()
    }
}

impl LimitState {
    fn keys(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Arc<PermitPool>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool(&self) -> PermitPool {
        let pool = PermitPool::new(self.permits_max);
        #[cfg(feature = "tokio")]
        let pool = pool.with_queue(crate::permit_pool::QueueSettings {
            waiting_max: crate::WAITERS_MAX,
            ..Default::default()
        });
        pool
    }
}

/// One of the requests that wait, of all keys.
#[cfg(feature = "tokio")]
struct CountWaiting<'a>(&'a std::sync::atomic::AtomicUsize);

#[cfg(feature = "tokio")]
impl<'a> CountWaiting<'a> {
    fn try_new(waiting: &'a std::sync::atomic::AtomicUsize) -> Option<Self> {
        let counted = Self(waiting);
        let before = waiting.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (before < crate::WAITERS_MAX).then_some(counted)
    }
}

#[cfg(feature = "tokio")]
impl Drop for CountWaiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The permits of a key, for one request. When the last one of a key is dropped, the key is forgotten.
struct KeyEntry {
    /// `None` only while it is dropped.
    pool: Option<Arc<PermitPool>>,
    state: Arc<LimitState>,
    key: Box<[u8]>,
}

impl KeyEntry {
    fn pool(&self) -> &PermitPool {
        self.pool.as_ref().expect("until it is dropped")
    }
}

impl Drop for KeyEntry {
    fn drop(&mut self) {
        let mut keys = self.state.keys();
        // Under the lock, so that the last of several requests sees that it is the last.
        self.pool = None;
        if keys.get(&self.key).is_some_and(|pool| Arc::strong_count(pool) == 1) {
            keys.remove(&self.key);
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
    of: PermitOf,
}

enum PermitOf {
    Key(KeyEntry),
    Bulkhead(Arc<QueuedPermits>),
}

impl Permit {
    fn keyed(entry: KeyEntry) -> Self {
        Self { of: PermitOf::Key(entry) }
    }

    pub(crate) fn of_bulkhead(permits: Arc<QueuedPermits>) -> Self {
        Self { of: PermitOf::Bulkhead(permits) }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match &self.of {
            PermitOf::Key(entry) => entry.pool().release(),
            PermitOf::Bulkhead(permits) => permits.release(),
        };
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Permit");
        if let PermitOf::Key(entry) = &self.of {
            debug.field("key", &String::from_utf8_lossy(&entry.key));
        }
        debug.finish_non_exhaustive()
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
