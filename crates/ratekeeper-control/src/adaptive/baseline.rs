//! Baselines of latency.

/// The smallest value of the last one to two spans of time.
#[derive(Clone, Debug)]
pub(super) struct RecentMin {
    span_us: u64,
    since_us: u64,
    previous: f64,
    current: f64,
}

impl RecentMin {
    pub(super) fn new(span_us: u64) -> Self {
        Self { span_us, since_us: 0, previous: f64::INFINITY, current: f64::INFINITY }
    }

    /// Adds a value, and returns the smallest one.
    pub(super) fn update(&mut self, value: f64, now_us: u64) -> f64 {
        if now_us.saturating_sub(self.since_us) >= self.span_us {
            self.previous = self.current;
            self.current = f64::INFINITY;
            self.since_us = now_us;
        }
        self.current = self.current.min(value);
        self.current.min(self.previous)
    }
}
