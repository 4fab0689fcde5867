//! A limit's numbers, for a store that decides where this code does not run.

use crate::algorithm::{CellRule, Rule};
use crate::cost::Cost;
use crate::limit::Limit;

/// What a limit and a cost come to, all in whole numbers below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// `count + cost ≤ limit` in windows aligned to the epoch.
    FixedWindow {
        /// The length of a window.
        window_us: u64,
        /// The most in one window.
        limit: u64,
        /// Tells cells of this period from those of another.
        life: u64,
    },
    /// `p·(W − e) + (c + n)·W ≤ L·W`.
    SlidingCounter {
        /// The length of a window.
        window_us: u64,
        /// The most in one window.
        limit: u64,
        /// Tells cells of this period from those of another.
        life: u64,
    },
    /// The moment of rest moves by `cost` and may lie `fill` ahead.
    Bucket {
        /// What a fraction is a part of.
        count: u64,
        /// Tells cells of this rate from those of another, in 27 bits.
        pace: u64,
        /// How far the charge moves the moment of rest.
        cost: Span,
        /// How far ahead that may lie.
        fill: Span,
    },
    /// The sum of the costs of one window.
    SlidingLog {
        /// The length of the window.
        window_us: u64,
        /// The most in one window.
        limit: u64,
        /// Are denied attempts logged?
        count_rejected: bool,
    },
}

/// A span of time: `us + frac/count` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whole microseconds.
    pub us: u64,
    /// The fraction, less than the count.
    pub frac: u64,
}

impl Limit {
    /// What the limit and a charge of `cost` come to.
    pub fn terms(&self, cost: Cost) -> Terms {
        match self.rule() {
            Rule::Cell(rule) => CellRule::terms(rule, cost),
            Rule::Log(rule) => rule.terms(),
        }
    }
}
