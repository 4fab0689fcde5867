//! Time and order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratekeeper::{Clock, Micros};
use tokio::time::Instant;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SEC: Duration = Duration::from_secs(1);

/// A clock that follows the paused clock of tokio.
pub(crate) struct VirtualClock(Instant);

impl VirtualClock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        Micros::new(1_800_000_000_000_000).after(self.0.elapsed())
    }
}

/// Who came when.
#[derive(Clone)]
pub(crate) struct Arrivals(Arc<Mutex<Vec<(u64, Duration)>>>, Instant);

impl Arrivals {
    pub(crate) fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    pub(crate) fn note(&self, who: u64) {
        self.0.lock().unwrap().push((who, self.1.elapsed()));
    }

    pub(crate) fn list(&self) -> Vec<(u64, Duration)> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn order(&self) -> Vec<u64> {
        self.list().into_iter().map(|(who, _)| who).collect()
    }
}

/// Lets everything that can run do so.
pub(crate) async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}
