//! Totals of a simulation.

use ratekeeper_core::{Decision, Limit, Wait};

use crate::arrival::Arrival;
use crate::histogram::Histogram;
use crate::peak::Peak;

/// Counts and extremes over all decisions of one limit.
#[derive(Debug)]
pub struct Summary {
    admitted: u64,
    denied: u64,
    exceeds_capacity: u64,
    cost_offered: u64,
    cost_admitted: u64,
    first_denied_at_us: Option<u64>,
    longest_retry_us: Option<u64>,
    peak: Peak,
    delays: Histogram,
}

impl Summary {
    pub(crate) fn new(limit: &Limit) -> Self {
        let period_us = u64::try_from(limit.rate().period().as_micros()).unwrap_or(u64::MAX);
        Self {
            admitted: 0,
            denied: 0,
            exceeds_capacity: 0,
            cost_offered: 0,
            cost_admitted: 0,
            first_denied_at_us: None,
            longest_retry_us: None,
            peak: Peak::new(period_us),
            delays: Histogram::default(),
        }
    }

    pub(crate) fn add(&mut self, arrival: &Arrival, decision: &Decision) {
        let (at_us, cost) = (arrival.at.get(), arrival.cost.get());
        self.cost_offered = self.cost_offered.saturating_add(cost);
        match decision.wait() {
            Wait::None => return self.admit(arrival, decision),
            Wait::Micros(us) => self.longest_retry_us = self.longest_retry_us.max(Some(us)),
            Wait::Never => self.exceeds_capacity += 1,
        }
        self.denied += 1;
        self.first_denied_at_us.get_or_insert(at_us);
    }

    fn admit(&mut self, arrival: &Arrival, decision: &Decision) {
        let delay_us = delay_us(decision);
        let cost = arrival.cost.get();
        self.admitted += 1;
        self.cost_admitted = self.cost_admitted.saturating_add(cost);
        self.delays.add(delay_us);
        // A delayed request counts when it is released: that is the effect of the delay.
        let arrived_us = arrival.at.get();
        self.peak.add(&arrival.key, arrived_us, arrived_us.saturating_add(delay_us), cost);
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.admitted + self.denied
    }

    /// Returns the number of admitted requests.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Returns the number of denied requests.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.denied
    }

    /// Returns the number of denied requests whose cost exceeds the capacity, so that no wait would help.
    #[must_use]
    pub fn exceeds_capacity(&self) -> u64 {
        self.exceeds_capacity
    }

    /// Returns the cost of all requests.
    #[must_use]
    pub fn cost_offered(&self) -> u64 {
        self.cost_offered
    }

    /// Returns the cost of all admitted requests.
    #[must_use]
    pub fn cost_admitted(&self) -> u64 {
        self.cost_admitted
    }

    /// Returns the time of the first denial.
    #[must_use]
    pub fn first_denied_at_us(&self) -> Option<u64> {
        self.first_denied_at_us
    }

    /// Returns the longest `retry_after` of a denial.
    #[must_use]
    pub fn longest_retry_us(&self) -> Option<u64> {
        self.longest_retry_us
    }

    /// Returns the highest cost that one key was admitted within any one period of the limit, wherever
    /// that begins. A delayed request counts when it is released. `None` if there were too many requests
    /// to track.
    #[must_use]
    pub fn most_in_a_period(&self) -> Option<u64> {
        self.peak.max()
    }

    /// Returns the delay that `percent` of the admitted requests did not exceed, at most 0.1% too long.
    #[must_use]
    pub fn delay_quantile_us(&self, percent: u64) -> u64 {
        self.delays.quantile(percent)
    }

    /// Returns the longest delay of an admitted request.
    #[must_use]
    pub fn delay_max_us(&self) -> u64 {
        self.delays.max()
    }
}

pub(crate) fn delay_us(decision: &Decision) -> u64 {
    u64::try_from(decision.delay().as_micros()).unwrap_or(u64::MAX)
}
