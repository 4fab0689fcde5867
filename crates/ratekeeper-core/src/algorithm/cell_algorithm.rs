//! What the algorithms over [`Cell`]s share: decode the cell, decide, add or refund, encode.

use crate::cell::Cell;
use crate::cost::Cost;
use crate::decision::{Decision, NEVER};
use crate::time::Micros;

/// An algorithm whose state is a [`Cell`]. The implementations compute; the functions below decide
/// and write the cell.
pub(super) trait CellAlgorithm {
    /// The decoded state at one point in time.
    type State;

    fn decode(&self, cell: Cell, now: u64) -> Self::State;
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
    fn add(&self, state: &mut Self::State, cost: u64);
    /// Caps a debt, which is added without a check, at what a cell can hold.
    fn cap_debt(&self, _state: &mut Self::State) {}
    fn refund(&self, state: &mut Self::State, cost: u64, charged_at: u64);

    fn remaining(&self, state: &Self::State) -> u64;
    fn reset_after_us(&self, state: &Self::State) -> u64;
    /// How long a request that is admitted now has to be delayed.
    fn delay_us(&self, _state: &Self::State) -> u64 {
        0
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
pub(super) fn check_and_swap<A: CellAlgorithm>(
    algorithm: &A,
    cell: Cell,
    cost: Cost,
    now: Micros,
    swap: impl FnOnce(Option<Cell>) -> bool,
) -> Option<Decision> {
    let state = algorithm.decode(cell, now.get());
    let is_from_other_limit = algorithm.is_from_other_limit(cell, &state);
    let swap = |state: &A::State, is_charged: bool| {
        swap((is_charged || is_from_other_limit).then(|| algorithm.encode(state)))
    };
    decide(algorithm, state, cost, swap)
}

/// [`check_and_swap`] on a decoded state. `swap` gets the next state, and whether it was charged.
#[inline(always)]
pub(super) fn decide<A: CellAlgorithm>(
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
    // The wait is at least 1 anyway. `max` tells the compiler so: a caller that reads only
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
    let state = algorithm.decode(cell, now.get());
    let wait_us = wait_us(algorithm, &state, cost);
    let delay_us = if wait_us == 0 { algorithm.delay_us(&state) } else { 0 };
    report(algorithm, &state, wait_us, delay_us)
}

pub(super) fn charge<A: CellAlgorithm>(
    algorithm: &A,
    cell: &mut Cell,
    cost: Cost,
    now: Micros,
) -> Decision {
    let mut state = algorithm.decode(*cell, now.get());
    let delay_us = algorithm.delay_us(&state);
    algorithm.add(&mut state, cost.get());
    algorithm.cap_debt(&mut state);
    *cell = algorithm.encode(&state);
    report(algorithm, &state, 0, delay_us)
}

pub(super) fn refund<A: CellAlgorithm>(
    algorithm: &A,
    cell: &mut Cell,
    cost: Cost,
    charged_at: Micros,
    now: Micros,
) -> Decision {
    let mut state = algorithm.decode(*cell, now.get());
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
