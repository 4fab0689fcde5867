//! The check of one charge, without a lock in nearly all cases.
//!
//! 1. The *fast path*, inlined in the caller: the key is in its first slot, and the check changes one
//!    word of its cell. The home line is prefetched before the clock is read, so that a processor has
//!    the lines of several checks on their way at once, which on many keys is what counts.
//! 2. The key is elsewhere in its home line or beyond.
//! 3. A new window begins: both words of a window cell change, still without the lock.
//! 4. The key is new, its cell was written under another limit, or another thread was faster:
//!    [`Table::update`], with the lock of its line.

use ratekeeper_core::algorithm::CompareAndSwap;
use ratekeeper_core::{CellEvaluator, Cost, Decision, Evaluator, Micros};

use super::MemoryStore;
use super::line::{Line, LoadedWord};
use super::slot::SlotState;
use super::table::{Address, Table};
use crate::charge::{Charge, ChargeKind};
use crate::store::Op;

impl MemoryStore {
    /// Charges the cost if the limit allows it.
    #[inline]
    pub fn check(&self, charge: &Charge<'_>, now: Micros) -> Decision {
        match self.check_fast(charge, || Some(now)) {
            Some(decision) => decision,
            None => self.check_slow(charge, now),
        }
    }

    /// Charges the cost if the limit allows it, with the time read while the key's state is loaded from memory.
    ///
    /// Returns `None`, and does nothing, if the fast path does not apply: the clock returns no time,
    /// the algorithm has none (the sliding log, and buckets of a few very fine rates), the limit has guarantees, the key is new
    /// or in a new window, or another thread changes it. Then use [`MemoryStore::check_slow`].
    #[inline(always)] // so that the compiler removes what the caller does not read
    pub fn check_fast(
        &self,
        charge: &Charge<'_>,
        clock: impl FnOnce() -> Option<Micros>,
    ) -> Option<Decision> {
        let Evaluator::Cell(evaluator) = charge.limit.evaluator() else { return None };
        let is_plain = charge.kind == ChargeKind::Full && charge.class.is_none();
        if matches!(evaluator, CellEvaluator::Gcra(_)) || !is_plain {
            return None;
        }
        let address = self.hasher.address(charge);
        let home = self.table.prefetch_home(address);
        let now = clock()?;
        let check = CellCheck { table: &self.table, address, home, cost: charge.cost, now };
        match evaluator {
            CellEvaluator::ScaledGcra(gcra) => check.check_word(gcra),
            CellEvaluator::FixedWindow(window) => check.check_word(window),
            CellEvaluator::SlidingCounter(counter) => check.check_word(counter),
            CellEvaluator::CalendarWindow(window) => check.check_word(window),
            CellEvaluator::Gcra(_) => None,
        }
    }

    /// Charges the cost if the limit allows it, without trying the fast path: for when [`MemoryStore::check_fast`]
    /// returned `None`.
    #[inline(never)]
    pub fn check_slow(&self, charge: &Charge<'_>, now: Micros) -> Decision {
        let Evaluator::Cell(evaluator) = charge.limit.evaluator() else {
            return self.apply_locked(Op::Check, charge, now);
        };
        if charge.kind != ChargeKind::Full || charge.class.is_some() {
            return self.apply_locked(Op::Check, charge, now);
        }
        let (address, cost) = (self.hasher.address(charge), charge.cost);
        match evaluator {
            CellEvaluator::ScaledGcra(gcra) => self.check_cell(gcra, address, cost, now),
            CellEvaluator::FixedWindow(window) => self.check_window(window, address, cost, now),
            CellEvaluator::SlidingCounter(counter) => {
                self.check_window(counter, address, cost, now)
            }
            CellEvaluator::CalendarWindow(window) => self.check_window(window, address, cost, now),
            CellEvaluator::Gcra(gcra) => self.check_cell(gcra, address, cost, now),
        }
    }

    /// Checks a window cell in which perhaps a new window begins, without the lock of its line.
    #[inline]
    fn check_window(
        &self,
        algorithm: &impl CompareAndSwap,
        address: Address,
        cost: Cost,
        now: Micros,
    ) -> Decision {
        let decision = self.table.find_window_cell(address).and_then(|cell| {
            algorithm.check_cell(cell.cell(), cost, now, |next| cell.commit(next))
        });
        match decision {
            Some(decision) => decision,
            None => self.update_cell(algorithm, address, cost, now),
        }
    }

    /// Checks a cell with the lock of its line.
    #[inline]
    fn check_cell(
        &self,
        algorithm: &impl CompareAndSwap,
        address: Address,
        cost: Cost,
        now: Micros,
    ) -> Decision {
        let decision = self.table.find_at_home(address).and_then(|slot| {
            let commit = |next: Option<_>| slot.commit(next.map(SlotState::from));
            algorithm.check_cell(slot.state().cell(), cost, now, commit)
        });
        match decision {
            Some(decision) => decision,
            None => self.update_cell(algorithm, address, cost, now),
        }
    }

    /// Checks a cell wherever it is, also if the key is new.
    #[cold]
    fn update_cell(
        &self,
        algorithm: &impl CompareAndSwap,
        address: Address,
        cost: Cost,
        now: Micros,
    ) -> Decision {
        let (decision, displaced) = self.table.update(address, now.get(), |state, now| {
            let mut next = None;
            let swap = |cell: Option<_>| {
                next = cell.map(SlotState::from);
                true
            };
            let decision = algorithm.check_cell(state.cell(), cost, Micros::new(now), swap);
            (next, decision.expect("the swap always succeeds"))
        });
        self.free(displaced);
        decision
    }
}

/// A check of a key whose state is a cell.
struct CellCheck<'a> {
    table: &'a Table,
    address: Address,
    home: &'a Line,
    cost: Cost,
    now: Micros,
}

impl CellCheck<'_> {
    /// Checks the one word that changes.
    #[inline(always)]
    fn check_word<A: CompareAndSwap>(self, algorithm: &A) -> Option<Decision> {
        let Self { table, address, home, cost, now } = self;
        let (now, tag) = (algorithm.prepare(now), address.tag());
        let (updated, other) = (A::UPDATED_WORD?, algorithm.other_word(now));
        let check = |word: LoadedWord<'_>| {
            algorithm.check_word(word.get(), cost, now, |next| word.commit(updated, next))
        };
        // Two calls: with one, whose word comes from either, 1M keys take a seventh longer.
        match home.word_in(tag.first_slot(), tag, updated, other) {
            Some(word) => check(word),
            None => check(table.find_word(home, address, updated, other)?),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;
    use ratekeeper_core::algorithm::CellWord;
    use ratekeeper_core::{ALGORITHMS, Cell, Limit, Rate};

    use super::super::slot::{TAKEN, next_busy};
    use super::*;
    use crate::snapshot::Snapshot;

    const START: u64 = 1_700_000_000_000_000;

    /// The windows of [`trace`] begin and end around [`START`], which is 22:13:20 in UTC.
    fn calendar_limit() -> impl Strategy<Value = Limit> {
        let period =
            proptest::sample::select(vec!["hour", "day in Asia/Kolkata", "month from day 15"]);
        (1..2_000u64, period)
            .prop_map(|(count, period)| format!("{count}/calendar {period}").parse().unwrap())
    }

    fn limits() -> impl Strategy<Value = Limit> {
        prop_oneof![8 => plain_limit(), 1 => calendar_limit()]
    }

    fn plain_limit() -> impl Strategy<Value = Limit> {
        let period_us = prop_oneof![1..5_000u64, Just(1_000_000), Just(86_400_000_000)];
        let burst = proptest::option::of(1..2_000u64);
        (proptest::sample::select(ALGORITHMS), 1..2_000u64, period_us, burst).prop_map(
            |(algorithm, count, period_us, burst)| {
                let rate = Rate::new(count, std::time::Duration::from_micros(period_us)).unwrap();
                let rate = match burst {
                    Some(burst) if algorithm.has_burst() => rate.with_burst(burst).unwrap(),
                    _ => rate,
                };
                Limit::new(rate, algorithm).unwrap()
            },
        )
    }

    /// Times and costs: bursts, and pauses of about a window.
    fn trace() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let step = prop_oneof![3 => Just(0u64), 2 => 0..500u64, 1 => 0..10_000u64];
        let cost = prop_oneof![4 => Just(1u64), 1 => 1..3_000u64];
        proptest::collection::vec((step, cost), 1..60)
    }

    /// What a check of one word makes of a cell with this generation; `None` if it does not apply.
    fn check_word<A: CompareAndSwap>(
        algorithm: &A,
        cell: Cell,
        generation: u64,
        (cost, now): (Cost, Micros),
    ) -> Option<(Decision, [u64; 2])> {
        let mut words = cell.to_words();
        let (updated, other, now) = match A::UPDATED_WORD? {
            CellWord::First => (0, words[1], algorithm.prepare(now)),
            CellWord::Second => (1, words[0], algorithm.prepare(now)),
        };
        if other != algorithm.other_word(now) {
            return None;
        }
        words[updated] |= generation;
        let mut next = words[updated];
        let decision = algorithm.check_word(words[updated], cost, now, |word| {
            next = word.unwrap_or(next);
            true
        });
        words[updated] = next;
        Some((decision.expect("the swap always succeeds"), words))
    }

    fn check_word_of(
        evaluator: &CellEvaluator,
        cell: Cell,
        generation: u64,
        check: (Cost, Micros),
    ) -> Option<(Decision, [u64; 2])> {
        match evaluator {
            CellEvaluator::ScaledGcra(gcra) => check_word(gcra, cell, 0, check),
            CellEvaluator::FixedWindow(window) => check_word(window, cell, generation, check),
            CellEvaluator::SlidingCounter(counter) => check_word(counter, cell, generation, check),
            CellEvaluator::CalendarWindow(window) => check_word(window, cell, generation, check),
            CellEvaluator::Gcra(_) => None,
        }
    }

    /// Is the check of a marker instead of a word denied, so that it fails when it commits?
    fn denies_marker<A: CompareAndSwap>(algorithm: &A, (cost, now): (Cost, Micros)) -> bool {
        let marker = match A::UPDATED_WORD {
            Some(CellWord::First) => TAKEN,
            Some(CellWord::Second) => next_busy(0),
            None => return true,
        };
        let now = algorithm.prepare(now);
        let mut is_swapped = false;
        let decision = algorithm.check_word(marker, cost, now, |next| {
            is_swapped = next.is_some();
            false
        });
        decision.is_none() && !is_swapped
    }

    proptest! {
        #[test]
        fn a_check_of_one_word_agrees_with_the_check_of_the_cell(
            limit in limits(), trace in trace(), generation in 0..1024u64,
        ) {
            let Some(evaluator) = limit.cell_evaluator() else { return Ok(()) };
            let (mut cell, mut now) = (Cell::EMPTY, START);
            let generation = generation << 54;
            for (step, cost) in trace {
                now += step;
                let check = (Cost::new(cost).unwrap(), Micros::new(now));
                let by_word = check_word_of(evaluator, cell, generation, check);
                let decision = evaluator.check(&mut cell, check.0, check.1);
                if let Some((by_word, words)) = by_word {
                    prop_assert_eq!(by_word, decision, "{} at {}", limit, now);
                    prop_assert_eq!(SlotState::from_words(words).cell(), cell);
                    let has_generation = cell.updatable_word() == Some(CellWord::Second);
                    let kept = if has_generation { words[1] & !((1 << 54) - 1) } else { generation };
                    prop_assert_eq!(kept, generation, "the generation is preserved");
                }
            }
        }

        #[test]
        fn a_check_of_a_marker_is_denied_and_never_committed(
            limit in limits(), cost in 1..3_000u64, now in 0..Micros::MAX.get(),
        ) {
            let check = (Cost::new(cost).unwrap(), Micros::new(now));
            let is_denied = match limit.cell_evaluator() {
                Some(CellEvaluator::ScaledGcra(gcra)) => denies_marker(gcra, check),
                Some(CellEvaluator::FixedWindow(window)) => denies_marker(window, check),
                Some(CellEvaluator::SlidingCounter(counter)) => denies_marker(counter, check),
                Some(CellEvaluator::CalendarWindow(window)) => denies_marker(window, check),
                _ => true,
            };
            prop_assert!(is_denied, "{}", limit);
        }

        /// Checks on the fast path mixed with operations that take the lock, on a few keys of a
        /// table so small that they share lines.
        #[test]
        fn the_store_agrees_with_the_core(limit in limits(), trace in trace(), other in limits()) {
            let store = MemoryStore::with_capacity(1);
            let other = other.named(limit.name());
            let keys = ["a", "b", "c", "d", "e"];
            let mut states = keys.map(|_| Snapshot::fresh(&limit));
            let is_same = other.algorithm() == limit.algorithm();
            let mut now = START;
            for (i, (step, cost)) in trace.into_iter().enumerate() {
                now += step;
                let (key, at) = ((i * 7 + cost as usize) % keys.len(), Micros::new(now));
                // Now and then under another limit of the same name, so that cells are converted.
                let limit = if is_same && i % 11 == 10 { &other } else { &limit };
                let op = match i % 5 {
                    0 => Op::Charge,
                    3 => Op::Refund { charged_at: at },
                    _ => Op::Check,
                };
                let cost = Cost::new(cost).unwrap();
                let decision = store.apply_one(op, &Charge::new(limit, keys[key]).cost(cost), at);
                let expected = states[key].apply(op, &Charge::new(limit, keys[key]).cost(cost), at);
                prop_assert_eq!(decision, expected, "{:?} {} at {}", op, limit, now);
            }
        }
    }

    #[test]
    fn without_a_time_or_a_fast_path_nothing_is_done() {
        let store = MemoryStore::with_capacity(10);
        let now = Micros::new(START);
        for (limit, has_fast_path) in [
            (Limit::token_bucket("10/s").unwrap(), true),
            (Limit::leaky_bucket("10/s").unwrap(), true),
            (Limit::fixed_window("10/s").unwrap(), true),
            (Limit::sliding_counter("10/s").unwrap(), true),
            (Limit::fixed_window("10/calendar day in Europe/Berlin").unwrap(), true),
            (Limit::sliding_log("10/s").unwrap(), false),
            (Limit::token_bucket("1031/1001ms burst 10").unwrap(), false),
        ] {
            let charge = Charge::new(&limit, "k");
            assert_eq!(store.check_fast(&charge, || None), None, "{limit}");
            assert_eq!(store.apply_one(Op::Peek, &charge, now).remaining(), 10, "{limit}");
            assert_eq!(store.check_fast(&charge, || Some(now)), None, "{limit}: a new key");
            assert_eq!(store.check(&charge, now).remaining(), 9, "{limit}");
            let checked = store.check_fast(&charge, || Some(now));
            assert_eq!(checked.is_some(), has_fast_path, "{limit}");
            let used = 1 + u64::from(has_fast_path);
            assert_eq!(store.apply_one(Op::Peek, &charge, now).remaining(), 10 - used, "{limit}");
            assert_eq!(store.check_slow(&charge, now).remaining(), 9 - used, "{limit}");
        }
    }
}
