//! The windows of a calendar period, for the fixed window algorithm.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use super::CalendarPeriod;
use crate::algorithm::{Age, LocatedCounts, WindowFunction, WindowTime};
use crate::cell::{Cell, Ttl};

const SECOND_US: u64 = 1_000_000;

/// The windows of a calendar period. The last ones in use are cached, so that a check does not compute dates.
#[derive(Clone, Debug)]
pub struct CalendarWindows {
    period: CalendarPeriod,
    /// As long as the longest window of the unit. It also identifies the unit in a cell.
    ttl: Ttl,
    current: CachedWindow,
    /// The windows around the current one, for a store whose clock decides.
    previous: CachedWindow,
    next: CachedWindow,
}

impl CalendarWindows {
    pub(crate) fn new(period: CalendarPeriod) -> Self {
        let ttl = Ttl::at_least(period.unit().greatest_length().as_micros() as u64);
        let new = CachedWindow::default;
        Self { period, ttl, current: new(), previous: new(), next: new() }
    }

    /// Returns the length of the window that was used last, or else the usual length.
    pub(crate) fn last_length(&self) -> Duration {
        match self.current.get() {
            window if window.is_empty() => self.period.unit().usual_length(),
            window => Duration::from_secs(window.end - window.start),
        }
    }

    /// Returns the starts of the previous, the current and the next window at a time, and the end of the last.
    pub(crate) fn bounds_around(&self, at: u64) -> [u64; 4] {
        let current = self.window(&self.current, at);
        let previous = self.window(&self.previous, current.start.saturating_sub(1));
        let next = self.window(&self.next, current.end);
        [previous.start, current.start, next.start, next.end]
    }

    #[inline]
    fn window(&self, cache: &CachedWindow, at: u64) -> Range<u64> {
        let second = at / SECOND_US;
        let cached = cache.get();
        let window = match cached.contains(&second) {
            true => cached,
            false => self.compute(cache, second),
        };
        window.start * SECOND_US..window.end * SECOND_US
    }

    #[cold]
    #[inline(never)]
    fn compute(&self, cache: &CachedWindow, second: u64) -> Range<u64> {
        let window = self.period.window_of_second(second);
        cache.set(&window);
        window
    }
}

impl WindowFunction for CalendarWindows {
    #[inline]
    fn time(&self, us: u64) -> WindowTime {
        let start = self.window(&self.current, us).start;
        WindowTime { us, start, elapsed_us: us - start }
    }

    #[inline]
    fn end(&self, start: u64) -> u64 {
        self.window(&self.current, start).end
    }

    #[inline]
    fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// A count belongs to the start of its window. After another day, time zone or version of its data has
    /// moved the start, the window that contains now begins with a count of 0.
    #[inline]
    fn locate(&self, cell: Cell, now: WindowTime) -> LocatedCounts {
        if cell.ttl() == self.ttl && cell.time() <= now.us {
            let age = if cell.time() == now.start { Age::Current } else { Age::Older };
            return LocatedCounts { start: now.start, age, is_from_other_limit: false };
        }
        locate_slow(self, cell, now.us)
    }
}

/// Locates the counts of a cell after the clock went back, or after the unit changed.
#[cold]
#[inline(never)]
fn locate_slow(windows: &CalendarWindows, cell: Cell, now: u64) -> LocatedCounts {
    let now = now.max(cell.time());
    let start = windows.time(now).start;
    let is_from_other_limit = cell.ttl() != windows.ttl;
    // When in its window a request was counted is unknown: assume the latest possible time.
    let last = match is_from_other_limit {
        true => now.min(cell.time() + cell.ttl().span().saturating_sub(1)),
        false => cell.time(),
    };
    let age = if last >= start { Age::Current } else { Age::Older };
    LocatedCounts { start, age, is_from_other_limit: is_from_other_limit && cell != Cell::EMPTY }
}

/// The window that was used last, in one word: the second of its start and, in the low bits, its length in
/// seconds. 0 is an empty window, which contains no time.
#[derive(Debug, Default)]
struct CachedWindow(AtomicU64);

const LENGTH_BITS: u32 = 31;

impl CachedWindow {
    #[inline]
    fn get(&self) -> Range<u64> {
        let word = self.0.load(Ordering::Relaxed);
        let (start, length) = (word >> LENGTH_BITS, word & ((1 << LENGTH_BITS) - 1));
        start..start + length
    }

    fn set(&self, window: &Range<u64>) {
        let word = window.start << LENGTH_BITS | (window.end - window.start);
        self.0.store(word, Ordering::Relaxed);
    }
}

impl Clone for CachedWindow {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}
