//! At most so many in flight.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bounds how many are in flight for each key, for example calls to one dependency.
///
/// A permit is released when it is dropped, and goes straight to whoever has waited longest.
///
/// ```
/// use ratekeeper::Concurrency;
///
/// let bulkhead = Concurrency::new(2)?;
/// let first = bulkhead.try_acquire("database").expect("free");
/// let second = bulkhead.try_acquire("database").expect("free");
/// assert!(bulkhead.try_acquire("database").is_none());
/// assert!(bulkhead.try_acquire("mail").is_some());
///
/// drop(first);
/// assert!(bulkhead.try_acquire("database").is_some());
/// # Ok::<(), ratekeeper::NoPermits>(())
/// ```
#[derive(Clone)]
pub struct Concurrency {
    shared: Arc<Shared>,
}

struct Shared {
    permits_max: usize,
    keys: Mutex<Keys>,
}

/// Only keys with a permit out are here, so there are never more than permits.
#[derive(Default)]
struct Keys {
    by_name: HashMap<Box<[u8]>, InFlight>,
    #[cfg(feature = "tokio")]
    waiting: usize,
}

#[derive(Default)]
struct InFlight {
    permits: usize,
    /// Who waits, longest first. A message is a permit.
    #[cfg(feature = "tokio")]
    line: std::collections::VecDeque<tokio::sync::oneshot::Sender<()>>,
}

impl Concurrency {
    /// One whose number of permits is told each time.
    #[cfg(feature = "policy")]
    pub(crate) fn unbounded() -> Self {
        Self { shared: Arc::new(Shared { permits_max: usize::MAX, keys: Mutex::default() }) }
    }

    /// At most `permits_max` in flight for each key.
    pub fn new(permits_max: usize) -> Result<Self, NoPermits> {
        if permits_max == 0 {
            return Err(NoPermits);
        }
        Ok(Self { shared: Arc::new(Shared { permits_max, keys: Mutex::default() }) })
    }

    /// A permit if one is free and nobody waits for it.
    pub fn try_acquire<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Option<Permit> {
        self.try_acquire_of(self.shared.permits_max, key.as_ref())
    }

    /// The same with another number of permits, for this key at this time.
    pub(crate) fn try_acquire_of(&self, permits_max: usize, key: &[u8]) -> Option<Permit> {
        let mut keys = self.shared.keys();
        let in_flight = match keys.by_name.get_mut(key) {
            Some(in_flight) => in_flight,
            None => keys.by_name.entry(key.into()).or_default(),
        };
        if in_flight.permits >= permits_max {
            return None;
        }
        in_flight.permits += 1;
        Some(Permit { shared: self.shared.clone(), key: key.into() })
    }

    /// How many are in flight for `key`.
    pub fn in_flight<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> usize {
        self.shared.keys().by_name.get(key.as_ref()).map_or(0, |in_flight| in_flight.permits)
    }

    /// A permit, as soon as one is free; `None` if that takes longer than `patience`, or if
    /// [`WAITERS_MAX`](crate::WAITERS_MAX) are waiting already. First come, first served; whoever
    /// stops waiting (drops the future) leaves the line.
    #[cfg(feature = "tokio")]
    pub async fn acquire<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        patience: std::time::Duration,
    ) -> Option<Permit> {
        if let Some(permit) = self.try_acquire(key) {
            return Some(permit);
        }
        let mut waiting = self.shared.join_line(key.as_ref())?;
        match tokio::time::timeout(patience, &mut waiting.granted).await {
            Ok(Ok(())) => Some(waiting.into_permit()),
            _ => None,
        }
    }
}

impl fmt::Debug for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concurrency").field("permits_max", &self.shared.permits_max).finish()
    }
}

impl Shared {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "tokio")]
    fn join_line(self: &Arc<Self>, key: &[u8]) -> Option<Waiting> {
        let mut keys = self.keys();
        if keys.waiting >= crate::WAITERS_MAX {
            return None;
        }
        keys.waiting += 1;
        let (grant, granted) = tokio::sync::oneshot::channel();
        let in_flight = keys.by_name.entry(key.into()).or_default();
        if in_flight.permits < self.permits_max {
            // One has come back since it was tried.
            in_flight.permits += 1;
            let _ = grant.send(());
        } else {
            in_flight.line.push_back(grant);
        }
        Some(Waiting { shared: self.clone(), key: key.into(), granted, is_taken: false })
    }

    /// Passes a permit on to the first who still waits, or counts it as free.
    fn release(&self, key: &[u8]) {
        let mut keys = self.keys();
        let Some(in_flight) = keys.by_name.get_mut(key) else {
            return;
        };
        #[cfg(feature = "tokio")]
        while let Some(next) = in_flight.line.pop_front() {
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

/// A place in the line. Dropped, it leaves the line, and passes on a permit that has just come.
#[cfg(feature = "tokio")]
struct Waiting {
    shared: Arc<Shared>,
    key: Box<[u8]>,
    granted: tokio::sync::oneshot::Receiver<()>,
    is_taken: bool,
}

#[cfg(feature = "tokio")]
impl Waiting {
    fn into_permit(mut self) -> Permit {
        self.is_taken = true;
        Permit { shared: self.shared.clone(), key: self.key.clone() }
    }
}

#[cfg(feature = "tokio")]
impl Drop for Waiting {
    fn drop(&mut self) {
        self.granted.close();
        let mut keys = self.shared.keys();
        keys.waiting -= 1;
        if let Some(in_flight) = keys.by_name.get_mut(&self.key) {
            in_flight.line.retain(|grant| !grant.is_closed());
        }
        drop(keys);
        if !self.is_taken && self.granted.try_recv().is_ok() {
            self.shared.release(&self.key);
        }
    }
}

/// Leave to be in flight, until it is dropped.
#[must_use = "a permit that is dropped is released"]
pub struct Permit {
    shared: Arc<Shared>,
    key: Box<[u8]>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.release(&self.key);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("key", &String::from_utf8_lossy(&self.key)).finish()
    }
}

/// A limit of 0 in flight was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPermits;

impl fmt::Display for NoPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a concurrency limit must allow at least 1 in flight")
    }
}

impl std::error::Error for NoPermits {}
