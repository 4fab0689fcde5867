//! What callers hold in this process until they come back: reservations, and permits that are not in a
//! shared store. Bounded, and each has a deadline.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// More than these are refused.
pub(super) const HELD_MAX: usize = 100_000;

/// Something that is held.
pub(super) enum Thing {
    Reservation(Box<Reserved>),
    /// Given back when it is dropped.
    Permit(#[expect(dead_code, reason = "held for what its drop does")] ratekeeper::Permit),
}

/// An estimate that was charged.
pub(super) struct Reserved {
    pub(super) check: super::ask::Check,
    pub(super) receipt: ratekeeper::Receipt,
}

/// Things by their ids.
#[derive(Default)]
pub(super) struct Held {
    things: Mutex<Things>,
}

#[derive(Default)]
struct Things {
    by_id: HashMap<String, (u64, Thing)>,
    by_deadline: BTreeSet<(u64, String)>,
}

impl Held {
    /// Holds it up to that time, and tells under which id; `None` if there are too many.
    pub(super) fn put(&self, thing: Thing, deadline_us: u64, now_us: u64) -> Option<String> {
        let mut things = self.things.lock().unwrap_or_else(PoisonError::into_inner);
        let over = things.let_go(now_us);
        if things.by_id.len() >= HELD_MAX {
            return None;
        }
        let id = unguessable();
        things.by_deadline.insert((deadline_us, id.clone()));
        things.by_id.insert(id.clone(), (deadline_us, thing));
        drop(things);
        drop(over);
        Some(id)
    }

    /// Takes it with its deadline, if it is still held, and what the caller thinks it is.
    pub(super) fn take(
        &self,
        id: &str,
        now_us: u64,
        is_meant: impl Fn(&Thing) -> bool,
    ) -> Option<(u64, Thing)> {
        let mut things = self.things.lock().unwrap_or_else(PoisonError::into_inner);
        let over = things.let_go(now_us);
        let is_there = things.by_id.get(id).is_some_and(|(_, thing)| is_meant(thing));
        let taken = is_there.then(|| things.by_id.remove(id)).flatten();
        if let Some((deadline_us, _)) = &taken {
            things.by_deadline.remove(&(*deadline_us, id.to_string()));
        }
        drop(things);
        drop(over);
        taken
    }

    /// Holds again what was taken in vain.
    pub(super) fn put_back(&self, id: &str, thing: Thing, deadline_us: u64) {
        let mut things = self.things.lock().unwrap_or_else(PoisonError::into_inner);
        things.by_deadline.insert((deadline_us, id.to_string()));
        things.by_id.insert(id.to_string(), (deadline_us, thing));
    }

    /// Lets go of what is overdue.
    pub(super) fn sweep(&self, now_us: u64) {
        let over = self.things.lock().unwrap_or_else(PoisonError::into_inner).let_go(now_us);
        drop(over);
    }
}

/// 128 random bits.
fn unguessable() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    format!("{:032x}", u128::from_ne_bytes(bytes))
}

impl Things {
    /// What is dropped may want to be, outside of the lock.
    fn let_go(&mut self, now_us: u64) -> Vec<Thing> {
        let mut over = Vec::new();
        while let Some((deadline, _)) = self.by_deadline.first()
            && *deadline <= now_us
            && let Some((_, id)) = self.by_deadline.pop_first()
        {
            over.extend(self.by_id.remove(&id).map(|(_, thing)| thing));
        }
        over
    }
}
