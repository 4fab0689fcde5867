//! The algorithms, one file each, and the list of them.

mod arithmetic;
mod cell_algorithm;
mod fixed_window;
mod gcra;
mod request_log;
mod scaled_gcra;
mod sliding_counter;
mod sliding_log;
mod windows;

use alloc::string::ToString;
use core::fmt;
use core::str::FromStr;

use crate::cell::Cell;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::limit::LimitError;
use crate::params::{FractionalMicros, LimitParams};
use crate::rate::Rate;
use crate::time::Micros;

pub(crate) use gcra::{gcd, usage as gcra_usage};

pub use cell_algorithm::{CellWord, CompareAndSwap};
pub use fixed_window::{CalendarWindow, FixedWindow};
pub use gcra::Gcra;
pub use request_log::RequestLog;
pub use scaled_gcra::ScaledGcra;
pub use sliding_counter::SlidingCounter;
pub use sliding_log::SlidingLog;
#[cfg(feature = "calendar")]
pub(crate) use windows::Age;
pub(crate) use windows::{LocatedCounts, WindowFunction, WindowTime};

/// A rate-limiting algorithm.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{Algorithm, Limit, Rate};
///
/// let rate: Rate = "100/minute".parse()?;
/// let log = Limit::new(rate, Algorithm::SlidingLog)?;
/// assert_eq!(log.algorithm().name(), "sliding_log");
/// assert_eq!("gcra".parse::<Algorithm>()?, Algorithm::default());
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// One counter per window, aligned to the epoch or to the calendar. Admits up to twice the count
    /// around a boundary.
    FixedWindow,
    /// A log of every request in the last window. Exact.
    SlidingLog,
    /// The count of the current window, plus the count of the previous window weighted by how much
    /// of it the sliding window still overlaps.
    SlidingCounter,
    /// A bucket that refills at a steady rate and that requests take tokens from; the default. Also
    /// called GCRA.
    #[default]
    TokenBucket,
    /// A queue that drains at a steady rate. Admits what a token bucket admits, evenly spaced.
    LeakyBucket,
}

/// All algorithms.
pub const ALGORITHMS: &[Algorithm] = &[
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];

impl Algorithm {
    /// Returns the name, as written in policy files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingCounter => "sliding_counter",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
        }
    }

    /// Returns whether the algorithm takes a `burst`.
    #[must_use]
    pub const fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// Returns the algorithm of a rate for which none is named: a token bucket or, for a calendar period,
    /// which only that one can count, a fixed window.
    #[must_use]
    pub fn default_for(rate: &Rate) -> Self {
        match rate.calendar() {
            Some(_) => Self::FixedWindow,
            None => Self::default(),
        }
    }

    pub(crate) fn compile(self, rate: Rate) -> Result<Evaluator, LimitError> {
        if rate.calendar().is_some() && self != Self::FixedWindow {
            return Err(LimitError::Calendar(self));
        }
        if rate.calendar().is_some() && rate.burst().is_some() {
            return Err(LimitError::CalendarBurst);
        }
        if rate.burst().is_some() && !self.has_burst() {
            return Err(LimitError::Burst(self));
        }
        Ok(match self {
            Self::FixedWindow => Evaluator::Cell(CellEvaluator::window(rate)),
            Self::SlidingCounter => {
                Evaluator::Cell(CellEvaluator::SlidingCounter(SlidingCounter::new(rate)?))
            }
            Self::TokenBucket => Evaluator::Cell(CellEvaluator::gcra(rate, false)?),
            Self::LeakyBucket => Evaluator::Cell(CellEvaluator::gcra(rate, true)?),
            Self::SlidingLog => Evaluator::Log(SlidingLog::new(rate)?),
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = LimitError;

    fn from_str(name: &str) -> Result<Self, LimitError> {
        let name = if name == "gcra" { "token_bucket" } else { name };
        let known = ALGORITHMS.iter().find(|algorithm| algorithm.name() == name);
        known.copied().ok_or_else(|| LimitError::UnknownAlgorithm(name.to_string()))
    }
}

/// Evaluates requests against a limit, by the kind of state that its algorithm needs.
#[derive(Clone, Debug)]
pub enum Evaluator {
    /// The state of a key is a [`Cell`] of 16 bytes.
    Cell(CellEvaluator),
    /// The state of a key is a [`RequestLog`].
    Log(SlidingLog),
}

/// Evaluates requests against a limit whose state is a [`Cell`].
#[derive(Clone, Debug)]
#[repr(u8)] // an explicit tag is faster to read than a niche in a field
pub enum CellEvaluator {
    /// A token bucket or a leaky bucket, at most rates.
    ScaledGcra(ScaledGcra),
    /// A fixed window.
    FixedWindow(FixedWindow),
    /// A sliding counter.
    SlidingCounter(SlidingCounter),
    /// A token bucket or a leaky bucket, at the other rates.
    Gcra(Gcra),
    /// A fixed window of the calendar.
    CalendarWindow(CalendarWindow),
}

/// Calls a function of [`cell_algorithm`] with the algorithm that the evaluator holds.
macro_rules! with_algorithm {
    ($evaluator:expr, $algorithm:ident => $call:expr) => {
        match $evaluator {
            CellEvaluator::FixedWindow($algorithm) => $call,
            CellEvaluator::SlidingCounter($algorithm) => $call,
            CellEvaluator::ScaledGcra($algorithm) => $call,
            CellEvaluator::Gcra($algorithm) => $call,
            CellEvaluator::CalendarWindow($algorithm) => $call,
        }
    };
}

impl CellEvaluator {
    fn window(rate: Rate) -> Self {
        match rate.calendar() {
            Some(period) => Self::CalendarWindow(CalendarWindow::of_calendar(rate.count(), period)),
            None => Self::FixedWindow(FixedWindow::new(rate)),
        }
    }

    fn gcra(rate: Rate, is_leaky: bool) -> Result<Self, LimitError> {
        Ok(match ScaledGcra::supports(rate) {
            true => Self::ScaledGcra(ScaledGcra::new(rate, is_leaky)?),
            false => Self::Gcra(Gcra::new(rate, is_leaky)?),
        })
    }

    /// Charges `cost` if it is admitted. A denial charges nothing. It does not change the cell
    /// either, unless the cell was written under another rate and is converted to this one.
    #[inline]
    pub fn check(&self, cell: &mut Cell, cost: Cost, now: Micros) -> Decision {
        with_algorithm!(self, algorithm => cell_algorithm::check(algorithm, cell, cost, now))
    }

    /// Returns the decision that a check would make, without charging. `remaining` does not include
    /// `cost`.
    #[inline]
    pub fn peek(&self, cell: Cell, cost: Cost, now: Micros) -> Decision {
        with_algorithm!(self, algorithm => cell_algorithm::peek(algorithm, cell, cost, now))
    }

    /// Charges `cost` even if it exceeds the limit. The excess is a debt, of `debt_max` at the most; what
    /// would exceed that is not charged, and the decision says so ([`Decision::is_cut`]).
    pub fn charge(&self, cell: &mut Cell, cost: Cost, debt_max: u64, now: Micros) -> Decision {
        with_algorithm!(self, algorithm => {
            cell_algorithm::charge(algorithm, cell, cost, debt_max, now)
        })
    }

    /// Charges `cost` as [`CellEvaluator::charge`] does if anything is left (overdraft). Otherwise charges
    /// nothing, and returns when something is left again.
    pub fn overdraw(&self, cell: &mut Cell, cost: Cost, debt_max: u64, now: Micros) -> Decision {
        let any = self.peek(*cell, Cost::ONE, now);
        if any.allowed() { self.charge(cell, cost, debt_max, now) } else { any }
    }

    /// Returns how far ahead of now a debt of `debt_max` may move the TAT of a bucket. `None` if that
    /// is further than any TAT is, or if this is no bucket.
    #[must_use]
    pub fn debt_tolerance(&self, debt_max: u64) -> Option<FractionalMicros> {
        match self {
            Self::ScaledGcra(gcra) => gcra.debt_tolerance(debt_max),
            Self::Gcra(gcra) => gcra.debt_tolerance(debt_max),
            Self::FixedWindow(_) | Self::SlidingCounter(_) | Self::CalendarWindow(_) => None,
        }
    }

    /// Returns the rate of a bucket in lowest terms: a count, and a period in microseconds. `None` if
    /// this is no bucket.
    pub(crate) fn bucket_rate(&self) -> Option<(u64, u64)> {
        match self {
            Self::ScaledGcra(gcra) => Some(gcra.lowest_terms()),
            Self::Gcra(gcra) => Some(gcra.lowest_terms()),
            Self::FixedWindow(_) | Self::SlidingCounter(_) | Self::CalendarWindow(_) => None,
        }
    }

    /// Returns what is left in a bucket, in units of one request over the period of
    /// [`CellEvaluator::bucket_rate`]; negative in debt. 0 if this is no bucket.
    pub(crate) fn bucket_level(&self, cell: Cell, now: Micros) -> i128 {
        match self {
            Self::ScaledGcra(gcra) => gcra.level(cell, now.get()),
            Self::Gcra(gcra) => gcra.level(cell, now.get()),
            Self::FixedWindow(_) | Self::SlidingCounter(_) | Self::CalendarWindow(_) => 0,
        }
    }

    /// Converts a cell that was written under another rate, and still matters, to this one.
    pub(crate) fn convert(&self, cell: &mut Cell, now: Micros) {
        with_algorithm!(self, algorithm => cell_algorithm::convert(algorithm, cell, now));
    }

    pub(crate) fn params(&self, cost: Cost) -> LimitParams {
        match self {
            Self::FixedWindow(window) => window.params(),
            Self::SlidingCounter(counter) => counter.params(),
            Self::ScaledGcra(gcra) => gcra.params(cost),
            Self::Gcra(gcra) => gcra.params(cost),
            Self::CalendarWindow(window) => window.params(),
        }
    }

    /// Assembles the cell that [`Cell::to_parts`] took apart, in the encoding of this limit.
    #[must_use]
    pub fn cell_from_parts(&self, parts: [u64; 4]) -> Cell {
        let cell = Cell::from_parts(parts);
        match self {
            Self::ScaledGcra(gcra) => gcra.cell_from_parts(cell),
            _ => cell,
        }
    }

    /// Refunds `cost` that was charged at `charged_at`, as far as it still counts.
    pub fn refund(&self, cell: &mut Cell, cost: Cost, charged_at: Micros, now: Micros) -> Decision {
        with_algorithm!(self, algorithm => {
            cell_algorithm::refund(algorithm, cell, cost, charged_at, now)
        })
    }
}
