//! Shared by the tests: one way to run any limit, and a slow, obvious model of each algorithm.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use ratekeeper_core::{Algorithm, Cell, Cost, Decision, Limit, Log, Micros, Rule};

/// A limit and one key's state.
#[derive(Clone)]
pub struct Key {
    pub limit: Limit,
    pub cell: Cell,
    pub log: Log,
}

impl Key {
    pub fn new(limit: &Limit) -> Self {
        Self { limit: limit.clone(), cell: Cell::FRESH, log: Log::default() }
    }

    pub fn check(&mut self, cost: u64, now: u64) -> Decision {
        let (cost, now) = (Cost::new(cost).unwrap(), Micros::new(now));
        match self.limit.rule() {
            Rule::Cell(rule) => rule.check(&mut self.cell, cost, now),
            Rule::Log(rule) => rule.check(&mut self.log, cost, now),
        }
    }

    pub fn peek(&self, cost: u64, now: u64) -> Decision {
        let (cost, now) = (Cost::new(cost).unwrap(), Micros::new(now));
        match self.limit.rule() {
            Rule::Cell(rule) => rule.peek(self.cell, cost, now),
            Rule::Log(rule) => rule.peek(&self.log, cost, now),
        }
    }

    pub fn charge(&mut self, cost: u64, now: u64) -> Decision {
        let (cost, now) = (Cost::new(cost).unwrap(), Micros::new(now));
        match self.limit.rule() {
            Rule::Cell(rule) => rule.charge(&mut self.cell, cost, now),
            Rule::Log(rule) => rule.charge(&mut self.log, cost, now),
        }
    }

    pub fn refund(&mut self, cost: u64, charged_at: u64, now: u64) -> Decision {
        let (cost, now) = (Cost::new(cost).unwrap(), Micros::new(now));
        let charged_at = Micros::new(charged_at);
        match self.limit.rule() {
            Rule::Cell(rule) => rule.refund(&mut self.cell, cost, charged_at, now),
            Rule::Log(rule) => rule.refund(&mut self.log, cost, charged_at, now),
        }
    }

    pub fn fresh_by(&self) -> u64 {
        match self.limit.rule() {
            Rule::Cell(_) => self.cell.fresh_by(),
            Rule::Log(rule) => rule.fresh_by(&self.log),
        }
    }

    pub fn with_limit(&self, limit: &Limit) -> Self {
        Self { limit: limit.clone(), ..self.clone() }
    }
}

/// Everything that was ever admitted, and the definition applied to it anew for each question.
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
        let passes = self.passes(cost, now);
        if passes || self.count_rejected {
            self.history.push((now.into(), cost.into()));
        }
        passes
    }

    /// Would this cost pass at this time, if nothing came in between?
    pub fn passes(&self, cost: u64, now: u64) -> bool {
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
                let rest = window - now % window;
                previous * rest + (in_window(index) + cost) * window <= self.count * window
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                self.level(now) + cost * window <= self.burst * window
            }
        }
    }

    /// The level of a leaky bucket, or what is missing in a token bucket, in units of 1/window.
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

    /// The largest cost that passes, by bisection.
    pub fn remaining(&self, now: u64) -> u64 {
        bisect(0, self.burst as u64 + 1, |cost| !self.passes(cost, now)).saturating_sub(1)
    }

    /// The first moment from `now` on at which this cost passes, by bisection.
    pub fn passes_from(&self, cost: u64, now: u64) -> u64 {
        let late = self.history.iter().map(|(_, cost)| cost).sum::<u128>() + u128::from(cost);
        let late = now + (late * self.window / self.count + 2 * self.window + 1) as u64;
        bisect(now, late, |at| self.passes(cost, at))
    }
}

/// The smallest `x` in `low..=high` for which `holds`, which must hold at `high`.
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
