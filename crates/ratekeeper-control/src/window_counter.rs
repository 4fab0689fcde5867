//! Counts events in a sliding window of time, in a fixed number of slots.

use std::time::Duration;

use ratekeeper_core::Micros;

/// The slots of one window. A whole millisecond divides evenly into them.
pub(crate) const SLOTS: usize = 40;

/// One slot more than a window, because a window that starts within a slot covers parts of two.
const RING: usize = SLOTS + 1;

/// The shortest window, and the unit to which windows are rounded up.
pub(crate) const WINDOW_MIN: Duration = Duration::from_millis(1);

/// The longest window.
pub(crate) const WINDOW_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A number of events, by the slot of time in which they came.
///
/// Its time never goes backwards: an event with an earlier time counts in the latest slot.
#[derive(Clone, Debug)]
pub(crate) struct WindowCounter {
    slot_us: u64,
    /// The number of the latest slot, counted from the epoch.
    latest: u64,
    /// Slot `n` is at index `n % RING`.
    counts: [u64; RING],
    /// The sum of all counts.
    total: u64,
}

/// Returns the window that is counted: rounded up to whole milliseconds.
///
/// `None` if it is not between [`WINDOW_MIN`] and [`WINDOW_MAX`].
pub(crate) fn checked_window(window: Duration) -> Option<Duration> {
    let is_valid = (WINDOW_MIN..=WINDOW_MAX).contains(&window);
    let ms = window.as_nanos().div_ceil(WINDOW_MIN.as_nanos());
    is_valid.then(|| Duration::from_millis(ms as u64))
}

impl WindowCounter {
    /// Returns a counter for a window of [`checked_window`].
    pub(crate) fn new(window: Duration) -> Self {
        let slot_us = window.as_micros() as u64 / SLOTS as u64;
        Self { slot_us: slot_us.max(1), latest: 0, counts: [0; RING], total: 0 }
    }

    /// Returns the start of the latest slot with an event. Several counters that use the same
    /// window and the latest of their times have one time.
    pub(crate) fn latest_time(&self) -> Micros {
        Micros::new(self.latest * self.slot_us)
    }

    /// Counts events.
    pub(crate) fn add(&mut self, events: u64, now: Micros) {
        self.advance(now);
        self.counts[self.latest as usize % RING] += events;
        self.total += events;
    }

    /// Returns the events of the last [`SLOTS`] slots, the current one included: none that is older
    /// than the window, but not all of its oldest slot.
    pub(crate) fn at_most_window(&self, now: Micros) -> u64 {
        self.newest(SLOTS, now)
    }

    /// Returns the events of the window and of what is left of its oldest slot: all of the window,
    /// and none that is older than the window and a slot.
    pub(crate) fn at_least_window(&self, now: Micros) -> u64 {
        self.newest(RING, now)
    }

    /// Returns the sum of the `slots` newest slots: the total without what has expired since.
    fn newest(&self, slots: usize, now: Micros) -> u64 {
        let passed = self.slot_of(now) - self.latest;
        let expired = (RING - slots) as u64 + passed.min(RING as u64);
        let oldest = self.latest + 1;
        let sum = |slots: u64| -> u64 {
            (0..slots).map(|offset| self.counts[(oldest + offset) as usize % RING]).sum()
        };
        self.total - sum(expired.min(RING as u64))
    }

    /// Empties the slots that have expired.
    fn advance(&mut self, now: Micros) {
        let slot = self.slot_of(now);
        let passed = (slot - self.latest).min(RING as u64);
        for offset in 1..=passed {
            let expired = &mut self.counts[(self.latest + offset) as usize % RING];
            self.total -= std::mem::take(expired);
        }
        self.latest = slot;
    }

    /// Returns the slot of a time, which is never before the latest one.
    fn slot_of(&self, now: Micros) -> u64 {
        (now.get() / self.slot_us).max(self.latest)
    }
}
