//! Gradient2, as in Netflix's concurrency-limits.

use super::{LimitAlgorithm, Window};

/// Compares the latency of a window with a long-term average, and shrinks by their ratio.
///
/// The gradient is tolerance × long-term / current latency, between 0.5 and 1. The limit moves by a
/// fifth towards limit × gradient + 4. So it grows slowly while latency is stable, and shrinks when
/// latency rises by more than half within the time of the average. What lasts longer than that
/// becomes the new normal, which is why it needs the guards.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::adaptive::{Gradient2, LimitAlgorithm, Window};
///
/// let window = |ms| Window {
///     samples: 100,
///     successes: 100,
///     latency_mean: Duration::from_millis(ms),
///     in_flight_peak: 100,
///     ..Window::default()
/// };
/// let mut gradient2 = Gradient2::default();
/// for _stable in 0..20 {
///     assert!(gradient2.next_limit(100.0, &window(10)) > 100.0);
/// }
/// assert!(gradient2.next_limit(100.0, &window(30)) < 100.0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Gradient2 {
    /// The weight of one window in the long-term average.
    weight: f64,
    /// The long-term average latency, in seconds.
    long_term: Option<f64>,
    windows: u32,
}

impl Gradient2 {
    const TOLERANCE: f64 = 1.5;
    const QUEUE: f64 = 4.0;
    const SMOOTHING: f64 = 0.2;
    /// So many windows are averaged plainly before the weight applies.
    const WARM_UP: u32 = 10;

    /// Returns a controller whose long-term average covers about `windows` windows.
    #[must_use]
    pub fn with_long_window(windows: u32) -> Self {
        Self { weight: 2.0 / (f64::from(windows) + 1.0), long_term: None, windows: 0 }
    }

    fn long_term(&mut self, latency: f64) -> f64 {
        self.windows = self.windows.saturating_add(1);
        let weight =
            if self.windows <= Self::WARM_UP { 1.0 / f64::from(self.windows) } else { self.weight };
        let old = self.long_term.unwrap_or(latency);
        let mut long_term = old + (latency - old) * weight;
        // Recovers within seconds after the service was slow for long.
        if long_term > 2.0 * latency {
            long_term *= 0.95;
        }
        self.long_term = Some(long_term);
        long_term
    }
}

impl Default for Gradient2 {
    /// Averages over 600 windows.
    fn default() -> Self {
        Self::with_long_window(600)
    }
}

impl LimitAlgorithm for Gradient2 {
    fn name(&self) -> &'static str {
        "gradient2"
    }

    fn next_limit(&mut self, limit: f64, window: &Window) -> f64 {
        let latency = window.latency_mean.as_secs_f64();
        if window.samples == 0 || latency == 0.0 {
            return if window.overload_share() > 0.5 { limit * 0.5 } else { limit };
        }
        let long_term = self.long_term(latency);
        if f64::from(window.in_flight_peak) * 2.0 < limit {
            return limit;
        }
        let gradient = (Self::TOLERANCE * long_term / latency).clamp(0.5, 1.0);
        let wanted = limit * gradient + Self::QUEUE;
        limit + (wanted - limit) * Self::SMOOTHING
    }
}
