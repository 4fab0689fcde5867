//! What happens when the responses of admitted requests end, in virtual time: permits are released, and charges are
//! corrected to the actual cost.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use ratekeeper_core::{Cost, Micros};
use ratekeeper_policy::{Amount, AppliedLimit};
use ratekeeper_stores::{MemoryStore, Op};

/// Requests in flight, and what is left to do when they end.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Permits that are held, by the name of the limit and the key.
    permits: HashMap<(Arc<str>, Box<[u8]>), u64>,
    ends: BinaryHeap<Reverse<End>>,
    next_number: u64,
}

#[derive(Debug)]
struct End {
    at_us: u64,
    /// Of those at the same time, the first comes first.
    number: u64,
    what: EndOf,
}

#[derive(Debug)]
enum EndOf {
    Permit(Arc<str>, Box<[u8]>),
    Charge(Correction),
}

/// A charge that the response corrects.
#[derive(Debug)]
pub(super) struct Correction {
    pub(super) limit: Arc<AppliedLimit>,
    pub(super) key: Box<[u8]>,
    pub(super) cost: Cost,
    pub(super) actual: u64,
    pub(super) charged_at: Micros,
    pub(super) is_borrowed: bool,
}

impl Correction {
    fn apply(&self, store: &MemoryStore, now: Micros) {
        let Some((op, cost)) = Op::correction(self.cost, self.actual, self.charged_at) else {
            return;
        };
        if let Some(charge) = self.limit.charge_to(&self.key, cost) {
            // One charge can always be applied.
            _ = store.apply_now(op, &[charge.borrowed(self.is_borrowed)], now);
        }
    }
}

impl InFlight {
    /// Does what was to do up to this time.
    pub(super) fn advance(&mut self, now: Micros, store: &MemoryStore) {
        while let Some(Reverse(end)) = self.ends.peek()
            && end.at_us <= now.get()
        {
            let Some(Reverse(end)) = self.ends.pop() else { return };
            match end.what {
                EndOf::Permit(name, key) => self.release(name, key),
                EndOf::Charge(correction) => correction.apply(store, Micros::new(end.at_us)),
            }
        }
    }

    /// Takes a permit of a concurrency limit, if one is free. Of an adaptive limit, the highest value counts.
    pub(super) fn acquire(&mut self, limit: &AppliedLimit, key: &[u8]) -> bool {
        let Amount::Concurrency { name, rule } = limit.amount() else { return true };
        let held = self.permits.entry((name.clone(), key.into())).or_default();
        let is_free = *held < rule.max();
        *held += u64::from(is_free);
        is_free
    }

    /// Releases a permit at this time.
    pub(super) fn release_at(&mut self, limit: &AppliedLimit, key: &[u8], at_us: u64) {
        if let Amount::Concurrency { name, .. } = limit.amount() {
            self.push(at_us, EndOf::Permit(name.clone(), key.into()));
        }
    }

    /// Corrects a charge at this time.
    pub(super) fn correct_at(&mut self, correction: Correction, at_us: u64) {
        self.push(at_us, EndOf::Charge(correction));
    }

    fn push(&mut self, at_us: u64, what: EndOf) {
        let number = self.next_number;
        self.next_number += 1;
        self.ends.push(Reverse(End { at_us, number, what }));
    }

    fn release(&mut self, name: Arc<str>, key: Box<[u8]>) {
        let place = (name, key);
        if let Some(held) = self.permits.get_mut(&place) {
            *held -= 1;
            if *held == 0 {
                self.permits.remove(&place);
            }
        }
    }
}

impl PartialEq for End {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for End {}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for End {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_us, self.number).cmp(&(other.at_us, other.number))
    }
}
