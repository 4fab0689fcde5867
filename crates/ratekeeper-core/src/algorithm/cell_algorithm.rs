//! What the algorithms over [`Cell`]s share: decode the cell, decide, add or refund, encode.

use crate::cell::Cell;
use crate::cost::Cost;
use crate::decision::{Decision, NEVER};
use crate::time::Micros;

/// An algorithm whose state is a [`Cell`]. The implementations compute; the functions below decide
/// and write the cell.
pub trait CellAlgorithm {
    /// The time of a check, with what can be computed from it before the cell is known.
    type Now: Copy;
    /// The decoded state at one point in time.
    type State;

    fn prepare(&self, now: u64) -> Self::Now;
    fn decode(&self, cell: Cell, now: Self::Now) -> Self::State;
    fn encode(&self, state: &Self::State) -> Cell;

    /// Was the cell written under another limit? Left alone, it would recover at the rate of that
    /// limit, so even a denied check rewrites it. This keeps the reported wait exact.
    fn is_from_other_limit(&self, _cell: Cell, _state: &Self::State) -> bool {
        false
    }

    /// The largest cost that can be admitted at once.
    fn quota(&self) -> u64;
    /// Is `cost`, which is at most the quota, admitted now?
    fn fits(&self, state: &Self::State, cost: u64) -> bool;
    /// How long until `cost`, which is at most the quota, is admitted; 0 if it is admitted now.
    fn wait_us(&self, state: &Self::State, cost: u64) -> u64;
    /// Adds a cost that is admitted.
    fn add(&self, state: &mut Self::State, cost: u64);
    /// Adds a cost that may not be admitted, up to a debt of `debt_max` beyond the limit and to what a
    /// cell can hold. Returns whether the maximum debt has cut it.
    fn add_debt(&self, state: &mut Self::State, cost: u64, debt_max: u64) -> bool;
    fn refund(&self, state: &mut Self::State, cost: u64, charged_at: u64);

    fn remaining(&self, state: &Self::State) -> u64;
    fn reset_after_us(&self, state: &Self::State) -> u64;
    /// How long a request that is admitted now has to be delayed.
    fn delay_us(&self, _state: &Self::State) -> u64 {
        0
    }

    /// The word of a cell that a check changes if it changes no other. The functions below are for
    /// algorithms that have one.
    const UPDATED_WORD: Option<CellWord> = None;

    /// The other word of the cells that [`CellAlgorithm::decode_word`] decodes.
    fn other_word(&self, _now: Self::Now) -> u64 {
        unreachable!("a check changes both words")
    }

    /// Decodes a cell from the updated word alone.
    fn decode_word(&self, _word: u64, _now: Self::Now) -> Self::State {
        unreachable!("a check changes both words")
    }

    /// Returns the updated word after `cost` was added.
    fn encode_word(&self, _before: u64, _state: &Self::State, _cost: u64) -> u64 {
        unreachable!("a check changes both words")
    }
}

/// One of the two words of a cell ([`Cell::to_words`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellWord {
    /// The time and the time-to-live.
    First,
    /// The algorithm's data.
    Second,
}

/// Checks by compare-and-swap, for stores that share cells between threads.
///
/// A check changes the whole cell ([`CompareAndSwap::check_cell`]). Most checks of a known key change
/// one word only; then a store can compare and swap that word alone ([`CompareAndSwap::check_word`])
/// if the other word has the expected value.
pub trait CompareAndSwap {
    /// The time of a check, with what can be computed from it before the cell is known.
    type Now: Copy;

    /// The word that a check of a known key changes; `None` if it may change both.
    const UPDATED_WORD: Option<CellWord>;

    /// Charges `cost` if it is admitted. Calls `swap` with the next cell, or with `None` if the
    /// cell does not change. Returns `None` if `swap` returns `false`, because another thread has
    /// changed the cell.
    fn check_cell(
        &self,
        cell: Cell,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<Cell>) -> bool,
    ) -> Option<Decision>;

    /// Prepares a check at `now`. It needs no cell, so that a store can prepare while the cell is
    /// loaded from memory.
    fn prepare(&self, now: Micros) -> Self::Now;

    /// Returns the other word of the cells that [`CompareAndSwap::check_word`] can check.
    fn other_word(&self, now: Self::Now) -> u64;

    /// [`CompareAndSwap::check_cell`] on the updated word alone. Preserves the bits of a second
    /// word that belong to the store ([`Cell::to_words`]).
    fn check_word(
        &self,
        word: u64,
        cost: Cost,
        now: Self::Now,
        swap: impl FnOnce(Option<u64>) -> bool,
    ) -> Option<Decision>;
}

impl<A: CellAlgorithm> CompareAndSwap for A {
    type Now = A::Now;

    const UPDATED_WORD: Option<CellWord> = A::UPDATED_WORD;

    #[inline(always)]
    fn check_cell(
        &self,
        cell: Cell,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<Cell>) -> bool,
    ) -> Option<Decision> {
        check_and_swap(self, cell, cost, now, swap)
    }

    #[inline(always)]
    fn prepare(&self, now: Micros) -> A::Now {
        CellAlgorithm::prepare(self, now.get())
    }

    #[inline(always)]
    fn other_word(&self, now: A::Now) -> u64 {
        CellAlgorithm::other_word(self, now)
    }

    #[inline(always)]
    fn check_word(
        &self,
        word: u64,
        cost: Cost,
        now: A::Now,
        swap: impl FnOnce(Option<u64>) -> bool,
    ) -> Option<Decision> {
        let swap = |state: &A::State, is_charged: bool| {
            swap(is_charged.then(|| self.encode_word(word, state, cost.get())))
        };
        decide(self, self.decode_word(word, now), cost, swap)
    }
}

#[inline]
pub(super) fn check<A: CellAlgorithm>(
    algorithm: &A,
    cell: &mut Cell,
    cost: Cost,
    now: Micros,
) -> Decision {
    let before = *cell;
    let swap = |next: Option<Cell>| {
        *cell = next.unwrap_or(before);
        true
    };
    check_and_swap(algorithm, before, cost, now, swap).expect("the swap always succeeds")
}

/// Decides, swaps the cell, and only then computes the rest of the decision.
#[inline]
fn check_and_swap<A: CellAlgorithm>(
    algorithm: &A,
    cell: Cell,
    cost: Cost,
    now: Micros,
    swap: impl FnOnce(Option<Cell>) -> bool,
) -> Option<Decision> {
    let state = algorithm.decode(cell, algorithm.prepare(now.get()));
    let is_from_other_limit = algorithm.is_from_other_limit(cell, &state);
    let swap = |state: &A::State, is_charged: bool| {
        swap((is_charged || is_from_other_limit).then(|| algorithm.encode(state)))
    };
    decide(algorithm, state, cost, swap)
}

/// [`check_and_swap`] on a decoded state. `swap` gets the next state, and whether it was charged.
#[inline(always)]
fn decide<A: CellAlgorithm>(
    algorithm: &A,
    mut state: A::State,
    cost: Cost,
    swap: impl FnOnce(&A::State, bool) -> bool,
) -> Option<Decision> {
    if is_within_quota(algorithm, cost) && algorithm.fits(&state, cost.get()) {
        let delay_us = algorithm.delay_us(&state);
        algorithm.add(&mut state, cost.get());
        // `if` instead of `then`, here and below: with two closures the compiler does not inline
        // `report`, and computes fields that the caller ignores.
        let is_swapped = swap(&state, true);
        return if is_swapped { Some(report(algorithm, &state, 0, delay_us)) } else { None };
    }
    // The wait is at least 1 anyway. `max` lets the compiler know: a caller that reads only
    // `allowed()` then does not compute the wait.
    let wait_us = wait_us(algorithm, &state, cost).max(1);
    if swap(&state, false) { Some(report(algorithm, &state, wait_us, 0)) } else { None }
}

#[inline]
pub(super) fn peek<A: CellAlgorithm>(
    algorithm: &A,
    cell: Cell,
    cost: Cost,
    now: Micros,
) -> Decision {
    let state = algorithm.decode(cell, algorithm.prepare(now.get()));
    let wait_us = wait_us(algorithm, &state, cost);
    let delay_us = if wait_us == 0 { algorithm.delay_us(&state) } else { 0 };
    report(algorithm, &state, wait_us, delay_us)
}

pub(super) fn charge<A: CellAlgorithm>(
    algorithm: &A,
    cell: &mut Cell,
    cost: Cost,
    debt_max: u64,
    now: Micros,
) -> Decision {
    let mut state = algorithm.decode(*cell, algorithm.prepare(now.get()));
    let delay_us = algorithm.delay_us(&state);
    let is_cut = algorithm.add_debt(&mut state, cost.get(), debt_max);
    *cell = algorithm.encode(&state);
    report(algorithm, &state, 0, delay_us).with_cut(is_cut)
}

pub(super) fn convert<A: CellAlgorithm>(algorithm: &A, cell: &mut Cell, now: Micros) {
    let state = algorithm.decode(*cell, algorithm.prepare(now.get()));
    if algorithm.is_from_other_limit(*cell, &state) {
        *cell = algorithm.encode(&state);
    }
}

pub(super) fn refund<A: CellAlgorithm>(
    algorithm: &A,
    cell: &mut Cell,
    cost: Cost,
    charged_at: Micros,
    now: Micros,
) -> Decision {
    let mut state = algorithm.decode(*cell, algorithm.prepare(now.get()));
    algorithm.refund(&mut state, cost.get(), charged_at.get());
    *cell = algorithm.encode(&state);
    report(algorithm, &state, 0, 0)
}

#[inline]
fn wait_us<A: CellAlgorithm>(algorithm: &A, state: &A::State, cost: Cost) -> u64 {
    match is_within_quota(algorithm, cost) {
        true => algorithm.wait_us(state, cost.get()),
        false => NEVER,
    }
}

#[inline]
fn is_within_quota<A: CellAlgorithm>(algorithm: &A, cost: Cost) -> bool {
    cost.get() == 1 || cost.get() <= algorithm.quota() // every quota is at least 1
}

#[inline(always)] // so that the compiler removes the fields that the caller ignores
fn report<A: CellAlgorithm>(
    algorithm: &A,
    state: &A::State,
    wait_us: u64,
    delay_us: u64,
) -> Decision {
    Decision {
        wait_us,
        limit: algorithm.quota(),
        remaining: algorithm.remaining(state),
        reset_after_us: algorithm.reset_after_us(state),
        delay_us,
    }
}
