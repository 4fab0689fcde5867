//! The backlog: units that this node admitted by itself and that the store has not been charged yet.
//!
//! While the store is unavailable, each node admits its share of a limit. When the store is available again,
//! these units are charged to it, as a debt. Otherwise the store and the shares would both refill, and a
//! store that fails again and again would admit more than the limit.
//!
//! Old units need not be charged. For a window they expire with the window. For a bucket they shrink at the
//! rate of this node's share, but only after the store itself can be full again, because the same time must
//! not refill both. Two fill times are enough: the store never counts more than two bursts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ratekeeper_core::{Cost, Limit, Micros};
use ratekeeper_stores::{Charge, Op, OwnedCharge, Snapshot};

/// How many keys the backlog can have. Units of further keys are counted as dropped.
const KEYS_MAX: usize = 65_536;
/// A key owes at most this many times the quota of its limit, beside debts.
const QUOTAS_MAX: u64 = 2;
/// The fill times after which a bucket's units begin to shrink.
const GRACE_FILLS: u128 = 2;

#[derive(Default)]
pub(super) struct Backlog {
    keys: Mutex<HashMap<Box<[u8]>, Entry>>,
    len: AtomicUsize,
    dropped: AtomicU64,
    reported: AtomicU64,
}

struct Entry {
    charge: OwnedCharge,
    owed: Owed,
}

/// The units that a key owes.
enum Owed {
    /// The state of a limit that was charged only these units.
    Window(Box<Snapshot>),
    /// Units that shrink from that time on.
    Bucket { units: u64, shrinks_from: Micros },
}

impl Backlog {
    /// Returns how many keys owe.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns the units that were charged to the store afterwards.
    pub(super) fn reported(&self) -> u64 {
        self.reported.load(Ordering::Relaxed)
    }

    /// Returns the units that will never be charged, because the backlog was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn count_reported(&self, cost: Cost) {
        self.reported.fetch_add(cost.get(), Ordering::Relaxed);
    }

    /// Adds what one of `nodes` has admitted. Returns whether the backlog was empty before.
    pub(super) fn add(&self, charge: &Charge<'_>, nodes: u32, now: Micros) -> bool {
        let mut keys = self.lock();
        let name = name_of(charge);
        if keys.len() >= KEYS_MAX && !keys.contains_key(&name) {
            keys.retain(|_, entry| entry.due(nodes, now).is_some());
            if keys.len() >= KEYS_MAX {
                self.dropped.fetch_add(charge.amount().get(), Ordering::Relaxed);
                return false;
            }
        }
        let entry = keys.entry(name).or_insert_with(|| Entry::new(charge, now));
        entry.add(charge, nodes, now);
        self.is_first(&keys)
    }

    /// Removes units that the store was charged after all, or that were refunded. Returns how many of them
    /// were not in the backlog: the store has been charged them already, or they have expired.
    pub(super) fn remove(
        &self,
        charge: &Charge<'_>,
        charged_at: Micros,
        now: Micros,
    ) -> Option<Cost> {
        let mut keys = self.lock();
        let Some(entry) = keys.get_mut(&name_of(charge)) else { return Some(charge.amount()) };
        let taken = entry.remove(charge.amount(), charged_at, now);
        Cost::new(charge.amount().get().saturating_sub(taken))
    }

    /// Removes all that this key owes.
    pub(super) fn clear(&self, charge: &Charge<'_>) {
        let mut keys = self.lock();
        keys.remove(&name_of(charge));
        self.is_first(&keys);
    }

    /// Takes what this key owes. The caller charges it to the store, or adds it again.
    pub(super) fn take(&self, charge: &Charge<'_>, nodes: u32, now: Micros) -> Option<OwnedCharge> {
        let mut keys = self.lock();
        let entry = keys.remove(&name_of(charge));
        self.is_first(&keys);
        entry?.due(nodes, now)
    }

    /// Takes what up to `max` keys owe for which `is_wanted` holds.
    pub(super) fn take_some(
        &self,
        max: usize,
        nodes: u32,
        now: Micros,
        is_wanted: impl Fn(&Charge<'_>) -> bool,
    ) -> Vec<OwnedCharge> {
        let mut keys = self.lock();
        let mut left = max;
        let taken: Vec<_> = keys
            .extract_if(|_, entry| {
                let is_taken = left > 0 && is_wanted(&entry.charge.as_charge());
                left -= usize::from(is_taken);
                is_taken
            })
            .filter_map(|(_, entry)| entry.due(nodes, now))
            .collect();
        self.is_first(&keys);
        taken
    }

    /// Updates the length. Returns whether it was 0 before and is not now.
    fn is_first(&self, keys: &HashMap<Box<[u8]>, Entry>) -> bool {
        self.len.swap(keys.len(), Ordering::Relaxed) == 0 && !keys.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Entry>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn new(charge: &Charge<'_>, now: Micros) -> Self {
        let limit = charge.limit();
        let owed = match limit.algorithm().has_burst() {
            true => Owed::Bucket { units: 0, shrinks_from: now },
            false => Owed::Window(Box::new(Snapshot::fresh(limit))),
        };
        // Classes share an entry, so their total is charged, and no guarantee.
        Self { charge: (&charge.under(limit)).into(), owed }
    }

    fn add(&mut self, added: &Charge<'_>, nodes: u32, now: Micros) {
        let charge = self.charge.as_charge();
        let (limit, cost) = (charge.limit(), added.amount());
        self.owed.shrink(limit, nodes, now);
        match &mut self.owed {
            Owed::Window(state) => {
                let _ = state.apply(Op::Charge, &charge.cost(cost), now);
            }
            Owed::Bucket { units, shrinks_from } => {
                if *units == 0 {
                    *shrinks_from = Micros::new(now.get().saturating_add(grace_us(limit)));
                }
                let most = match added.is_overdraft() {
                    true => u64::MAX,
                    false => limit.quota().saturating_mul(QUOTAS_MAX).max(*units),
                };
                *units = units.saturating_add(cost.get()).min(most);
            }
        }
    }

    /// Returns how many units were removed.
    fn remove(&mut self, cost: Cost, charged_at: Micros, now: Micros) -> u64 {
        let charge = self.charge.as_charge();
        let limit = charge.limit();
        match &mut self.owed {
            Owed::Window(state) => {
                let before = used(state, limit, now);
                let _ = state.apply(Op::Refund { charged_at }, &charge.cost(cost), now);
                before.saturating_sub(used(state, limit, now))
            }
            Owed::Bucket { units, .. } => {
                let taken = cost.get().min(*units);
                *units -= taken;
                taken
            }
        }
    }

    /// The charge that the store has missed, if anything is still owed.
    fn due(&self, nodes: u32, now: Micros) -> Option<OwnedCharge> {
        let charge = self.charge.as_charge();
        let limit = charge.limit();
        let units = match &self.owed {
            Owed::Window(state) => used(state, limit, now),
            Owed::Bucket { units, shrinks_from } => {
                units.saturating_sub(expired(limit, nodes, *shrinks_from, now))
            }
        };
        Cost::new(units).map(|units| OwnedCharge::from(&charge.cost(units)))
    }
}

/// The units that the state of a window counts at present, also above its limit: a limit with the same windows
/// and the largest count has the same usage.
fn used(state: &Snapshot, limit: &Limit, now: Micros) -> u64 {
    let largest = COUNTS_MAX.iter().find_map(|count| {
        let rate = limit.rate().with_count(*count).ok()?;
        Limit::new(rate, limit.algorithm()).ok()
    });
    let limit = largest.as_ref().unwrap_or(limit);
    let left = state.clone().apply(Op::Peek, &Charge::new(limit, ""), now).remaining();
    limit.quota().saturating_sub(left)
}

/// The largest counts of a fixed window, a sliding counter and a sliding log.
const COUNTS_MAX: [u64; 3] = [u32::MAX as u64, (1 << 26) - 1, 1_000_000];

impl Owed {
    /// Subtracts the units that have expired by now.
    fn shrink(&mut self, limit: &Limit, nodes: u32, now: Micros) {
        let Self::Bucket { units, shrinks_from } = self else { return };
        let expired = expired(limit, nodes, *shrinks_from, now).min(*units);
        *units -= expired;
        // The time of a whole number of units; the rest counts towards the next unit.
        let took = u128::from(expired) * period_us(limit) * u128::from(nodes);
        let took = took.div_ceil(u128::from(limit.rate().count()));
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        *shrinks_from = Micros::new(shrinks_from.get().saturating_add(took));
    }
}

/// The units that expire between two times at the rate of one node's share.
fn expired(limit: &Limit, nodes: u32, from: Micros, now: Micros) -> u64 {
    let us = u128::from(now.get().saturating_sub(from.get()));
    let units = us * u128::from(limit.rate().count()) / (period_us(limit) * u128::from(nodes));
    u64::try_from(units).unwrap_or(u64::MAX)
}

fn grace_us(limit: &Limit) -> u64 {
    let fill = u128::from(limit.quota()) * period_us(limit) / u128::from(limit.rate().count());
    u64::try_from(fill.saturating_mul(GRACE_FILLS)).unwrap_or(u64::MAX)
}

fn period_us(limit: &Limit) -> u128 {
    limit.rate().period().as_micros().max(1)
}

/// Names what a charge is counted under, injectively.
fn name_of(charge: &Charge<'_>) -> Box<[u8]> {
    let (scope, key) = (charge.scope().name().as_bytes(), charge.key());
    let algorithm = charge.limit().algorithm().name().as_bytes();
    let length = (scope.len() as u64).to_be_bytes();
    [&length[..], scope, algorithm, b" ", key].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000_000_000;

    fn at(ms: u64) -> Micros {
        Micros::new(START + ms * 1_000)
    }

    fn owed(backlog: &Backlog, limit: &Limit, nodes: u32, now: Micros) -> u64 {
        let charge = Charge::new(limit, "k");
        let taken = backlog.take(&charge, nodes, now);
        let units = taken.map_or(0, |owed| owed.as_charge().amount().get());
        if let Some(units) = Cost::new(units) {
            backlog.add(&charge.cost(units), nodes, now);
        }
        units
    }

    #[test]
    fn a_bucket_owes_everything_for_two_fill_times_and_then_shrinks_at_the_rate_of_its_share() {
        // Full in 250 ms.
        let limit = Limit::token_bucket("400/s burst 100").unwrap();
        let backlog = Backlog::default();
        let charge = Charge::new(&limit, "k").cost(Cost::of(40));
        assert!(backlog.add(&charge, 4, at(0)));
        assert!(!backlog.add(&charge, 4, at(100)), "not the first");
        let due = |ms| {
            let keys = backlog.lock();
            let entry = keys.values().next().unwrap();
            entry.due(4, at(ms)).map_or(0, |owed| owed.as_charge().amount().get())
        };
        assert_eq!([due(100), due(500), due(509), due(510), due(600)], [80, 80, 80, 79, 70]);
        assert_eq!([due(1_299), due(1_300), due(100_000)], [1, 0, 0]);
    }

    #[test]
    fn a_window_owes_as_long_as_the_window_lasts() {
        for (limit, ms, expected) in [
            (Limit::fixed_window("10/s").unwrap(), 0, 3),
            (Limit::fixed_window("10/s").unwrap(), 1_000, 0),
            (Limit::sliding_log("10/s").unwrap(), 999, 3),
            (Limit::sliding_log("10/s").unwrap(), 1_000, 0),
            (Limit::sliding_counter("10/s").unwrap(), 999, 3),
            (Limit::sliding_counter("10/s").unwrap(), 2_000, 0),
        ] {
            let backlog = Backlog::default();
            backlog.add(&Charge::new(&limit, "k").cost(Cost::of(3)), 2, at(0));
            assert_eq!(owed(&backlog, &limit, 2, at(ms)), expected, "{limit} after {ms} ms");
        }
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn a_calendar_window_owes_until_its_end() {
        let limit: Limit = "10/calendar hour".parse().unwrap();
        let backlog = Backlog::default();
        // 13:46:40 in UTC.
        backlog.add(&Charge::new(&limit, "k").cost(Cost::of(3)), 2, at(0));
        assert_eq!(owed(&backlog, &limit, 2, at(799_999)), 3);
        assert_eq!(owed(&backlog, &limit, 2, at(800_000)), 0);
    }

    #[test]
    fn what_was_charged_after_all_is_not_owed() {
        for limit in [
            Limit::token_bucket("10/s").unwrap(),
            Limit::fixed_window("10/s").unwrap(),
            Limit::sliding_log("10/s").unwrap(),
        ] {
            let (backlog, charge) = (Backlog::default(), Charge::new(&limit, "k"));
            let nothing_owed = backlog.remove(&charge, at(0), at(0));
            assert_eq!(nothing_owed, Some(Cost::ONE), "{limit}");
            backlog.add(&charge.cost(Cost::of(3)), 1, at(0));
            assert_eq!(backlog.remove(&charge, at(0), at(1)), None, "{limit}");
            assert_eq!(owed(&backlog, &limit, 1, at(2)), 2, "{limit}");
            let too_much = backlog.remove(&charge.cost(Cost::of(5)), at(2), at(2));
            assert_eq!(too_much, Some(Cost::of(3)), "{limit}");
            backlog.clear(&charge);
            assert_eq!((owed(&backlog, &limit, 1, at(2)), backlog.len()), (0, 0));
        }
    }

    /// What was used already, and charged without a check.
    #[test]
    fn a_debt_is_owed_in_full_and_removed_in_full() {
        for limit in [
            Limit::token_bucket("10/day").unwrap(),
            Limit::fixed_window("10/day").unwrap(),
            Limit::sliding_log("10/day").unwrap(),
            Limit::sliding_counter("10/day").unwrap(),
        ] {
            let backlog = Backlog::default();
            let report = Charge::new(&limit, "k").cost(Cost::of(60));
            let report = report.kind(ratekeeper_stores::ChargeKind::Overdraft);
            (0..5).for_each(|ms| _ = backlog.add(&report, 1, at(ms)));
            assert_eq!(backlog.remove(&report, at(4), at(5)), None, "{limit}");
            let taken = backlog.take(&report, 1, at(5));
            assert_eq!(taken.unwrap().as_charge().amount(), Cost::of(240), "{limit}");
        }
    }

    #[test]
    fn keys_and_what_each_owes_are_bounded() {
        let limit = Limit::token_bucket("10/s").unwrap();
        let backlog = Backlog::default();
        for key in 0..KEYS_MAX {
            backlog.add(&Charge::new(&limit, &key.to_be_bytes()), 1, at(0));
        }
        assert!(!backlog.add(&Charge::new(&limit, "one too many").cost(Cost::of(7)), 1, at(0)));
        assert_eq!((backlog.len(), backlog.dropped()), (KEYS_MAX, 7));
        backlog.add(&Charge::new(&limit, "later"), 1, at(60_000));
        assert_eq!((backlog.len(), backlog.dropped()), (1, 7), "the others have expired");
        let charge = Charge::new(&limit, "later").cost(Cost::of(1_000));
        backlog.add(&charge, 1, at(60_000));
        let taken = backlog.take(&charge, 1, at(60_000)).unwrap();
        assert_eq!(taken.as_charge().amount(), Cost::of(20));
    }
}
