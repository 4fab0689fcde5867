//! Models of controllers of other projects, as their documentation describes them.

use std::time::Duration;

use ratekeeper_control::Micros;
use ratekeeper_control::adaptive::{
    Gradient2, LimitAlgorithm, SampleOutcome, WindowAggregator, WindowConfig,
};

use super::protection::ConcurrencyLimiter;

/// Gradient2 of Netflix's concurrency-limits: initial limit 20, at most 200, windows of a second.
pub(super) struct NetflixGradient2 {
    windows: WindowAggregator,
    gradient2: Gradient2,
    limit: f64,
}

impl NetflixGradient2 {
    const MIN: f64 = 20.0;
    const MAX: f64 = 200.0;
}

impl ConcurrencyLimiter for NetflixGradient2 {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn record(&mut self, outcome: SampleOutcome, latency: Duration, in_flight: u32, now: Micros) {
        self.windows.record(outcome, latency, in_flight, now);
        if let Some(window) = self.windows.try_close(now) {
            let limit = self.gradient2.next_limit(self.limit, &window);
            self.limit = limit.clamp(Self::MIN, Self::MAX);
        }
    }
}

impl Default for NetflixGradient2 {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        let config = WindowConfig::DEFAULT.with_samples_min(10).with_duration(second, second);
        let windows = WindowAggregator::new(config).expect("the durations are in order");
        Self { windows, gradient2: Gradient2::default(), limit: Self::MIN }
    }
}

/// Envoy's gradient controller with its default settings.
///
/// The gradient is (minRTT + 25%) / sampled p50, between 0.5 and 2; the limit is limit × gradient plus the
/// square root of that, updated every 100 ms. The minRTT is measured every minute from 50 requests while
/// the limit is 3.
pub(super) struct EnvoyGradient {
    limit: f64,
    min_rtt_us: f64,
    /// The limit to return to after the minRTT is measured.
    probing: bool,
    next_probe_us: u64,
    window_ends_us: u64,
    latencies_us: Vec<u64>,
}

impl EnvoyGradient {
    const PROBE_LIMIT: f64 = 3.0;
    const PROBE_REQUESTS: usize = 50;
    const PROBE_INTERVAL_US: u64 = 60_000_000;
    const WINDOW_US: u64 = 100_000;
    const BUFFER: f64 = 1.25;
    const MAX: f64 = 1_000.0;

    fn take_median_us(&mut self) -> f64 {
        let middle = self.latencies_us.len() / 2;
        let (_, median_us, _) = self.latencies_us.select_nth_unstable(middle);
        let median_us = (*median_us).max(1) as f64;
        self.latencies_us.clear();
        median_us
    }
}

impl ConcurrencyLimiter for EnvoyGradient {
    fn limit(&self) -> u32 {
        let limit = if self.probing { Self::PROBE_LIMIT } else { self.limit };
        limit as u32
    }

    fn record(&mut self, outcome: SampleOutcome, latency: Duration, _: u32, now: Micros) {
        let now_us = now.get();
        if outcome == SampleOutcome::Success {
            self.latencies_us.push(latency.as_micros() as u64);
        }
        if self.probing {
            if self.latencies_us.len() >= Self::PROBE_REQUESTS {
                self.min_rtt_us = self.take_median_us();
                self.probing = false;
                self.next_probe_us = now_us + Self::PROBE_INTERVAL_US;
                self.window_ends_us = now_us + Self::WINDOW_US;
            }
        } else if now_us >= self.next_probe_us {
            self.probing = true;
            self.latencies_us.clear();
        } else if now_us >= self.window_ends_us && !self.latencies_us.is_empty() {
            let sampled_us = self.take_median_us();
            let gradient = (self.min_rtt_us * Self::BUFFER / sampled_us).clamp(0.5, 2.0);
            let limit = self.limit * gradient;
            self.limit = (limit + limit.sqrt()).clamp(Self::PROBE_LIMIT, Self::MAX);
            self.window_ends_us = now_us + Self::WINDOW_US;
        }
    }
}

impl Default for EnvoyGradient {
    fn default() -> Self {
        Self {
            limit: Self::PROBE_LIMIT,
            min_rtt_us: 1.0,
            probing: true,
            next_probe_us: 0,
            window_ends_us: 0,
            latencies_us: Vec::new(),
        }
    }
}
