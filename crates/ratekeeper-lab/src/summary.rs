//! What a limit did to all arrivals together.

use ratekeeper_core::{Decision, Limit, Wait};

use crate::arrival::Arrival;
use crate::delays::Delays;
use crate::peak::Peak;

/// Counts and extremes over all decisions of one limit.
#[derive(Debug)]
pub struct Summary {
    admitted: u64,
    denied: u64,
    never: u64,
    cost_offered: u64,
    cost_admitted: u64,
    first_denied_at_us: Option<u64>,
    longest_retry_us: Option<u64>,
    peak: Peak,
    delays: Delays,
}

impl Summary {
    pub(crate) fn new(limit: &Limit) -> Self {
        let period_us = u64::try_from(limit.rate().period().as_micros()).unwrap_or(u64::MAX);
        Self {
            admitted: 0,
            denied: 0,
            never: 0,
            cost_offered: 0,
            cost_admitted: 0,
            first_denied_at_us: None,
            longest_retry_us: None,
            peak: Peak::new(period_us),
            delays: Delays::default(),
        }
    }

    pub(crate) fn add(&mut self, arrival: &Arrival, decision: &Decision) {
        let (at_us, cost) = (arrival.at.get(), arrival.cost.get());
        self.cost_offered = self.cost_offered.saturating_add(cost);
        match decision.wait() {
            Wait::None => return self.admit(arrival, decision),
            Wait::Micros(us) => self.longest_retry_us = self.longest_retry_us.max(Some(us)),
            Wait::Never => self.never += 1,
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
        // What is held back counts when it is let out, which is the whole point of holding it.
        let arrived_us = arrival.at.get();
        self.peak.add(&arrival.key, arrived_us, arrived_us.saturating_add(delay_us), cost);
    }

    /// Requests that arrived.
    pub fn offered(&self) -> u64 {
        self.admitted + self.denied
    }

    /// Requests that passed.
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Requests that did not.
    pub fn denied(&self) -> u64 {
        self.denied
    }

    /// Requests that no wait would have helped; they are among the denied.
    pub fn never(&self) -> u64 {
        self.never
    }

    /// The cost of all that arrived.
    pub fn cost_offered(&self) -> u64 {
        self.cost_offered
    }

    /// The cost of all that passed.
    pub fn cost_admitted(&self) -> u64 {
        self.cost_admitted
    }

    /// When the first was denied.
    pub fn first_denied_at_us(&self) -> Option<u64> {
        self.first_denied_at_us
    }

    /// The longest wait that a denial asked for.
    pub fn longest_retry_us(&self) -> Option<u64> {
        self.longest_retry_us
    }

    /// The most, in cost, that one key was let through within any one period of the limit,
    /// wherever that begins. A delayed request counts when it is let out. `None` if there was too
    /// much to remember.
    pub fn most_in_a_period(&self) -> Option<u64> {
        self.peak.most()
    }

    /// The delay that `percent` of the admitted did not exceed: too long by 0.1% at most.
    pub fn delay_quantile_us(&self, percent: u64) -> u64 {
        self.delays.quantile_us(percent)
    }

    /// The longest delay of an admitted request.
    pub fn delay_max_us(&self) -> u64 {
        self.delays.max_us()
    }
}

pub(crate) fn delay_us(decision: &Decision) -> u64 {
    u64::try_from(decision.delay().as_micros()).unwrap_or(u64::MAX)
}
