//! Windows of one length, aligned to the epoch, and which of them a cell counts in.
//!
//! The cell of a window counter holds when the window of its counts began, and a code of the windows'
//! length. So while a window lasts, and the limit stays the same, only the counts change.

use super::meter::{Divisor, Meter};
use crate::cell::{Cell, Life};

#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    length_us: Divisor,
    /// How many windows a count matters for.
    kept: u64,
    /// As long as that. It also tells whether a cell was written under another length.
    life: Life,
}

/// A meter that counts in windows.
pub(super) trait Windowed: Meter {
    fn windows(&self) -> Windows;

    /// What counts of the present window mean.
    fn present_usage(&self, counts: u64, now: u64) -> Self::Usage;
}

/// Where the counts of a cell are, as seen from the present window or, if the clock has gone back,
/// from the one that the cell is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// When that window began.
    pub(super) start: u64,
    pub(super) age: Age,
    /// Were they counted in windows of another length?
    pub(super) is_foreign: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    Present,
    Previous,
    Older,
}

impl Windows {
    pub(super) fn new(length_us: u64, kept: u64) -> Self {
        let life = Life::at_least(length_us * kept);
        Self { length_us: Divisor::new(length_us), kept, life }
    }

    #[inline]
    pub(super) fn length_us(self) -> Divisor {
        self.length_us
    }

    pub(super) fn life_code(self) -> u64 {
        self.life.code()
    }

    #[inline]
    pub(super) fn start_of(self, at: u64) -> u64 {
        at - self.length_us.rest(at)
    }

    /// The first word of a cell of the window that began then.
    #[inline]
    pub(super) fn head(self, start: u64) -> u64 {
        Cell::head(start, self.life)
    }

    #[inline]
    pub(super) fn cell(self, start: u64, counts: u64) -> Cell {
        Cell::new(start, self.life, counts)
    }

    #[inline]
    pub(super) fn locate(self, cell: Cell, now: u64) -> Counted {
        let (start, began) = (self.start_of(now), cell.time());
        let found = |age| Counted { start, age, is_foreign: false };
        if cell.life() == self.life {
            if began == start {
                return found(Age::Present);
            }
            if began + self.length_us.get() == start {
                return found(Age::Previous);
            }
            if began + self.life.span() + self.length_us.get() < start {
                return found(Age::Older); // also if the length was another with the same code
            }
        }
        self.locate_with_care(cell, now)
    }

    /// After the clock went back, or when the windows had another length.
    #[cold]
    #[inline(never)]
    fn locate_with_care(self, cell: Cell, now: u64) -> Counted {
        let began = cell.time();
        let now = now.max(began);
        let start = self.start_of(now);
        if cell.life() == self.life && self.start_of(began) == began {
            return Counted { start, age: self.age(began, start), is_foreign: false };
        }
        // Nobody knows when in its window something was counted: as late as it can have been.
        let length_us = cell.life().span().div_ceil(self.kept);
        let last = now.min(began + length_us.saturating_sub(1));
        Counted { start, age: self.age(last, start), is_foreign: cell != Cell::FRESH }
    }

    #[inline]
    fn age(self, last: u64, start: u64) -> Age {
        if last >= start {
            Age::Present
        } else if last + self.length_us.get() >= start {
            Age::Previous
        } else {
            Age::Older
        }
    }
}
