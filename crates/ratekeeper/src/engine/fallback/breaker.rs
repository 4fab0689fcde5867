//! A circuit breaker per shard of the store.
//!
//! Closed, every call goes to the store. After a few failures in a row the breaker opens, and no call does;
//! a probe in the background goes on. When the probe succeeds the breaker is half-open: one call at a time is
//! let through, then two, then four, as long as they succeed, until it is closed again. So a store that has
//! just started does not meet a thundering herd.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Failures in a row that open a breaker.
const FAILURES_MAX: u32 = 3;
/// A half-open breaker that lets so many calls through at a time is closed by the next success.
const TRIALS_MAX: u32 = 64;

/// How many shards have a breaker of their own.
const SHARDS_MAX: usize = 64;

const CLOSED: u32 = u32::MAX;

/// Whether calls go to the store.
///
/// ```
/// use ratekeeper::SharedLimiter;
/// use ratekeeper::shared::BreakerState;
///
/// # fn f(limiter: SharedLimiter) {
/// if limiter.breaker_state() != BreakerState::Closed {
///     eprintln!("the store has failed, and is called by few requests or by none");
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// All calls do.
    Closed,
    /// No call does.
    Open,
    /// A few at a time do.
    HalfOpen,
}

#[derive(Debug)]
pub(super) struct Breaker {
    /// How many calls may be in flight: none if it is open, any number if it is closed.
    in_flight_max: AtomicU32,
    in_flight: AtomicU32,
    failures: AtomicU32,
    opened: AtomicU64,
}

/// Permission to make one call. It must be given the result of the call.
#[must_use]
pub(super) struct CallPermit<'b> {
    breaker: &'b Breaker,
    is_trial: bool,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self {
            in_flight_max: AtomicU32::new(CLOSED),
            in_flight: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            opened: AtomicU64::new(0),
        }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.in_flight_max.load(Ordering::Relaxed) {
            CLOSED => BreakerState::Closed,
            0 => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        }
    }

    /// Returns how often it has opened.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Returns permission to call the store, or `None` if it must not be called now.
    pub(super) fn try_call(&self) -> Option<CallPermit<'_>> {
        let max = self.in_flight_max.load(Ordering::Relaxed);
        if max == CLOSED {
            return Some(CallPermit { breaker: self, is_trial: false });
        }
        let begin = |in_flight: u32| (in_flight < max).then_some(in_flight + 1);
        let begun = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, begin);
        begun.ok().map(|_| CallPermit { breaker: self, is_trial: true })
    }

    /// Makes an open breaker half-open.
    pub(super) fn probe_succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
        let _ = self.in_flight_max.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
    }

    fn succeeded(&self, is_trial: bool) {
        self.failures.store(0, Ordering::Relaxed);
        if is_trial {
            let more = |max: u32| match max {
                0 | CLOSED => None,
                TRIALS_MAX.. => Some(CLOSED),
                max => Some(max * 2),
            };
            let _ = self.in_flight_max.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        }
    }

    /// Returns whether this failure opened the breaker.
    fn failed(&self, is_trial: bool) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if !is_trial && failures < FAILURES_MAX {
            return false;
        }
        let was_open = self.in_flight_max.swap(0, Ordering::AcqRel) == 0;
        if !was_open {
            self.opened.fetch_add(1, Ordering::Relaxed);
        }
        !was_open
    }
}

/// A breaker for each shard of the store. Shards beyond [`SHARDS_MAX`] share breakers.
pub(super) struct Breakers(Box<[Breaker]>);

impl Breakers {
    pub(super) fn new() -> Self {
        Self((0..SHARDS_MAX).map(|_| Breaker::new()).collect())
    }

    pub(super) fn of(&self, shard: usize) -> &Breaker {
        &self.0[shard % SHARDS_MAX]
    }

    /// Returns permission to call these shards, or `None` if one of them must not be called now.
    pub(super) fn try_call(&self, shards: impl Iterator<Item = usize>) -> Option<CallPermits<'_>> {
        let mut permits = CallPermits::default();
        for shard in shards {
            if permits.0.iter().all(|(known, _)| *known != shard) {
                permits.0.push((shard, self.of(shard).try_call()?));
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
        self.0.iter().map(Breaker::opened).sum()
    }
}

/// Permission to make one call to one or several shards.
#[derive(Default)]
#[must_use]
pub(super) struct CallPermits<'b>(Vec<(usize, CallPermit<'b>)>);

impl CallPermits<'_> {
    pub(super) fn succeeded(self) {
        self.0.into_iter().for_each(|(_, permit)| permit.succeeded());
    }

    /// Notes that one of the shards failed. Returns whether that opened its breaker.
    pub(super) fn failed(self, shard: usize) -> bool {
        let failed = self.0.into_iter().find(|(known, _)| *known == shard);
        failed.is_some_and(|(_, permit)| permit.failed())
    }
}

impl CallPermit<'_> {
    pub(super) fn succeeded(self) {
        self.breaker.succeeded(self.is_trial);
    }

    /// Returns whether this failure opened the breaker.
    pub(super) fn failed(self) -> bool {
        self.breaker.failed(self.is_trial)
    }
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        if self.is_trial {
            self.breaker.in_flight.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &Breaker) -> bool {
        breaker.try_call().expect("permitted").failed()
    }

    #[test]
    fn it_opens_after_a_few_failures_in_a_row() {
        let breaker = Breaker::new();
        assert!(!fail(&breaker) && !fail(&breaker));
        breaker.try_call().unwrap().succeeded();
        assert!(!fail(&breaker) && !fail(&breaker), "a success resets the count");
        assert!(fail(&breaker));
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 1));
        assert!(breaker.try_call().is_none());
    }

    #[test]
    fn half_open_lets_one_call_through_then_two_then_four() {
        let breaker = Breaker::new();
        assert_eq!([fail(&breaker), fail(&breaker), fail(&breaker)], [false, false, true]);
        breaker.probe_succeeded();
        let mut in_flight = Vec::new();
        while breaker.state() != BreakerState::Closed {
            let permits: Vec<_> = std::iter::from_fn(|| breaker.try_call()).take(1_000).collect();
            in_flight.push(permits.len());
            let mut permits = permits.into_iter();
            permits.next().unwrap().succeeded();
        }
        assert_eq!(in_flight, [1, 2, 4, 8, 16, 32, 64]);
        assert!(breaker.try_call().is_some());
    }

    #[test]
    fn a_failure_while_half_open_opens_it_at_once() {
        let breaker = Breaker::new();
        assert_eq!([fail(&breaker), fail(&breaker), fail(&breaker)], [false, false, true]);
        breaker.probe_succeeded();
        breaker.try_call().unwrap().succeeded();
        assert!(fail(&breaker));
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn a_cancelled_call_is_no_longer_in_flight() {
        let breaker = Breaker::new();
        assert_eq!([fail(&breaker), fail(&breaker), fail(&breaker)], [false, false, true]);
        breaker.probe_succeeded();
        drop(breaker.try_call().unwrap());
        assert!(breaker.try_call().is_some());
    }
}
