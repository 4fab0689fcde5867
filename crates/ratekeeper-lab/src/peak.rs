//! The highest cost that one key was admitted within any one period, wherever that period begins.
//!
//! The result is exact: a period is the half-open interval `(t − W, t]` for every time `t` of an
//! admission. The admissions of the last period are kept in memory, up to a maximum; above it there is
//! no result rather than a wrong one.

use std::collections::{HashMap, VecDeque};

/// Maximum number of entries over all keys, of 16 bytes each.
const ENTRIES_MAX: usize = 8_000_000;
const SWEEP_MIN: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Peak {
    period_us: u64,
    windows: HashMap<Box<str>, Window>,
    entries: usize,
    entries_max: usize,
    sweep_at: usize,
    max_cost: u64,
    has_overflowed: bool,
}

/// The admissions of one key within the last period: times and costs.
#[derive(Debug, Default)]
struct Window {
    admitted: VecDeque<(u64, u64)>,
    sum: u64,
}

impl Peak {
    pub(crate) fn new(period_us: u64) -> Self {
        Self::with_entries_max(period_us, ENTRIES_MAX)
    }

    fn with_entries_max(period_us: u64, entries_max: usize) -> Self {
        Self {
            period_us,
            windows: HashMap::new(),
            entries: 0,
            entries_max,
            sweep_at: SWEEP_MIN,
            max_cost: 0,
            has_overflowed: false,
        }
    }

    /// Counts `cost` that arrived at `arrived_us` and is released at `at_us`. Times of arrival never
    /// decrease, nor do the times of release of one key; those of different keys are independent.
    pub(crate) fn add(&mut self, key: &str, arrived_us: u64, at_us: u64, cost: u64) {
        if self.has_overflowed {
            return;
        }
        let window = match self.windows.get_mut(key) {
            Some(window) => window,
            None => self.windows.entry(key.into()).or_default(),
        };
        self.entries -= window.expire(at_us, self.period_us);
        self.entries += window.add(at_us, cost);
        self.max_cost = self.max_cost.max(window.sum);
        if self.windows.len() >= self.sweep_at || self.entries > self.entries_max {
            self.sweep(arrived_us);
        }
    }

    /// Returns the highest cost, or `None` if there were too many entries.
    pub(crate) fn max(&self) -> Option<u64> {
        (!self.has_overflowed).then_some(self.max_cost)
    }

    fn sweep(&mut self, at_us: u64) {
        let mut expired = 0;
        self.windows.retain(|_, window| {
            expired += window.expire(at_us, self.period_us);
            !window.admitted.is_empty()
        });
        self.entries -= expired;
        self.sweep_at = SWEEP_MIN.max(2 * self.windows.len());
        if self.entries > self.entries_max {
            self.has_overflowed = true;
            self.windows = HashMap::new();
        }
    }
}

impl Window {
    /// Removes entries that are a period old at `at_us`, and returns how many.
    fn expire(&mut self, at_us: u64, period_us: u64) -> usize {
        let mut expired = 0;
        while let Some(&(then_us, cost)) = self.admitted.front()
            && then_us.saturating_add(period_us) <= at_us
        {
            self.admitted.pop_front();
            self.sum -= cost;
            expired += 1;
        }
        expired
    }

    /// Adds to the last entry or creates one, and returns how many were created.
    fn add(&mut self, at_us: u64, cost: u64) -> usize {
        self.sum += cost;
        if let Some((then_us, sum)) = self.admitted.back_mut()
            && *then_us == at_us
        {
            *sum += cost;
            return 0;
        }
        self.admitted.push_back((at_us, cost));
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
        assert_eq!(peak.max(), Some(7));
    }

    #[test]
    fn keys_are_separate_and_expired_ones_are_removed() {
        let mut peak = Peak::new(10);
        for n in 0..100_000u64 {
            peak.add(&n.to_string(), n, n, 2);
        }
        assert_eq!(peak.max(), Some(2));
        assert!(peak.windows.len() <= SWEEP_MIN);
    }

    #[test]
    fn delays_of_one_key_do_not_expire_entries_of_another() {
        let mut peak = Peak::new(1_000);
        peak.add("a", 0, 0, 5);
        // Many keys with long delays cause a sweep.
        for n in 0..2_000u64 {
            peak.add(&n.to_string(), 1, 1_000_000 + n, 1);
        }
        peak.add("a", 2, 2, 5);
        assert_eq!(peak.max(), Some(10));
    }

    #[test]
    fn too_many_entries_give_no_result() {
        let mut peak = Peak::with_entries_max(1_000_000, 100);
        (0..101).for_each(|n| peak.add("a", n, n, 1));
        assert_eq!(peak.max(), None);
    }
}
