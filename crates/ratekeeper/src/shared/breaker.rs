//! The breaker: stops asking a store that does not answer, and comes back to it slowly.
//!
//! Closed, every call goes to the store. After a few failures in a row it opens, and none does; what
//! goes on asking is one probe in the background. When that gets an answer, a single call is let
//! through, then two at a time, then four, as long as they succeed, until it is closed again. So a
//! store that has just come up is not met by everybody at once.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Failures in a row that open it.
const FAILURES_MAX: u32 = 3;
/// So many calls at a time, and it is as good as closed.
const TRIALS_MAX: u32 = 64;

/// As many shards have a breaker of their own.
const SHARDS_MAX: usize = 64;

const CLOSED: u32 = u32::MAX;

/// Whether calls go to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All of them.
    Closed,
    /// None.
    Open,
    /// A few at a time.
    Recovering,
}

#[derive(Debug)]
pub(super) struct Breaker {
    /// How many calls may be under way at a time: none if it is open, any number if it is closed.
    allowed: AtomicU32,
    under_way: AtomicU32,
    failures: AtomicU32,
    opened: AtomicU64,
}

/// Leave to make one call. Ends with what became of it.
#[must_use]
pub(super) struct Leave<'b> {
    breaker: &'b Breaker,
    is_counted: bool,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self {
            allowed: AtomicU32::new(CLOSED),
            under_way: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            opened: AtomicU64::new(0),
        }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.allowed.load(Ordering::Relaxed) {
            CLOSED => BreakerState::Closed,
            0 => BreakerState::Open,
            _ => BreakerState::Recovering,
        }
    }

    /// How often it has opened.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Leave to ask the store, or `None` if it should be left alone.
    pub(super) fn ask(&self) -> Option<Leave<'_>> {
        let allowed = self.allowed.load(Ordering::Relaxed);
        if allowed == CLOSED {
            return Some(Leave { breaker: self, is_counted: false });
        }
        let begin = |under_way: u32| (under_way < allowed).then_some(under_way + 1);
        let begun = self.under_way.fetch_update(Ordering::AcqRel, Ordering::Relaxed, begin);
        begun.ok().map(|_| Leave { breaker: self, is_counted: true })
    }

    /// The probe got an answer: a first call may follow.
    pub(super) fn probe_succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
        let _ = self.allowed.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
    }

    fn succeeded(&self, is_trial: bool) {
        self.failures.store(0, Ordering::Relaxed);
        if is_trial {
            let more = |allowed: u32| match allowed {
                0 | CLOSED => None,
                TRIALS_MAX.. => Some(CLOSED),
                allowed => Some(allowed * 2),
            };
            let _ = self.allowed.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        }
    }

    /// True if this is what opened it.
    fn failed(&self, is_trial: bool) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if !is_trial && failures < FAILURES_MAX {
            return false;
        }
        let was_open = self.allowed.swap(0, Ordering::AcqRel) == 0;
        if !was_open {
            self.opened.fetch_add(1, Ordering::Relaxed);
        }
        !was_open
    }
}

/// A breaker for each shard of the store. Shards beyond the last share one.
pub(super) struct Breakers(Box<[Breaker]>);

impl Breakers {
    pub(super) fn new() -> Self {
        Self((0..SHARDS_MAX).map(|_| Breaker::new()).collect())
    }

    pub(super) fn of(&self, shard: usize) -> &Breaker {
        &self.0[shard % SHARDS_MAX]
    }

    /// Leave to call these shards, or `None` if one of them should be left alone.
    pub(super) fn ask(&self, shards: impl Iterator<Item = usize>) -> Option<Leaves<'_>> {
        let mut leaves = Leaves::default();
        for shard in shards {
            if leaves.0.iter().all(|(known, _)| *known != shard) {
                leaves.0.push((shard, self.of(shard).ask()?));
            }
        }
        Some(leaves)
    }

    /// The state of the one that is furthest from closed.
    pub(super) fn worst(&self) -> BreakerState {
        let is = |state| self.0.iter().any(|breaker| breaker.state() == state);
        match (is(BreakerState::Open), is(BreakerState::Recovering)) {
            (true, _) => BreakerState::Open,
            (false, true) => BreakerState::Recovering,
            (false, false) => BreakerState::Closed,
        }
    }

    /// How many of the first `shards` are not closed.
    pub(super) fn not_closed(&self, shards: usize) -> usize {
        let shards = &self.0[..shards.min(SHARDS_MAX)];
        shards.iter().filter(|breaker| breaker.state() != BreakerState::Closed).count()
    }

    /// The shards whose breakers are open.
    pub(super) fn open(&self) -> impl Iterator<Item = usize> {
        (0..SHARDS_MAX).filter(|shard| self.of(*shard).state() == BreakerState::Open)
    }

    /// How often one of them has opened.
    pub(super) fn opened(&self) -> u64 {
        self.0.iter().map(Breaker::opened).sum()
    }
}

/// Leave to make one call to one or several shards.
#[derive(Default)]
#[must_use]
pub(super) struct Leaves<'b>(Vec<(usize, Leave<'b>)>);

impl Leaves<'_> {
    pub(super) fn succeeded(self) {
        self.0.into_iter().for_each(|(_, leave)| leave.succeeded());
    }

    /// One of the shards has failed. True if that is what opened its breaker.
    pub(super) fn failed(self, shard: usize) -> bool {
        let failed = self.0.into_iter().find(|(known, _)| *known == shard);
        failed.is_some_and(|(_, leave)| leave.failed())
    }
}

impl Leave<'_> {
    pub(super) fn succeeded(self) {
        self.breaker.succeeded(self.is_counted);
    }

    /// True if this is what opened the breaker.
    pub(super) fn failed(self) -> bool {
        self.breaker.failed(self.is_counted)
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            self.breaker.under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &Breaker) -> bool {
        breaker.ask().expect("leave").failed()
    }

    #[test]
    fn it_opens_after_a_few_failures_in_a_row() {
        let breaker = Breaker::new();
        assert!(!fail(&breaker) && !fail(&breaker));
        breaker.ask().unwrap().succeeded();
        assert!(!fail(&breaker) && !fail(&breaker), "a success begins the count anew");
        assert!(fail(&breaker));
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 1));
        assert!(breaker.ask().is_none());
    }

    #[test]
    fn it_comes_back_one_call_then_two_then_four() {
        let breaker = Breaker::new();
        assert_eq!([fail(&breaker), fail(&breaker), fail(&breaker)], [false, false, true]);
        breaker.probe_succeeded();
        let mut at_a_time = Vec::new();
        while breaker.state() != BreakerState::Closed {
            let leaves: Vec<_> = std::iter::from_fn(|| breaker.ask()).take(1_000).collect();
            at_a_time.push(leaves.len());
            let mut leaves = leaves.into_iter();
            leaves.next().unwrap().succeeded();
        }
        assert_eq!(at_a_time, [1, 2, 4, 8, 16, 32, 64]);
        assert!(breaker.ask().is_some());
    }

    #[test]
    fn a_failure_while_it_comes_back_opens_it_at_once() {
        let breaker = Breaker::new();
        assert_eq!([fail(&breaker), fail(&breaker), fail(&breaker)], [false, false, true]);
        breaker.probe_succeeded();
        breaker.ask().unwrap().succeeded();
        assert!(fail(&breaker));
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn a_call_that_is_given_up_frees_its_place() {
        let breaker = Breaker::new();
        assert_eq!([fail(&breaker), fail(&breaker), fail(&breaker)], [false, false, true]);
        breaker.probe_succeeded();
        drop(breaker.ask().unwrap());
        assert!(breaker.ask().is_some());
    }
}
