//! Pauses of a quota that a fleet shares: for a while, no process sends requests of a key.
//!
//! A pause is a debt of a bucket whose units are milliseconds. So it has the same atomic step, the same expiry and the
//! same fallback as every other charge, and of several pauses the one that ends last counts.

use std::sync::LazyLock;
use std::time::Duration;

use ratekeeper_core::{Cost, FailureMode, Limit, MaxDebt};
use ratekeeper_stores::{Charge, ChargeKind, Op};

use super::apply::Engine;

static PAUSE: LazyLock<Limit> =
    LazyLock::new(|| Limit::token_bucket("1000/s burst 1").expect("a valid limit").named("pause"));

impl Engine {
    /// Pauses a key for this long, in every process that shares the store.
    pub(crate) async fn pause(&self, key: &[u8], wait: Duration) {
        let units = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).min(MAX_MS);
        let Some(cost) = Cost::new(units) else { return };
        let charge = Charge::new(&PAUSE, key).cost(cost).max_debt(MaxDebt::of_units(units - 1));
        // If the store is unavailable, the pause is known to this process only.
        let _ = self.apply(Op::Charge, &[charge.on_failure(FailureMode::Open)]).await;
    }

    /// Returns how long a key is still paused; zero if the store does not know, or is unavailable.
    pub(crate) async fn paused_for(&self, key: &[u8]) -> Duration {
        let look = Charge::new(&PAUSE, key).kind(ChargeKind::Look).on_failure(FailureMode::Open);
        match self.apply(Op::Peek, &[look]).await {
            Ok(applied) if !applied.is_degraded() => applied.retry_after().unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}

/// The longest pause: a day.
const MAX_MS: u64 = 24 * 60 * 60 * 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::EngineStore;
    use ratekeeper_stores::MemoryStore;

    #[tokio::test]
    async fn of_several_pauses_the_one_that_ends_last_counts() {
        let clock = ManualClock::new();
        let store = EngineStore::Memory(Box::new(MemoryStore::new()));
        let engine = Engine::new(store, Box::new(clock.clone()));
        assert_eq!(engine.paused_for(b"k").await, Duration::ZERO);
        for wait in [1_000, 3_000, 3_000, 2_000, 0] {
            engine.pause(b"k", Duration::from_millis(wait)).await;
        }
        assert_eq!(engine.paused_for(b"k").await, Duration::from_secs(3));
        assert_eq!(engine.paused_for(b"other").await, Duration::ZERO);
        clock.advance(Duration::from_millis(2_500));
        assert_eq!(engine.paused_for(b"k").await, Duration::from_millis(500));
        engine.pause(b"k", Duration::from_secs(1)).await;
        assert_eq!(engine.paused_for(b"k").await, Duration::from_secs(1));
        clock.advance(Duration::from_secs(1));
        assert_eq!(engine.paused_for(b"k").await, Duration::ZERO);
        engine.pause(b"k", Duration::MAX).await;
        assert_eq!(engine.paused_for(b"k").await, Duration::from_millis(MAX_MS));
    }
}
