//! Additive increase, multiplicative decrease.

use super::{LimitAlgorithm, Window};

/// Grows by a fixed amount per window, and shrinks by a factor when the service signals overload.
///
/// It is TCP Reno's rule. It looks at overload signals only (timeouts, 503s), never at latency. So
/// it needs no baseline, but it lets the queue grow until requests fail.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::adaptive::{Aimd, LimitAlgorithm, Window};
///
/// let mut aimd = Aimd::default();
/// let window = Window { successes: 90, overloads: 10, ..Window::default() };
/// assert_eq!(aimd.next_limit(100.0, &window), 90.0);
/// let window = Window { successes: 100, in_flight_peak: 100, ..Window::default() };
/// assert_eq!(aimd.next_limit(100.0, &window), 104.0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Aimd {
    increase: f64,
    backoff_ratio: f64,
    /// The share of overload signals that is ignored: requests that hang without load.
    overload_share_max: f64,
}

impl Aimd {
    /// Adds 4 per window, multiplies by 0.9, ignores up to 1% of overload signals.
    pub const DEFAULT: Self = Self { increase: 4.0, backoff_ratio: 0.9, overload_share_max: 0.01 };
}

impl Default for Aimd {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl LimitAlgorithm for Aimd {
    fn name(&self) -> &'static str {
        "aimd"
    }

    fn next_limit(&mut self, limit: f64, window: &Window) -> f64 {
        if window.overload_share() > self.overload_share_max {
            limit * self.backoff_ratio
        } else if window.reached(limit as u32) {
            limit + self.increase
        } else {
            limit
        }
    }
}
