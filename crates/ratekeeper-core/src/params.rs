//! A limit as plain numbers, for a store that decides in another language (Lua in Redis).

use crate::algorithm::{CellEvaluator, Evaluator};
use crate::cost::Cost;
use crate::limit::Limit;

/// The parameters of a limit and a cost, all whole numbers below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitParams {
    /// Admits if `count + cost ≤ limit`, in windows that are aligned to the epoch.
    FixedWindow {
        /// The length of a window.
        window_us: u64,
        /// The most that is admitted in one window.
        limit: u64,
        /// Distinguishes the cells of this window length from those of another, in 11 bits.
        ttl_code: u64,
    },
    /// Admits if `p·(W − e) + (c + n)·W ≤ L·W`.
    SlidingCounter {
        /// The length of a window.
        window_us: u64,
        /// The most that is admitted in one window.
        limit: u64,
        /// Distinguishes the cells of this window length from those of another, in 11 bits.
        ttl_code: u64,
    },
    /// Token bucket and leaky bucket. Admits if `max(TAT, now) + increment ≤ now +
    /// burst_tolerance`.
    Gcra {
        /// The denominator of all fractions.
        denominator: u64,
        /// Distinguishes the cells of this rate from those of another, in 27 bits.
        rate_code: u64,
        /// How far the cost moves the TAT: the cost times the emission interval.
        increment: FractionalMicros,
        /// How far ahead of now the TAT may be: the burst times the emission interval.
        burst_tolerance: FractionalMicros,
    },
    /// Admits if the costs in the last window and this cost sum up to at most the limit.
    SlidingLog {
        /// The length of the window.
        window_us: u64,
        /// The most that is admitted in any window.
        limit: u64,
        /// Are denied requests logged too?
        count_rejected: bool,
    },
}

/// A time or a duration of `us + frac/denominator` microseconds. Values of one denominator compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FractionalMicros {
    /// Whole microseconds.
    pub us: u64,
    /// The numerator of the fraction, less than the denominator.
    pub frac: u64,
}

impl Limit {
    /// Returns the parameters of this limit and a charge of `cost`.
    #[must_use]
    pub fn params(&self, cost: Cost) -> LimitParams {
        match self.evaluator() {
            Evaluator::Cell(evaluator) => CellEvaluator::params(evaluator, cost),
            Evaluator::Log(evaluator) => evaluator.params(),
        }
    }
}
