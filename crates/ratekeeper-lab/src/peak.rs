//! The most that one key was let through within any one period, wherever that period begins.
//!
//! Exact: a period is the half-open span `(t − W, t]` for every `t` at which something was let
//! through. It takes memory for what was let through within the last period, up to a cap; beyond
//! the cap there is no answer rather than a wrong one.

use std::collections::{HashMap, VecDeque};

/// As many moments as are remembered, over all keys: 16 bytes each.
const MOMENTS_MAX: usize = 8_000_000;
const SWEEP_MIN: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Peak {
    period_us: u64,
    windows: HashMap<Box<str>, Window>,
    moments: usize,
    moments_max: usize,
    sweep_at: usize,
    most: u64,
    is_lost: bool,
}

/// What one key was let through within the last period: moments and costs.
#[derive(Debug, Default)]
struct Window {
    passed: VecDeque<(u64, u64)>,
    sum: u64,
}

impl Peak {
    pub(crate) fn new(period_us: u64) -> Self {
        Self::with_moments_max(period_us, MOMENTS_MAX)
    }

    fn with_moments_max(period_us: u64, moments_max: usize) -> Self {
        Self {
            period_us,
            windows: HashMap::new(),
            moments: 0,
            moments_max,
            sweep_at: SWEEP_MIN,
            most: 0,
            is_lost: false,
        }
    }

    /// Counts `cost` that arrived at `arrived_us` and was let through at `at_us`. Arrivals never go
    /// back, nor do the moments of one key; but one key's may be far ahead of another's.
    pub(crate) fn add(&mut self, key: &str, arrived_us: u64, at_us: u64, cost: u64) {
        if self.is_lost {
            return;
        }
        let window = match self.windows.get_mut(key) {
            Some(window) => window,
            None => self.windows.entry(key.into()).or_default(),
        };
        self.moments -= window.forget(at_us, self.period_us);
        self.moments += window.add(at_us, cost);
        self.most = self.most.max(window.sum);
        if self.windows.len() >= self.sweep_at || self.moments > self.moments_max {
            self.sweep(arrived_us);
        }
    }

    /// The most, or `None` if there was too much to remember.
    pub(crate) fn most(&self) -> Option<u64> {
        (!self.is_lost).then_some(self.most)
    }

    fn sweep(&mut self, at_us: u64) {
        let mut forgotten = 0;
        self.windows.retain(|_, window| {
            forgotten += window.forget(at_us, self.period_us);
            !window.passed.is_empty()
        });
        self.moments -= forgotten;
        self.sweep_at = SWEEP_MIN.max(2 * self.windows.len());
        if self.moments > self.moments_max {
            self.is_lost = true;
            self.windows = HashMap::new();
        }
    }
}

impl Window {
    /// Forgets what is a period old at `at_us`, and tells how many moments that were.
    fn forget(&mut self, at_us: u64, period_us: u64) -> usize {
        let mut forgotten = 0;
        while let Some(&(then_us, cost)) = self.passed.front()
            && then_us.saturating_add(period_us) <= at_us
        {
            self.passed.pop_front();
            self.sum -= cost;
            forgotten += 1;
        }
        forgotten
    }

    /// Adds to the last moment or makes a new one, and tells how many it made.
    fn add(&mut self, at_us: u64, cost: u64) -> usize {
        self.sum += cost;
        if let Some((then_us, sum)) = self.passed.back_mut()
            && *then_us == at_us
        {
            *sum += cost;
            return 0;
        }
        self.passed.push_back((at_us, cost));
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_may_begin_anywhere_and_excludes_its_start() {
        let mut peak = Peak::new(1_000);
        [(0, 3), (999, 4), (1_000, 1), (1_500, 1), (1_998, 1)]
            .into_iter()
            .for_each(|(at_us, cost)| peak.add("a", at_us, at_us, cost));
        assert_eq!(peak.most(), Some(7));
    }

    #[test]
    fn keys_are_apart_and_old_ones_are_dropped() {
        let mut peak = Peak::new(10);
        for n in 0..100_000u64 {
            peak.add(&n.to_string(), n, n, 2);
        }
        assert_eq!(peak.most(), Some(2));
        assert!(peak.windows.len() <= SWEEP_MIN);
    }

    #[test]
    fn what_is_held_for_one_key_does_not_age_another() {
        let mut peak = Peak::new(1_000);
        peak.add("a", 0, 0, 5);
        // A thousand keys that are held for long make it sweep.
        for n in 0..2_000u64 {
            peak.add(&n.to_string(), 1, 1_000_000 + n, 1);
        }
        peak.add("a", 2, 2, 5);
        assert_eq!(peak.most(), Some(10));
    }

    #[test]
    fn too_much_to_remember_is_no_answer() {
        let mut peak = Peak::with_moments_max(1_000_000, 100);
        (0..101).for_each(|n| peak.add("a", n, n, 1));
        assert_eq!(peak.most(), None);
    }
}
