//! Monotonic time as a number that fits into an atomic.

use std::time::Duration;

use tokio::time::Instant;

/// Microseconds since this was created, from 1 on: 0 stands for "not set" wherever a time is stored.
#[derive(Clone, Copy)]
pub(crate) struct Ticks(Instant);

impl Ticks {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now_us(self) -> u64 {
        (self.0.elapsed().as_micros() as u64).max(1)
    }

    pub(crate) fn instant(self, us: u64) -> Instant {
        self.0 + Duration::from_micros(us)
    }
}
