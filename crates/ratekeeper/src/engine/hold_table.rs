//! What callers hold in this process: their number is bounded, and each has a deadline.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ratekeeper_core::Micros;

use super::hold_id::HoldId;

/// The most entries of a table.
pub(crate) const HOLDS_MAX: usize = 100_000;

/// Entries by their ids.
#[derive(Debug)]
pub(crate) struct HoldTable<T>(Mutex<Holds<T>>);

#[derive(Debug)]
struct Holds<T> {
    by_id: HashMap<HoldId, (Micros, T)>,
    by_deadline: BTreeSet<(Micros, HoldId)>,
}

impl<T> Default for HoldTable<T> {
    fn default() -> Self {
        Self(Mutex::new(Holds { by_id: HashMap::new(), by_deadline: BTreeSet::new() }))
    }
}

/// Too many reservations or permits are held in this process.
///
/// ```
/// assert!(ratekeeper::TooManyHeld.to_string().contains("settle or release some"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many reservations or permits are held; settle or release some")]
pub struct TooManyHeld;

impl<T> HoldTable<T> {
    /// Inserts an entry that is valid for this long.
    pub(crate) fn insert(
        &self,
        id: HoldId,
        entry: T,
        valid: Duration,
        now: Micros,
    ) -> Result<(), TooManyHeld> {
        let valid_us = u64::try_from(valid.as_micros()).unwrap_or(u64::MAX);
        let deadline = Micros::new(now.get().saturating_add(valid_us));
        let mut holds = self.lock();
        let expired = holds.remove_expired(now);
        let is_full = holds.by_id.len() >= HOLDS_MAX;
        if !is_full {
            holds.insert(id, entry, deadline);
        }
        // Dropped after the lock is released: it may release permits.
        drop(holds);
        drop(expired);
        if is_full { Err(TooManyHeld) } else { Ok(()) }
    }

    /// Removes an entry, and returns it with its deadline.
    pub(crate) fn remove(&self, id: HoldId, now: Micros) -> Option<(Micros, T)> {
        let mut holds = self.lock();
        let expired = holds.remove_expired(now);
        let removed = holds.by_id.remove(&id);
        if let Some((deadline, _)) = &removed {
            holds.by_deadline.remove(&(*deadline, id));
        }
        drop(holds);
        drop(expired);
        removed
    }

    /// Inserts a removed entry again.
    #[cfg(feature = "redis")]
    pub(crate) fn reinsert(&self, id: HoldId, entry: T, deadline: Micros) {
        self.lock().insert(id, entry, deadline);
    }

    /// Drops the entries whose deadline has passed.
    pub(crate) fn sweep(&self, now: Micros) {
        let expired = self.lock().remove_expired(now);
        drop(expired);
    }

    fn lock(&self) -> MutexGuard<'_, Holds<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Holds<T> {
    fn insert(&mut self, id: HoldId, entry: T, deadline: Micros) {
        self.by_deadline.insert((deadline, id));
        self.by_id.insert(id, (deadline, entry));
    }

    fn remove_expired(&mut self, now: Micros) -> Vec<T> {
        let mut expired = Vec::new();
        while let Some((deadline, _)) = self.by_deadline.first()
            && *deadline <= now
            && let Some((_, id)) = self.by_deadline.pop_first()
        {
            expired.extend(self.by_id.remove(&id).map(|(_, entry)| entry));
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_forgets_what_has_expired() {
        let table = HoldTable::default();
        let (now, minute) = (Micros::new(1_000_000), Duration::from_secs(60));
        let ids: Vec<_> = (0..HOLDS_MAX).map(|_| HoldId::random()).collect();
        ids.iter().for_each(|id| table.insert(*id, (), minute, now).unwrap());
        let one_more = HoldId::random();
        assert_eq!(table.insert(one_more, (), minute, now), Err(TooManyHeld));
        assert!(table.remove(ids[0], now).is_some() && table.remove(ids[0], now).is_none());
        assert_eq!(table.insert(one_more, (), minute, now), Ok(()));
        let later = Micros::new(61_000_000);
        assert!(table.remove(one_more, later).is_none(), "it has expired");
        let holds = table.lock();
        assert!(holds.by_id.is_empty() && holds.by_deadline.is_empty());
    }
}
