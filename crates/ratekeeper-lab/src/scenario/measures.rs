//! What happened in a run.

use crate::histogram::Histogram;
use crate::peak::Peak;
use crate::timeline::{Columns, Timeline};

const SECOND_US: u64 = 1_000_000;

/// Counts and series of one run.
#[derive(Debug)]
pub struct Measures {
    duration_us: u64,
    requests: u64,
    served: u64,
    failed: u64,
    admitted: u64,
    refused: u64,
    timed_out: u64,
    overflowed: u64,
    latencies: Histogram,
    /// Attempts when they are decided: admitted and refused.
    decisions: Timeline,
    /// Requests when they end: served and failed.
    ends: Timeline,
    admitted_peak: Peak,
    attempts_peak: Peak,
}

impl Measures {
    pub(super) fn new(duration_us: u64) -> Self {
        Self {
            duration_us,
            requests: 0,
            served: 0,
            failed: 0,
            admitted: 0,
            refused: 0,
            timed_out: 0,
            overflowed: 0,
            latencies: Histogram::default(),
            decisions: Timeline::new(),
            ends: Timeline::new(),
            admitted_peak: Peak::new(SECOND_US),
            attempts_peak: Peak::new(SECOND_US),
        }
    }

    pub(super) fn requested(&mut self) {
        self.requests += 1;
    }

    pub(super) fn overflowed(&mut self) {
        self.overflowed += 1;
    }

    pub(super) fn decided(&mut self, now_us: u64, is_admitted: bool) {
        *(if is_admitted { &mut self.admitted } else { &mut self.refused }) += 1;
        self.decisions.add(now_us, is_admitted);
        self.attempts_peak.add("", now_us, now_us, 1);
        if is_admitted {
            self.admitted_peak.add("", now_us, now_us, 1);
        }
    }

    pub(super) fn served(&mut self, now_us: u64, latency_us: u64) {
        self.served += 1;
        self.latencies.add(latency_us);
        self.ends.add(now_us, true);
    }

    pub(super) fn timed_out(&mut self) {
        self.timed_out += 1;
    }

    pub(super) fn failed(&mut self, now_us: u64) {
        self.failed += 1;
        self.ends.add(now_us, false);
    }

    /// Returns how many requests there were, without retries.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns how many requests were served before their clients gave up.
    #[must_use]
    pub fn requests_served(&self) -> u64 {
        self.served
    }

    /// Returns how many requests failed, retries included.
    #[must_use]
    pub fn requests_failed(&self) -> u64 {
        self.failed
    }

    /// Returns how many attempts the limiter decided.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.admitted + self.refused
    }

    /// Returns how many attempts were admitted.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Returns how many attempts were refused by the limiter.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns how many attempts had no response in time.
    #[must_use]
    pub fn attempts_timed_out(&self) -> u64 {
        self.timed_out
    }

    /// Returns how many requests were dropped because too many were under way.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.overflowed
    }

    /// Returns the most attempts that were admitted in any second, or `None` if there are too many to say.
    #[must_use]
    pub fn most_admitted_in_a_second(&self) -> Option<u64> {
        self.admitted_peak.max()
    }

    /// Returns the most attempts in any second.
    #[must_use]
    pub fn most_attempts_in_a_second(&self) -> Option<u64> {
        self.attempts_peak.max()
    }

    /// Returns the latency, retries included, that this share of the served requests did not exceed.
    #[must_use]
    pub fn latency_us(&self, percent: u64) -> u64 {
        self.latencies.quantile(percent)
    }

    /// Returns attempts over time, in at most `columns_max` columns: admitted and refused.
    #[must_use]
    pub fn decisions(&self, columns_max: u64) -> Columns {
        self.decisions.columns(self.duration_us, columns_max)
    }

    /// Returns requests over time, when they end: served and failed.
    #[must_use]
    pub fn ends(&self, columns_max: u64) -> Columns {
        self.ends.columns(self.duration_us, columns_max)
    }
}
