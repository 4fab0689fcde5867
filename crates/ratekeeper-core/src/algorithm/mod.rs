//! The algorithms, a file each, and the one list of them.

mod bucket;
mod fixed_window;
mod log;
mod meter;
mod scaled_bucket;
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
use crate::rate::Rate;
use crate::terms::Terms;
use crate::time::Micros;

use bucket::Bucket;
pub(crate) use bucket::usage as bucket_usage;
use fixed_window::FixedWindow;
use scaled_bucket::ScaledBucket;
use sliding_counter::SlidingCounter;

pub use log::Log;
pub use sliding_log::LogRule;

/// How a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A counter per window, aligned to the epoch. Up to twice the count around a boundary.
    FixedWindow,
    /// Every request of the last window, one by one.
    SlidingLog,
    /// The last window's count, weighted by how much of it still overlaps, plus this one's.
    #[default]
    SlidingCounter,
    /// Tokens that flow in steadily and are taken by requests. Also called GCRA.
    TokenBucket,
    /// A queue that drains steadily: the same admissions as a token bucket, evenly spaced.
    LeakyBucket,
}

/// Every algorithm, for tests, documents and help to walk.
pub const ALGORITHMS: &[Algorithm] = &[
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];

impl Algorithm {
    /// The name, as written in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingCounter => "sliding_counter",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
        }
    }

    /// Does it take a `burst`?
    pub const fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    pub(crate) fn compile(self, rate: Rate) -> Result<Rule, LimitError> {
        if rate.burst().is_some() && !self.has_burst() {
            return Err(LimitError::Burst(self));
        }
        Ok(match self {
            Self::FixedWindow => CellRule(Kind::FixedWindow(FixedWindow::new(rate))).into(),
            Self::SlidingCounter => {
                CellRule(Kind::SlidingCounter(SlidingCounter::new(rate)?)).into()
            }
            Self::TokenBucket => CellRule(Kind::bucket(rate, false)?).into(),
            Self::LeakyBucket => CellRule(Kind::bucket(rate, true)?).into(),
            Self::SlidingLog => LogRule::new(rate)?.into(),
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

/// What decides, by the kind of state it needs.
#[derive(Clone, Debug)]
pub enum Rule {
    /// Sixteen bytes a key.
    Cell(CellRule),
    /// A log a key.
    Log(LogRule),
}

/// What decides, for every algorithm that keeps a [`Cell`].
#[derive(Clone, Debug)]
pub struct CellRule(Kind);

#[derive(Clone, Debug)]
#[repr(u8)] // a tag of its own is read faster than one hidden in a field
enum Kind {
    ScaledBucket(ScaledBucket),
    FixedWindow(FixedWindow),
    SlidingCounter(SlidingCounter),
    Bucket(Bucket),
}

impl Kind {
    fn bucket(rate: Rate, is_queue: bool) -> Result<Self, LimitError> {
        Ok(match ScaledBucket::suits(rate) {
            true => Self::ScaledBucket(ScaledBucket::new(rate, is_queue)?),
            false => Self::Bucket(Bucket::new(rate, is_queue)?),
        })
    }
}

/// Calls a [`meter::Meter`] function on whichever meter the rule holds.
macro_rules! on_meter {
    ($rule:expr, $meter:ident => $call:expr) => {
        match &$rule.0 {
            Kind::FixedWindow($meter) => $call,
            Kind::SlidingCounter($meter) => $call,
            Kind::ScaledBucket($meter) => $call,
            Kind::Bucket($meter) => $call,
        }
    };
}

impl CellRule {
    /// Charges `cost` if it fits. A denial charges nothing; it leaves the cell as it was, unless
    /// that was written at another rate and has to be put in terms of this one.
    #[inline]
    pub fn check(&self, cell: &mut Cell, cost: Cost, now: Micros) -> Decision {
        on_meter!(self, meter => meter::check(meter, cell, cost, now))
    }

    /// Visits the rule as what it is, so that code on the way to a decision can be made for each
    /// algorithm.
    #[inline]
    pub fn visit<V: RuleVisitor>(&self, visitor: V) -> V::Output {
        match &self.0 {
            Kind::FixedWindow(window) => visitor.visit_counter(window),
            Kind::SlidingCounter(counter) => visitor.visit_counter(counter),
            Kind::ScaledBucket(bucket) => visitor.visit(bucket),
            Kind::Bucket(bucket) => visitor.visit(bucket),
        }
    }

    /// The same, only if it counts in windows.
    #[inline(always)]
    pub fn visit_counter<V: RuleVisitor>(&self, visitor: V) -> Option<V::Output> {
        match &self.0 {
            Kind::FixedWindow(window) => Some(visitor.visit_counter(window)),
            Kind::SlidingCounter(counter) => Some(visitor.visit_counter(counter)),
            _ => None,
        }
    }

    /// Does a check, once the key is known, change one word of its cell at most? The first, if it is a
    /// [`TimeRule`]; the second, if it is a [`CounterRule`] and the window the same.
    #[inline(always)]
    pub fn has_loose_word(&self) -> bool {
        !matches!(self.0, Kind::Bucket(_))
    }

    /// The same rule, if its cells differ in their first word only.
    #[inline]
    pub fn as_time_rule(&self) -> Option<TimeRule<'_>> {
        match &self.0 {
            Kind::ScaledBucket(bucket) => Some(TimeRule(bucket)),
            _ => None,
        }
    }

    /// What a check would say. `remaining` is what is there now, nothing charged.
    #[inline]
    pub fn peek(&self, cell: Cell, cost: Cost, now: Micros) -> Decision {
        on_meter!(self, meter => meter::peek(meter, cell, cost, now))
    }

    /// Charges `cost` whether it fits or not. What does not fit is a debt.
    pub fn charge(&self, cell: &mut Cell, cost: Cost, now: Micros) -> Decision {
        on_meter!(self, meter => meter::charge(meter, cell, cost, now))
    }

    pub(crate) fn terms(&self, cost: Cost) -> Terms {
        match &self.0 {
            Kind::FixedWindow(window) => window.terms(),
            Kind::SlidingCounter(counter) => counter.terms(),
            Kind::ScaledBucket(bucket) => bucket.terms(cost),
            Kind::Bucket(bucket) => bucket.terms(cost),
        }
    }

    /// The cell that [`Cell::to_parts`] gave, as this rule would write it.
    pub fn cell_from_parts(&self, parts: [u64; 4]) -> Cell {
        let cell = Cell::from_parts(parts);
        match &self.0 {
            Kind::ScaledBucket(bucket) => bucket.cell_from_parts(cell),
            _ => cell,
        }
    }

    /// Gives back `cost` that was charged at `charged_at`, as far as it still counts.
    pub fn refund(&self, cell: &mut Cell, cost: Cost, charged_at: Micros, now: Micros) -> Decision {
        on_meter!(self, meter => meter::refund(meter, cell, cost, charged_at, now))
    }
}

/// What a [`CellRule`] can be: a rule of one algorithm.
pub trait KindOfRule {
    /// Charges `cost` if it fits, for a store that compares and swaps: `swap` is given what the cell
    /// becomes, or `None` if it stays. If it says `false`, because the cell is no longer what it was,
    /// there is no decision.
    fn check_and_swap(
        &self,
        cell: Cell,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<Cell>) -> bool,
    ) -> Option<Decision>;
}

impl<M: meter::Meter> KindOfRule for M {
    #[inline(always)]
    fn check_and_swap(
        &self,
        cell: Cell,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<Cell>) -> bool,
    ) -> Option<Decision> {
        meter::check_and_swap(self, cell, cost, now, swap)
    }
}

/// A rule that counts in windows: while a window lasts, only the second word of a cell changes. A
/// store can then do with a compare-and-swap of that word.
pub trait CounterRule: KindOfRule {
    /// The first word of a cell of the window of this moment.
    fn first_word(&self, now: Micros) -> u64;

    /// [`KindOfRule::check_and_swap`] on the second word of such a cell. It may have bits of the
    /// store's own, which stay.
    fn check_and_swap_counts(
        &self,
        second: u64,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<u64>) -> bool,
    ) -> Option<Decision>;
}

impl<M: windows::Windowed> CounterRule for M {
    #[inline(always)]
    fn first_word(&self, now: Micros) -> u64 {
        self.windows().head(self.windows().start_of(now.get()))
    }

    #[inline(always)]
    fn check_and_swap_counts(
        &self,
        second: u64,
        cost: Cost,
        now: Micros,
        swap: impl FnOnce(Option<u64>) -> bool,
    ) -> Option<Decision> {
        let usage = self.present_usage(second & DATA_MASK, now.get());
        // The present count is the lower one, and what fits leaves the other alone.
        let swap = |_: &M::Usage, is_added: bool| swap(is_added.then(|| second + cost.get()));
        meter::decide(self, usage, cost, swap)
    }
}

/// Does something with a rule of any algorithm ([`CellRule::visit`]).
pub trait RuleVisitor {
    /// What comes of it.
    type Output;

    /// Does it.
    fn visit(self, rule: &impl KindOfRule) -> Self::Output;

    /// Does it with one that counts in windows.
    fn visit_counter(self, rule: &impl CounterRule) -> Self::Output;
}

/// A rule whose cells differ in their first word only, a time: a bucket of almost any rate. A store can
/// then do with a compare-and-swap of that word.
#[derive(Clone, Copy, Debug)]
pub struct TimeRule<'r>(&'r ScaledBucket);

/// A moment in microseconds, and in the unit of a [`TimeRule`].
#[derive(Clone, Copy, Debug)]
pub struct RuleTime {
    us: u64,
    units: u64,
}

impl TimeRule<'_> {
    /// The second word of every cell of this rule.
    #[inline]
    pub fn second_word(self) -> u64 {
        self.0.second_word()
    }

    /// This moment, to be worked out while the cell is on its way.
    #[inline(always)]
    pub fn time(self, now: Micros) -> RuleTime {
        self.0.time(now.get())
    }

    /// [`KindOfRule::check_and_swap`] on the first word alone.
    #[inline(always)]
    pub fn check_and_swap(
        self,
        first: u64,
        cost: Cost,
        now: RuleTime,
        swap: impl FnOnce(Option<u64>) -> bool,
    ) -> Option<Decision> {
        let swap =
            |usage: &scaled_bucket::Usage, is_added: bool| swap(is_added.then(|| usage.rest()));
        meter::decide(self.0, self.0.usage_at(first, now), cost, swap)
    }
}

impl From<CellRule> for Rule {
    fn from(rule: CellRule) -> Self {
        Self::Cell(rule)
    }
}

impl From<LogRule> for Rule {
    fn from(rule: LogRule) -> Self {
        Self::Log(rule)
    }
}
