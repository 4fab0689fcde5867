//! Shared by the tests: a key under any limit, and a slow but obvious model of each algorithm.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use ratekeeper_core::{Algorithm, Cell, Cost, Decision, Evaluator, Limit, Micros, RequestLog};

/// A limit and the state of one key.
#[derive(Clone)]
pub struct Key {
    pub limit: Limit,
    pub cell: Cell,
    pub log: RequestLog,
}

impl Key {
    pub fn new(limit: &Limit) -> Self {
        Self { limit: limit.clone(), cell: Cell::EMPTY, log: RequestLog::default() }
    }

    pub fn check(&mut self, cost: u64, now: u64) -> Decision {
        let (cost, now) = (Cost::new(cost).unwrap(), Micros::new(now));
        match self.limit.evaluator() {
            Evaluator::Cell(evaluator) => evaluator.check(&mut self.cell, cost, now),
            Evaluator::Log(evaluator) => evaluator.check(&mut self.log, cost, now),
        }
    }

    pub fn peek(&self, cost: u64, now: u64) -> Decision {
        let (cost, now) = (Cost::new(cost).unwrap(), Micros::new(now));
        match self.limit.evaluator() {
            Evaluator::Cell(evaluator) => evaluator.peek(self.cell, cost, now),
            Evaluator::Log(evaluator) => evaluator.peek(&self.log, cost, now),
        }
    }

    pub fn charge(&mut self, cost: u64, now: u64) -> Decision {
        self.charge_up_to(cost, u64::MAX, now)
    }

    pub fn charge_up_to(&mut self, cost: u64, debt_max: u64, now: u64) -> Decision {
        let (cost, now) = (Cost::new(cost).unwrap(), Micros::new(now));
        match self.limit.evaluator() {
            Evaluator::Cell(evaluator) => evaluator.charge(&mut self.cell, cost, debt_max, now),
            Evaluator::Log(evaluator) => evaluator.charge(&mut self.log, cost, debt_max, now),
        }
    }

    pub fn refund(&mut self, cost: u64, charged_at: u64, now: u64) -> Decision {
        let (cost, now) = (Cost::new(cost).unwrap(), Micros::new(now));
        let charged_at = Micros::new(charged_at);
        match self.limit.evaluator() {
            Evaluator::Cell(evaluator) => evaluator.refund(&mut self.cell, cost, charged_at, now),
            Evaluator::Log(evaluator) => evaluator.refund(&mut self.log, cost, charged_at, now),
        }
    }

    pub fn expires_at(&self) -> u64 {
        match self.limit.evaluator() {
            Evaluator::Cell(_) => self.cell.expires_at(),
            Evaluator::Log(evaluator) => evaluator.expires_at(&self.log),
        }
    }

    pub fn with_limit(&self, limit: &Limit) -> Self {
        Self { limit: limit.clone(), ..self.clone() }
    }
}

/// The history of all admitted requests. Every check applies the definition of the algorithm to it.
#[derive(Clone)]
pub struct Model {
    algorithm: Algorithm,
    count: u128,
    window: u128,
    burst: u128,
    count_rejected: bool,
    history: Vec<(u128, u128)>,
}

impl Model {
    pub fn new(limit: &Limit, count_rejected: bool) -> Self {
        Self {
            algorithm: limit.algorithm(),
            count: limit.rate().count().into(),
            window: limit.rate().period().as_micros(),
            burst: limit.quota().into(),
            count_rejected,
            history: Vec::new(),
        }
    }

    pub fn check(&mut self, cost: u64, now: u64) -> bool {
        let admitted = self.admits(cost, now);
        if admitted || self.count_rejected {
            self.history.push((now.into(), cost.into()));
        }
        admitted
    }

    /// Would this cost be admitted at this time, if no other request came in between?
    pub fn admits(&self, cost: u64, now: u64) -> bool {
        let (cost, now) = (u128::from(cost), u128::from(now));
        let window = self.window;
        let in_window = |index: u128| {
            let inside = self.history.iter().filter(move |(t, _)| t / window == index);
            inside.map(|(_, cost)| cost).sum::<u128>()
        };
        match self.algorithm {
            Algorithm::FixedWindow => in_window(now / window) + cost <= self.count,
            Algorithm::SlidingLog => {
                let live = self.history.iter().filter(|(t, _)| now - t < window);
                live.map(|(_, cost)| cost).sum::<u128>() + cost <= self.count
            }
            Algorithm::SlidingCounter => {
                let index = now / window;
                let previous = if index > 0 { in_window(index - 1) } else { 0 };
                let overlap = window - now % window;
                previous * overlap + (in_window(index) + cost) * window <= self.count * window
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                self.level(now) + cost * window <= self.burst * window
            }
        }
    }

    /// The level of a leaky bucket, or the tokens taken from a token bucket, in units of 1/window.
    fn level(&self, now: u128) -> u128 {
        let (mut level, mut at) = (0u128, 0u128);
        for (t, cost) in &self.history {
            level = level.saturating_sub((t - at) * self.count) + cost * self.window;
            at = *t;
        }
        level.saturating_sub((now - at) * self.count)
    }

    pub fn delay(&self, now: u64) -> u64 {
        match self.algorithm {
            Algorithm::LeakyBucket => self.level(now.into()).div_ceil(self.count) as u64,
            _ => 0,
        }
    }

    /// The largest cost that is admitted, by bisection.
    pub fn remaining(&self, now: u64) -> u64 {
        bisect(0, self.burst as u64 + 1, |cost| !self.admits(cost, now)).saturating_sub(1)
    }

    /// The first time from `now` on at which this cost is admitted, by bisection.
    pub fn admits_from(&self, cost: u64, now: u64) -> u64 {
        let total = self.history.iter().map(|(_, cost)| cost).sum::<u128>() + u128::from(cost);
        let late = now + (total * self.window / self.count + 2 * self.window + 1) as u64;
        bisect(now, late, |at| self.admits(cost, at))
    }
}

/// The smallest `x` in `low..=high` for which `holds` is true. It must be true for `high`.
fn bisect(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}

/// A fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    numerator: i128,
    denominator: i128,
}

impl Ratio {
    pub fn new(numerator: i128, denominator: i128) -> Self {
        let (mut a, mut b) = (numerator.abs(), denominator);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Self { numerator: numerator / a, denominator: denominator / a }
    }
}

impl std::ops::Add for Ratio {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let numerator = self.numerator * other.denominator + other.numerator * self.denominator;
        Self::new(numerator, self.denominator * other.denominator)
    }
}

impl std::ops::Sub for Ratio {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + Self { numerator: -other.numerator, ..other }
    }
}

impl std::ops::Mul for Ratio {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self::new(self.numerator * other.numerator, self.denominator * other.denominator)
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.numerator * other.denominator).cmp(&(other.numerator * self.denominator))
    }
}
