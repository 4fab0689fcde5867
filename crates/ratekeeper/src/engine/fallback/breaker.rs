//! A circuit breaker per shard of the store.
//!
//! Closed, every call goes to the store. After a few failures in a row the breaker opens, and no call does;
//! a probe in the background goes on. When the probe succeeds the breaker is half-open: one call at a time is
//! let through, then two, then four, as long as they succeed, until it is closed again. So a store that has
//! just started does not meet a thundering herd.

use std::time::Duration;

use ratekeeper_control::{BreakerConfig, BreakerState, Outcome, Probes};

use crate::breaker::{Call, CircuitBreaker};

/// The rules of a breaker. Time has no part in them: the probe in the background ends the wait, and calls of the store
/// have a deadline, so that no probe hangs.
const CONFIG: BreakerConfig = BreakerConfig::DEFAULT
    .without_failure_rate()
    .with_consecutive_failures(3)
    .without_wait()
    .with_probes(Probes::Ramp { max: 64 })
    .with_probe_timeout(Duration::MAX);

/// How many shards have a breaker of their own.
const SHARDS_MAX: usize = 64;

/// A breaker for each shard of the store. Shards beyond [`SHARDS_MAX`] share breakers.
pub(super) struct Breakers(Box<[CircuitBreaker]>);

impl Breakers {
    pub(super) fn new() -> Self {
        Self((0..SHARDS_MAX).map(|_| breaker()).collect())
    }

    pub(super) fn of(&self, shard: usize) -> &CircuitBreaker {
        &self.0[shard % SHARDS_MAX]
    }

    /// Returns permission to call these shards, or `None` if one of them must not be called now.
    pub(super) fn try_call(&self, shards: impl Iterator<Item = usize>) -> Option<CallPermits<'_>> {
        let mut permits = CallPermits::default();
        for shard in shards {
            if permits.0.iter().all(|(known, _)| *known != shard) {
                permits.0.push((shard, self.of(shard).try_call().ok()?));
            }
        }
        Some(permits)
    }

    /// Returns the state of the breaker that is furthest from closed.
    pub(super) fn worst(&self) -> BreakerState {
        let is = |state| self.0.iter().any(|breaker| breaker.state() == state);
        match (is(BreakerState::Open), is(BreakerState::HalfOpen)) {
            (true, _) => BreakerState::Open,
            (false, true) => BreakerState::HalfOpen,
            (false, false) => BreakerState::Closed,
        }
    }

    /// Returns how many of the first `shards` are not called. One that is half-open responds again.
    pub(super) fn down(&self, shards: usize) -> usize {
        let shards = &self.0[..shards.min(SHARDS_MAX)];
        shards.iter().filter(|breaker| breaker.state() == BreakerState::Open).count()
    }

    /// Returns the shards whose breakers are open.
    pub(super) fn open(&self) -> impl Iterator<Item = usize> {
        (0..SHARDS_MAX).filter(|shard| self.of(*shard).state() == BreakerState::Open)
    }

    /// Returns how often any of them has opened.
    pub(super) fn opened(&self) -> u64 {
        self.0.iter().map(|breaker| breaker.stats().opened).sum()
    }
}

/// Permission to make one call to one or several shards.
#[derive(Default)]
#[must_use]
pub(super) struct CallPermits<'b>(Vec<(usize, Call<'b>)>);

impl CallPermits<'_> {
    pub(super) fn succeeded(self) {
        self.0.into_iter().for_each(|(_, call)| call.success());
    }

    /// Notes that one of the shards failed. Returns whether that opened its breaker.
    pub(super) fn failed(self, shard: usize) -> bool {
        let failed = self.0.into_iter().find(|(known, _)| *known == shard);
        let change = failed.and_then(|(_, call)| call.finish(Outcome::Failure));
        change.is_some_and(|change| change.to == BreakerState::Open)
    }
}

fn breaker() -> CircuitBreaker {
    CircuitBreaker::new(CONFIG).expect("the rules are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breakers: &Breakers) -> bool {
        breakers.try_call(std::iter::once(0)).expect("permitted").failed(0)
    }

    fn opened() -> Breakers {
        let breakers = Breakers::new();
        assert_eq!([fail(&breakers), fail(&breakers), fail(&breakers)], [false, false, true]);
        breakers
    }

    #[test]
    fn it_opens_after_a_few_failures_in_a_row() {
        let breakers = Breakers::new();
        assert!(!fail(&breakers) && !fail(&breakers));
        breakers.of(0).try_call().unwrap().success();
        assert!(!fail(&breakers) && !fail(&breakers), "a success resets the count");
        assert!(fail(&breakers));
        assert_eq!((breakers.worst(), breakers.opened()), (BreakerState::Open, 1));
        assert!(breakers.of(0).try_call().is_err());
        assert!(breakers.of(1).try_call().is_ok(), "another shard");
        assert!(breakers.try_call([1, 0].into_iter()).is_none());
    }

    #[test]
    fn half_open_lets_one_call_through_then_two_then_four() {
        let breakers = opened();
        let breaker = breakers.of(0);
        breaker.probe_succeeded();
        let mut in_flight = Vec::new();
        while breaker.state() != BreakerState::Closed {
            let calls: Vec<_> =
                std::iter::from_fn(|| breaker.try_call().ok()).take(1_000).collect();
            in_flight.push(calls.len());
            let mut calls = calls.into_iter();
            calls.next().unwrap().success();
        }
        assert_eq!(in_flight, [1, 2, 4, 8, 16, 32, 64]);
        assert!(breaker.try_call().is_ok());
    }

    #[test]
    fn a_failure_while_half_open_opens_it_at_once() {
        let breakers = opened();
        breakers.of(0).probe_succeeded();
        breakers.of(0).try_call().unwrap().success();
        assert!(fail(&breakers));
        assert_eq!(breakers.worst(), BreakerState::Open);
    }

    #[test]
    fn a_cancelled_call_is_no_longer_in_flight() {
        let breakers = opened();
        breakers.of(0).probe_succeeded();
        drop(breakers.of(0).try_call().unwrap());
        assert!(breakers.of(0).try_call().is_ok());
    }
}
