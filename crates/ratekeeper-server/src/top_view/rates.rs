//! How often each limit decides, from two readings.

use serde::Serialize;

use super::reading::{Counts, Status};

/// Decisions per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) allowed: f64,
    pub(super) near_limit: f64,
    pub(super) denied: f64,
    pub(super) shadow_denied: f64,
}

impl Rates {
    /// Returns the rates between two readings. `None` if they are not known: the clock of the server went
    /// back, or the counters restarted.
    fn between(before: Counts, now: Counts, elapsed_us: u64) -> Option<Self> {
        let rate = |count: fn(Counts) -> u64| {
            let count = count(now).checked_sub(count(before))?;
            (elapsed_us > 0).then(|| count as f64 * 1e6 / elapsed_us as f64)
        };
        Some(Self {
            allowed: rate(|counts| counts.allowed)?,
            near_limit: rate(|counts| counts.near_limit)?,
            denied: rate(|counts| counts.denied)?,
            shadow_denied: rate(|counts| counts.shadow_denied)?,
        })
    }

    /// Returns which part of the decisions is a denial, in percent. `None` if there are no decisions.
    pub(super) fn denied_percent(&self) -> Option<f64> {
        let all = self.allowed + self.denied + self.shadow_denied;
        (all > 0.0).then(|| self.denied * 100.0 / all)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            near_limit: self.near_limit + other.near_limit,
            denied: self.denied + other.denied,
            shadow_denied: self.shadow_denied + other.shadow_denied,
        }
    }
}

/// Returns the rates of each limit of a reading. A limit that was not there before has none yet.
pub(super) fn rates(before: &Status, now: &Status) -> Vec<Option<Rates>> {
    let elapsed_us = now.at_us.saturating_sub(before.at_us);
    let of = |limit: &super::reading::LimitStatus| {
        let before = before.limits.iter().find(|before| before.name == limit.name)?;
        Rates::between(before.total, limit.total, elapsed_us)
    };
    now.limits.iter().map(of).collect()
}
