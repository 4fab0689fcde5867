//! Windows of one length, aligned to the epoch, and the age of the counts in a cell. Calendar windows are in
//! [`crate::calendar`].
//!
//! The cell of a window counter holds the start of the window it counts in, and a code of the
//! window length. So within a window, and under the same limit, only the counts change.

use super::arithmetic::Divisor;
use crate::cell::{Cell, Ttl};

/// Divides time into windows, and finds the one that the counts of a cell are of.
pub trait WindowFunction {
    /// Returns the window of a time.
    fn time(&self, us: u64) -> WindowTime;

    /// Returns the end of the window that begins at `start`.
    fn end(&self, start: u64) -> u64;

    /// Returns the time-to-live of a cell. It also distinguishes cells of other windows.
    fn ttl(&self) -> Ttl;

    /// Returns the window to count in, and the age of the counts of a cell.
    fn locate(&self, cell: Cell, now: WindowTime) -> LocatedCounts;

    /// Returns the first word of a cell that counts in the window of `now`.
    #[inline(always)]
    fn first_word(&self, now: WindowTime) -> u64 {
        Cell::first_word(now.start, self.ttl())
    }

    /// Returns the cell of a window's counts.
    #[inline]
    fn cell(&self, start: u64, counts: u64) -> Cell {
        Cell::new(start, self.ttl(), counts)
    }
}

/// Windows of one length, aligned to the epoch.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    length_us: Divisor,
    /// For how many windows a count matters: 1 if fixed, 2 if sliding.
    retained: u64,
    /// As long as the retained windows. It also identifies the window length of a cell.
    ttl: Ttl,
}

/// A time, and the window that it is in.
#[derive(Clone, Copy, Debug)]
pub struct WindowTime {
    pub(crate) us: u64,
    /// The start of the window.
    pub(crate) start: u64,
    /// The time since then.
    pub(crate) elapsed_us: u64,
}

/// The window to count in, and how old the counts of a cell are relative to it. It is the current
/// window or, if the clock has gone back, the one that the cell counts in.
#[derive(Clone, Copy, Debug)]
pub struct LocatedCounts {
    /// The start of that window.
    pub(crate) start: u64,
    pub(crate) age: Age,
    /// Were they counted in windows of another length?
    pub(crate) is_from_other_limit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Current,
    Previous,
    Older,
}

impl Windows {
    pub(super) fn new(length_us: u64, retained: u64) -> Self {
        let ttl = Ttl::at_least(length_us * retained);
        Self { length_us: Divisor::new(length_us), retained, ttl }
    }

    #[inline]
    pub(super) fn length_us(self) -> Divisor {
        self.length_us
    }

    #[inline]
    fn start_of(self, at: u64) -> u64 {
        self.time(at).start
    }

    #[inline]
    fn locate_counts(self, cell: Cell, now: WindowTime) -> LocatedCounts {
        let (start, cell_start) = (now.start, cell.time());
        let located = |age| LocatedCounts { start, age, is_from_other_limit: false };
        if cell.ttl() == self.ttl {
            if cell_start == start {
                return located(Age::Current);
            }
            if cell_start + self.length_us.get() == start {
                return located(Age::Previous);
            }
            if cell_start + self.ttl.span() + self.length_us.get() < start {
                return located(Age::Older); // also if another length has the same code
            }
        }
        self.locate_slow(cell, now.us)
    }

    /// [`Windows::locate_counts`] after the clock went back, or after the window length changed.
    #[cold]
    #[inline(never)]
    fn locate_slow(self, cell: Cell, now: u64) -> LocatedCounts {
        let cell_start = cell.time();
        let now = now.max(cell_start);
        let start = self.start_of(now);
        if cell.ttl() == self.ttl && self.start_of(cell_start) == cell_start {
            let age = self.age(cell_start, start);
            return LocatedCounts { start, age, is_from_other_limit: false };
        }
        // When in its window a request was counted is unknown: assume the latest possible time.
        let length_us = cell.ttl().span().div_ceil(self.retained);
        let last = now.min(cell_start + length_us.saturating_sub(1));
        let age = self.age(last, start);
        LocatedCounts { start, age, is_from_other_limit: cell != Cell::EMPTY }
    }

    #[inline]
    fn age(self, last: u64, start: u64) -> Age {
        if last >= start {
            Age::Current
        } else if last + self.length_us.get() >= start {
            Age::Previous
        } else {
            Age::Older
        }
    }
}

impl WindowFunction for Windows {
    #[inline(always)]
    fn time(&self, us: u64) -> WindowTime {
        let elapsed_us = self.length_us.remainder(us);
        WindowTime { us, start: us - elapsed_us, elapsed_us }
    }

    #[inline]
    fn end(&self, start: u64) -> u64 {
        start + self.length_us.get()
    }

    #[inline]
    fn ttl(&self) -> Ttl {
        self.ttl
    }

    #[inline]
    fn locate(&self, cell: Cell, now: WindowTime) -> LocatedCounts {
        self.locate_counts(cell, now)
    }
}
