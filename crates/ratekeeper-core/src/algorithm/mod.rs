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

use crate::cell::{Cell, DATA_MASK};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::limit::LimitError;
use crate::params::LimitParams;
use crate::rate::Rate;
use crate::time::Micros;

use fixed_window::FixedWindow;
use gcra::Gcra;
pub(crate) use gcra::usage as gcra_usage;
use scaled_gcra::ScaledGcra;
use sliding_counter::SlidingCounter;

pub use request_log::RequestLog;
pub use sliding_log::SlidingLog;

/// A rate-limiting algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// One counter per window, aligned to the epoch. Admits up to twice the count around a
    /// boundary.
    FixedWindow,
    /// A log of every request in the last window. Exact.
    SlidingLog,
    /// The count of the current window, plus the count of the previous window weighted by how much
    /// of it the sliding window still overlaps.
    #[default]
    SlidingCounter,
    /// A bucket that refills at a steady rate and that requests take tokens from. Also called GCRA.
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

    pub(crate) fn compile(self, rate: Rate) -> Result<Evaluator, LimitError> {
        if rate.burst().is_some() && !self.has_burst() {
            return Err(LimitError::Burst(self));
        }
        Ok(match self {
            Self::FixedWindow => CellEvaluator(Inner::FixedWindow(FixedWindow::new(rate))).into(),
            Self::SlidingCounter => {
                CellEvaluator(Inner::SlidingCounter(SlidingCounter::new(rate)?)).into()
            }
            Self::TokenBucket => CellEvaluator(Inner::gcra(rate, false)?).into(),
            Self::LeakyBucket => CellEvaluator(Inner::gcra(rate, true)?).into(),
            Self::SlidingLog => SlidingLog::new(rate)?.into(),
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
pub struct CellEvaluator(Inner);

#[derive(Clone, Debug)]
#[repr(u8)] // an explicit tag is faster to read than a niche in a field
enum Inner {
    ScaledGcra(ScaledGcra),
    FixedWindow(FixedWindow),
    SlidingCounter(SlidingCounter),
    Gcra(Gcra),
}

impl Inner {
    fn gcra(rate: Rate, is_leaky: bool) -> Result<Self, LimitError> {
        Ok(match ScaledGcra::supports(rate) {
            true => Self::ScaledGcra(ScaledGcra::new(rate, is_leaky)?),
            false => Self::Gcra(Gcra::new(rate, is_leaky)?),
        })
    }
}

/// Calls a function of [`cell_algorithm`] with the algorithm that the evaluator holds.
macro_rules! with_algorithm {
    ($evaluator:expr, $algorithm:ident => $call:expr) => {
        match &$evaluator.0 {
            Inner::FixedWindow($algorithm) => $call,
            Inner::SlidingCounter($algorithm) => $call,
            Inner::ScaledGcra($algorithm) => $call,
            Inner::Gcra($algorithm) => $call,
        }
    };
}

impl CellEvaluator {
    /// Charges `cost` if it is admitted. A denial charges nothing. It does not change the cell
    /// either, unless the cell was written under another rate and is converted to this one.
    #[inline]
    #[must_use]
    pub fn check(&self, cell: &mut Cell, cost: Cost, now: Micros) -> Decision {
        with_algorithm!(self, algorithm => cell_algorithm::check(algorithm, cell, cost, now))
    }

    /// Calls the visitor with the concrete algorithm, so that its code is compiled for each one.
    #[inline]
    pub fn visit<V: AlgorithmVisitor>(&self, visitor: V) -> V::Output {
        match &self.0 {
            Inner::FixedWindow(window) => visitor.visit_window_counter(window),
            Inner::SlidingCounter(counter) => visitor.visit_window_counter(counter),
            Inner::ScaledGcra(gcra) => visitor.visit(gcra),
            Inner::Gcra(gcra) => visitor.visit(gcra),
        }
    }

    /// [`CellEvaluator::visit`] for algorithms that count in windows; `None` for others.
    #[inline(always)]
    pub fn visit_window_counter<V: AlgorithmVisitor>(&self, visitor: V) -> Option<V::Output> {
        match &self.0 {
            Inner::FixedWindow(window) => Some(visitor.visit_window_counter(window)),
            Inner::SlidingCounter(counter) => Some(visitor.visit_window_counter(counter)),
            _ => None,
        }
    }

    /// Returns whether a check of a known key changes at most one word of its cell: the first for a
    /// [`TatEvaluator`]; the second for a [`WindowCounter`], within a window.
    #[inline(always)]
    #[must_use]
    pub fn updates_one_word(&self) -> bool {
        !matches!(self.0, Inner::Gcra(_))
    }

    /// Returns the evaluator of the first word alone, if the cells differ in nothing else.
    #[inline]
    #[must_use]
    pub fn as_tat_evaluator(&self) -> Option<TatEvaluator<'_>> {
        match &self.0 {
            Inner::ScaledGcra(gcra) => Some(TatEvaluator(gcra)),
            _ => None,
        }
    }

    /// Returns the decision that a check would make, without charging. `remaining` does not include
    /// `cost`.
    #[inline]
    #[must_use]
    pub fn peek(&self, cell: Cell, cost: Cost, now: Micros) -> Decision {
        with_algorithm!(self, algorithm => cell_algorithm::peek(algorithm, cell, cost, now))
    }

    /// Charges `cost` even if it exceeds the limit. The excess is a debt.
    pub fn charge(&self, cell: &mut Cell, cost: Cost, now: Micros) -> Decision {
        with_algorithm!(self, algorithm => cell_algorithm::charge(algorithm, cell, cost, now))
    }

    pub(crate) fn params(&self, cost: Cost) -> LimitParams {
        match &self.0 {
            Inner::FixedWindow(window) => window.params(),
            Inner::SlidingCounter(counter) => counter.params(),
            Inner::ScaledGcra(gcra) => gcra.params(cost),
            Inner::Gcra(gcra) => gcra.params(cost),
        }
    }

    /// Assembles the cell that [`Cell::to_parts`] took apart, in the encoding of this limit.
    #[must_use]
    pub fn cell_from_parts(&self, parts: [u64; 4]) -> Cell {
        let cell = Cell::from_parts(parts);
        match &self.0 {
            Inner::ScaledGcra(gcra) => gcra.cell_from_parts(cell),
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

/// A concrete algorithm, for a store that updates cells by compare-and-swap.
pub trait CheckAndSwap {
    /// Charges `cost` if it is admitted. Calls `swap` with the next cell, or with `None` if the
    /// cell does not change. Returns `None` if `swap` returns `false`, because another thread has
    /// changed the cell.
    fn check_and_swap(
        &self,
        cell: Cell,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<Cell>) -> bool,
    ) -> Option<Decision>;
}

impl<A: cell_algorithm::CellAlgorithm> CheckAndSwap for A {
    #[inline(always)]
    fn check_and_swap(
        &self,
        cell: Cell,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<Cell>) -> bool,
    ) -> Option<Decision> {
        cell_algorithm::check_and_swap(self, cell, cost, now, swap)
    }
}

/// An algorithm that counts in windows. Within a window only the second word of a cell changes, so
/// a store can compare and swap that word alone.
pub trait WindowCounter: CheckAndSwap {
    /// Returns the first word of a cell that counts in the window of `now`.
    fn first_word(&self, now: Micros) -> u64;

    /// [`CheckAndSwap::check_and_swap`] on the second word of a cell of the current window. The
    /// bits that belong to the store are preserved.
    fn check_and_swap_counts(
        &self,
        second: u64,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<u64>) -> bool,
    ) -> Option<Decision>;
}

impl<A: windows::WindowAlgorithm> WindowCounter for A {
    #[inline(always)]
    fn first_word(&self, now: Micros) -> u64 {
        self.windows().first_word(self.windows().start_of(now.get()))
    }

    #[inline(always)]
    fn check_and_swap_counts(
        &self,
        second: u64,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<u64>) -> bool,
    ) -> Option<Decision> {
        let state = self.decode_current(second & DATA_MASK, now.get());
        // The current count is in the low bits, and an admitted cost does not overflow into the
        // rest.
        let swap = |_: &A::State, is_charged: bool| swap(is_charged.then(|| second + cost.get()));
        cell_algorithm::decide(self, state, cost, swap)
    }
}

/// Runs generic code on the concrete algorithm of an evaluator ([`CellEvaluator::visit`]).
pub trait AlgorithmVisitor {
    /// The result of a visit.
    type Output;

    /// Visits any algorithm.
    fn visit(self, algorithm: &impl CheckAndSwap) -> Self::Output;

    /// Visits an algorithm that counts in windows.
    fn visit_window_counter(self, algorithm: &impl WindowCounter) -> Self::Output;
}

/// Evaluates requests against a token or leaky bucket whose TAT (theoretical arrival time) fits one
/// word, as it does at almost any rate. The cells of such a limit differ in their first word only,
/// so a store can compare and swap that word alone.
#[derive(Clone, Copy, Debug)]
pub struct TatEvaluator<'a>(&'a ScaledGcra);

/// A time in microseconds, and in the unit of a [`TatEvaluator`].
#[derive(Clone, Copy, Debug)]
pub struct ScaledTime {
    us: u64,
    units: u64,
}

impl TatEvaluator<'_> {
    /// Returns the second word of every cell of this limit.
    #[inline]
    #[must_use]
    pub fn second_word(self) -> u64 {
        self.0.second_word()
    }

    /// Converts `now` to the unit of this limit. It needs no cell, so that a store can convert
    /// while the cell is loaded from memory.
    #[inline(always)]
    #[must_use]
    pub fn time(self, now: Micros) -> ScaledTime {
        self.0.time(now.get())
    }

    /// [`CheckAndSwap::check_and_swap`] on the first word alone.
    #[inline(always)]
    pub fn check_and_swap(
        self,
        first: u64,
        cost: Cost,
        now: ScaledTime,
        swap: impl FnOnce(Option<u64>) -> bool,
    ) -> Option<Decision> {
        let swap = |state: &scaled_gcra::ScaledGcraState, is_charged: bool| {
            swap(is_charged.then(|| state.tat()))
        };
        cell_algorithm::decide(self.0, self.0.decode_tat(first, now), cost, swap)
    }
}

impl From<CellEvaluator> for Evaluator {
    fn from(evaluator: CellEvaluator) -> Self {
        Self::Cell(evaluator)
    }
}

impl From<SlidingLog> for Evaluator {
    fn from(evaluator: SlidingLog) -> Self {
        Self::Log(evaluator)
    }
}
