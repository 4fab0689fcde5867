//! How many of the last calls failed or were slow.

use std::time::Duration;

use ratekeeper_core::Micros;

use super::config::SlidingWindow;
use crate::window_counter::{WindowCounter, checked_window};

/// The most calls of a window by count.
pub(super) const CALLS_MAX: u32 = 1_024;

const WORD_BITS: usize = u64::BITS as usize;
const WORDS: usize = CALLS_MAX as usize / WORD_BITS;

/// What a breaker notes of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) is_failure: bool,
    pub(super) is_slow: bool,
}

/// The calls of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) calls: u64,
    pub(super) failures: u64,
    pub(super) slow: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Window {
    Calls(Box<LastCalls>),
    Time(Box<CallsInTime>),
}

impl Window {
    /// Returns an empty window of a checked configuration.
    pub(super) fn new(window: SlidingWindow) -> Self {
        match window {
            SlidingWindow::Calls(calls) => Self::Calls(Box::new(LastCalls::new(calls))),
            SlidingWindow::Time(time) => Self::Time(Box::new(CallsInTime::new(time))),
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            Self::Calls(calls) => **calls = LastCalls::new(calls.size),
            Self::Time(time) => **time = CallsInTime::new(time.window),
        }
    }

    pub(super) fn add(&mut self, sample: Sample, now: Micros) {
        match self {
            Self::Calls(calls) => calls.add(sample),
            Self::Time(time) => time.add(sample, now),
        }
    }

    /// Adds calls that were neither slow nor failures.
    pub(super) fn add_successes(&mut self, successes: u64, now: Micros) {
        match self {
            Self::Calls(calls) => calls.add_successes(successes),
            Self::Time(time) => time.add_successes(successes, now),
        }
    }

    pub(super) fn totals(&self, now: Micros) -> Totals {
        match self {
            Self::Calls(calls) => calls.totals,
            Self::Time(time) => time.totals(now),
        }
    }
}

/// The last calls, in a ring of bits.
#[derive(Clone, Debug)]
pub(super) struct LastCalls {
    size: u32,
    /// Where the next call goes; once the ring is full, the oldest call is there.
    next: u32,
    totals: Totals,
    failures: [u64; WORDS],
    slow: [u64; WORDS],
}

impl LastCalls {
    fn new(size: u32) -> Self {
        let totals = Totals::default();
        Self { size, next: 0, totals, failures: [0; WORDS], slow: [0; WORDS] }
    }

    fn add(&mut self, sample: Sample) {
        let was_failure = replace(&mut self.failures, self.next, sample.is_failure);
        let was_slow = replace(&mut self.slow, self.next, sample.is_slow);
        let totals = &mut self.totals;
        totals.calls = (totals.calls + 1).min(u64::from(self.size));
        totals.failures += u64::from(sample.is_failure);
        totals.failures -= u64::from(was_failure);
        totals.slow += u64::from(sample.is_slow);
        totals.slow -= u64::from(was_slow);
        self.next = if self.next + 1 == self.size { 0 } else { self.next + 1 };
    }

    fn add_successes(&mut self, successes: u64) {
        let size = u64::from(self.size);
        if successes >= size {
            *self = Self::new(self.size);
            self.totals.calls = size;
            return;
        }
        (0..successes).for_each(|_| self.add(Sample::default()));
    }
}

/// Sets a bit and returns what it was.
fn replace(bits: &mut [u64; WORDS], index: u32, is_set: bool) -> bool {
    let (word, bit) = (index as usize / WORD_BITS, index as usize % WORD_BITS);
    let was_set = bits[word] >> bit & 1 == 1;
    bits[word] = bits[word] & !(1 << bit) | u64::from(is_set) << bit;
    was_set
}

/// The calls of a time, in slots.
#[derive(Clone, Debug)]
pub(super) struct CallsInTime {
    window: Duration,
    calls: WindowCounter,
    failures: WindowCounter,
    slow: WindowCounter,
}

impl CallsInTime {
    fn new(window: Duration) -> Self {
        let window = checked_window(window).expect("the configuration was checked");
        let counter = WindowCounter::new(window);
        Self { window, calls: counter.clone(), failures: counter.clone(), slow: counter }
    }

    fn add(&mut self, sample: Sample, now: Micros) {
        let now = self.at_latest(now);
        self.calls.add(1, now);
        self.failures.add(u64::from(sample.is_failure), now);
        self.slow.add(u64::from(sample.is_slow), now);
    }

    fn add_successes(&mut self, successes: u64, now: Micros) {
        self.calls.add(successes, self.at_latest(now));
    }

    fn totals(&self, now: Micros) -> Totals {
        let now = self.at_latest(now);
        Totals {
            calls: self.calls.at_most_window(now),
            failures: self.failures.at_most_window(now),
            slow: self.slow.at_most_window(now),
        }
    }

    /// Returns the time by which all counters go. Every call is counted in `calls`, so that has the
    /// latest time.
    fn at_latest(&self, now: Micros) -> Micros {
        now.max(self.calls.latest_time())
    }
}
