//! A limit as plain numbers, for a store that decides in another language (Lua in Redis).

use core::time::Duration;

use crate::algorithm::{CellEvaluator, Evaluator};
use crate::cost::Cost;
use crate::limit::Limit;
use crate::time::Micros;

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
    /// Admits if `count + cost ≤ limit`, in windows of the calendar
    /// ([`Limit::calendar_bounds`]).
    CalendarWindow {
        /// The most that is admitted in one window.
        limit: u64,
        /// Distinguishes the cells of this unit of the calendar from those of other windows, in 11 bits.
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

    /// Returns the length of the calendar window of the last decision, or the usual length before the first one.
    /// `None` if the period is not one of the calendar.
    #[must_use]
    pub fn calendar_window_length(&self) -> Option<Duration> {
        match self.evaluator() {
            Evaluator::Cell(CellEvaluator::CalendarWindow(window)) => Some(window.last_length()),
            _ => None,
        }
    }

    /// Returns the windows around a time, for a store whose own clock decides which one it is in: the starts of
    /// the previous, the current and the next window, and the end of the last. `None` if the period is not one of
    /// the calendar.
    #[must_use]
    pub fn calendar_bounds(&self, around: Micros) -> Option<[u64; 4]> {
        match self.evaluator() {
            Evaluator::Cell(CellEvaluator::CalendarWindow(window)) => {
                Some(window.bounds_around(around.get()))
            }
            _ => None,
        }
    }
}
