//! TCP Vegas for concurrency limits.

use super::baseline::RecentMin;
use super::{LimitAlgorithm, Window};

/// Estimates the queue from latency, and keeps a few requests in it.
///
/// The queue is estimated as limit × (1 − baseline / latency). The limit grows while the estimate
/// is below a few requests (3·log₁₀ of the limit), and shrinks while it is above twice that. The
/// baseline is the shortest typical latency of the last one to two minutes, so it follows a service
/// that becomes slower.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::Micros;
/// use ratekeeper_control::adaptive::{LimitAlgorithm, Vegas, Window};
///
/// let window = |ms, at| Window {
///     now: Micros::new(at),
///     samples: 100,
///     successes: 100,
///     latency_typical: Duration::from_millis(ms),
///     in_flight_peak: 100,
///     ..Window::default()
/// };
/// let mut vegas = Vegas::default();
/// assert!(vegas.next_limit(100.0, &window(10, 1)) > 100.0);
/// for at in 2..20 {
///     vegas.next_limit(100.0, &window(20, at));
/// }
/// assert!(vegas.next_limit(100.0, &window(20, 20)) < 100.0); // half of the requests wait
/// ```
#[derive(Clone, Debug)]
pub struct Vegas {
    baseline: RecentMin,
    /// The latency, averaged over some windows, in seconds. The shortest of many noisy latencies would
    /// be too short.
    average: Option<f64>,
}

impl Vegas {
    /// How long a baseline is kept at least: one minute.
    const BASELINE_US: u64 = 60_000_000;
}

impl Default for Vegas {
    fn default() -> Self {
        Self { baseline: RecentMin::new(Self::BASELINE_US), average: None }
    }
}

impl LimitAlgorithm for Vegas {
    fn name(&self) -> &'static str {
        "vegas"
    }

    fn next_limit(&mut self, limit: f64, window: &Window) -> f64 {
        let step = limit.log10().max(1.0);
        if window.overload_share() > 0.01 {
            return limit - step;
        }
        let latency = window.latency_typical.as_secs_f64();
        if window.samples == 0 || latency == 0.0 {
            return limit;
        }
        let average = self.average.unwrap_or(latency);
        let latency = average + (latency - average) / 8.0;
        self.average = Some(latency);
        let baseline = self.baseline.update(latency, window.now.get());
        if f64::from(window.in_flight_peak) * 2.0 < limit {
            return limit;
        }
        let queue = limit * (1.0 - baseline / latency);
        let (alpha, beta) = (3.0 * step, 6.0 * step);
        if queue <= step {
            limit + beta
        } else if queue < alpha {
            limit + step
        } else if queue > beta {
            limit - step
        } else {
            limit
        }
    }
}
