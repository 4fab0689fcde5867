//! Time since the gateway began, in a number that fits an atomic.

use std::time::Duration;

use tokio::time::Instant;

/// Microseconds since the gateway began; 0 stands for "not" wherever a moment is kept.
#[derive(Clone, Copy)]
pub(super) struct Ticks(Instant);

impl Ticks {
    pub(super) fn begin() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now_us(self) -> u64 {
        (self.0.elapsed().as_micros() as u64).max(1)
    }

    pub(super) fn instant(self, us: u64) -> Instant {
        self.0 + Duration::from_micros(us)
    }
}
