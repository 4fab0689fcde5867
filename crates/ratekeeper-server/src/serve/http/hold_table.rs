//! Reservations and permits that callers hold in this process. Their number is bounded, and each has a
//! deadline. Permits of a shared store are held there instead.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::request::RateCheck;

/// The most reservations and permits that are held at a time.
pub(super) const HOLDS_MAX: usize = 100_000;

/// What a caller holds.
pub(super) enum Hold {
    Reservation(Box<ReservedCharge>),
    /// Released when it is dropped.
    Permit(#[expect(dead_code, reason = "held for the effect of its drop")] ratekeeper::Permit),
}

/// An estimate that was charged.
pub(super) struct ReservedCharge {
    pub(super) check: RateCheck,
    pub(super) receipt: ratekeeper::Receipt,
}

/// Holds by their ids.
#[derive(Default)]
pub(super) struct HoldTable {
    holds: Mutex<Holds>,
}

#[derive(Default)]
struct Holds {
    by_id: HashMap<String, (u64, Hold)>,
    by_deadline: BTreeSet<(u64, String)>,
}

impl HoldTable {
    /// Inserts a hold that ends at `deadline_us`, and returns its id; `None` if the table is full.
    pub(super) fn insert(&self, hold: Hold, deadline_us: u64, now_us: u64) -> Option<String> {
        let mut holds = self.lock();
        let expired = holds.remove_expired(now_us);
        if holds.by_id.len() >= HOLDS_MAX {
            return None;
        }
        let id = random_id();
        holds.by_deadline.insert((deadline_us, id.clone()));
        holds.by_id.insert(id.clone(), (deadline_us, hold));
        drop(holds);
        drop(expired);
        Some(id)
    }

    /// Removes a hold and returns it with its deadline, if there is one that is `of_kind`.
    pub(super) fn remove(
        &self,
        id: &str,
        now_us: u64,
        of_kind: impl Fn(&Hold) -> bool,
    ) -> Option<(u64, Hold)> {
        let mut holds = self.lock();
        let expired = holds.remove_expired(now_us);
        let is_held = holds.by_id.get(id).is_some_and(|(_, hold)| of_kind(hold));
        let removed = is_held.then(|| holds.by_id.remove(id)).flatten();
        if let Some((deadline_us, _)) = &removed {
            holds.by_deadline.remove(&(*deadline_us, id.to_string()));
        }
        drop(holds);
        drop(expired);
        removed
    }

    /// Inserts a removed hold again, under the same id and deadline.
    pub(super) fn reinsert(&self, id: &str, hold: Hold, deadline_us: u64) {
        let mut holds = self.lock();
        holds.by_deadline.insert((deadline_us, id.to_string()));
        holds.by_id.insert(id.to_string(), (deadline_us, hold));
    }

    /// Drops the holds whose deadline has passed.
    pub(super) fn sweep(&self, now_us: u64) {
        let expired = self.lock().remove_expired(now_us);
        drop(expired);
    }

    fn lock(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holds {
    /// Removes what has expired, for the caller to drop after it has released the lock.
    fn remove_expired(&mut self, now_us: u64) -> Vec<Hold> {
        let mut expired = Vec::new();
        while let Some((deadline, _)) = self.by_deadline.first()
            && *deadline <= now_us
            && let Some((_, id)) = self.by_deadline.pop_first()
        {
            expired.extend(self.by_id.remove(&id).map(|(_, hold)| hold));
        }
        expired
    }
}

/// Returns 128 random bits, which cannot be guessed.
fn random_id() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    format!("{:032x}", u128::from_ne_bytes(bytes))
}
