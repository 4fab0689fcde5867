//! Sliding window counter: admit when `p·(W − e) + (c + n)·W ≤ L·W`, where `p` and `c` are the
//! counts of the previous and the present window and `e` the time into the present one.
//!
//! Not exact about the past: it assumes that the previous window's requests came evenly.

use super::meter::{Divisor, Meter, div_floor, product};
use super::windows::{Age, Counted, Windowed, Windows};
use crate::cell::{Cell, DATA_BITS};
use crate::limit::LimitError;
use crate::rate::Rate;
use crate::terms::Terms;

#[derive(Clone, Debug)]
pub(crate) struct SlidingCounter {
    windows: Windows,
    limit: u64,
    /// So that no product of a count and a time takes more than 64 bits.
    is_short: bool,
}

pub(crate) struct Usage {
    now: u64,
    /// Of the present window or, if the clock has gone back, of the last one that was counted in.
    start: u64,
    /// What is left of that window.
    rest_us: u64,
    counts: Counts,
    is_foreign: bool,
}

/// Of the previous window and of the present one.
#[derive(Clone, Copy)]
struct Counts {
    previous: u64,
    current: u64,
}

impl SlidingCounter {
    pub(super) fn new(rate: Rate) -> Result<Self, LimitError> {
        if rate.count() > COUNT_MAX {
            return Err(LimitError::CounterTooLarge { rate, count_max: COUNT_MAX });
        }
        let windows = Windows::new(rate.period_us(), 2);
        let is_short = rate.period_us() < 1 << (u64::BITS - COUNT_BITS - 1);
        Ok(Self { windows, limit: rate.count(), is_short })
    }

    pub(super) fn terms(&self) -> Terms {
        let Self { windows, limit, .. } = *self;
        let window_us = windows.length_us().get();
        Terms::SlidingCounter { window_us, limit, life: windows.life_code() }
    }

    #[inline]
    fn window_us(&self) -> Divisor {
        self.windows.length_us()
    }

    /// What the previous window may amount to if `cost` is added to a window with this count.
    #[inline]
    fn room(&self, current: u64, cost: u64) -> u128 {
        product(self.limit - current - cost, self.window_us().get())
    }

    /// When a cost will fit that does not now.
    #[inline(never)] // and with numbers for arguments, so that a usage need never be in memory
    fn next_fit(&self, start: u64, Counts { previous, current }: Counts, cost: u64) -> u64 {
        let window = self.window_us().get();
        if current + cost <= self.limit {
            // The previous window has to shrink until it fits: W − e' = floor(room / p).
            return start + window - div_floor(self.room(current, cost), previous);
        }
        // Only in the next window, where today's count is the previous one.
        let into_next = window.saturating_sub(div_floor(self.room(0, cost), current));
        start + window + into_next
    }
}

impl Meter for SlidingCounter {
    type Usage = Usage;

    #[inline]
    fn usage(&self, cell: Cell, now: u64) -> Usage {
        let Counted { start, age, is_foreign } = self.windows.locate(cell, now);
        let counts = Counts::of(cell.data());
        let counts = if is_foreign { counts.all_recent() } else { counts };
        let rest_us = start + self.window_us().get() - now.max(start);
        Usage { now, start, rest_us, counts: counts.aged(age), is_foreign }
    }

    #[inline]
    fn to_cell(&self, usage: &Usage) -> Cell {
        self.windows.cell(usage.start, usage.counts.to_data())
    }

    #[inline]
    fn is_foreign(&self, _cell: Cell, usage: &Usage) -> bool {
        usage.is_foreign && usage.counts.to_data() != 0
    }

    #[inline]
    fn quota(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn fits(&self, usage: &Usage, cost: u64) -> bool {
        if usage.counts.current + cost > self.limit {
            return false;
        }
        let (previous, rest_us) = (usage.counts.previous, usage.rest_us);
        match self.is_short {
            true => {
                let room = self.limit - usage.counts.current - cost;
                previous * rest_us <= room * self.window_us().get()
            }
            false => product(previous, rest_us) <= self.room(usage.counts.current, cost),
        }
    }

    #[inline]
    fn wait_us(&self, usage: &Usage, cost: u64) -> u64 {
        match self.fits(usage, cost) {
            true => 0,
            false => self.next_fit(usage.start, usage.counts, cost) - usage.now,
        }
    }

    #[inline]
    fn add(&self, usage: &mut Usage, cost: u64) {
        usage.counts.current = usage.counts.current.saturating_add(cost).min(COUNT_MAX);
    }

    fn give_back(&self, usage: &mut Usage, cost: u64, charged_at: u64) {
        let mut rest = cost;
        if charged_at >= usage.start {
            rest = cost.saturating_sub(usage.counts.current);
            usage.counts.current = usage.counts.current.saturating_sub(cost);
        }
        if charged_at + self.window_us().get() >= usage.start {
            usage.counts.previous = usage.counts.previous.saturating_sub(rest);
        }
    }

    #[inline]
    fn remaining(&self, usage: &Usage) -> u64 {
        // Also where there is no previous count: nobody can foresee whether there is.
        let weighted = self.window_us().div_ceil(product(usage.counts.previous, usage.rest_us));
        self.limit.saturating_sub(usage.counts.current + weighted)
    }

    #[inline]
    fn reset_after_us(&self, usage: &Usage) -> u64 {
        let windows = match usage.counts {
            Counts { current: 1.., .. } => 2,
            Counts { previous: 1.., .. } => 1,
            _ => return 0,
        };
        usage.start + windows * self.window_us().get() - usage.now
    }
}

impl Windowed for SlidingCounter {
    #[inline(always)]
    fn windows(&self) -> Windows {
        self.windows
    }

    #[inline(always)]
    fn present_usage(&self, counts: u64, now: u64) -> Usage {
        let into = self.window_us().rest(now);
        let (start, rest_us) = (now - into, self.window_us().get() - into);
        Usage { now, start, rest_us, counts: Counts::of(counts), is_foreign: false }
    }
}

impl Counts {
    #[inline]
    fn of(data: u64) -> Self {
        Self { previous: data >> COUNT_BITS, current: data & COUNT_MAX }
    }

    #[inline]
    fn to_data(self) -> u64 {
        self.previous << COUNT_BITS | self.current
    }

    /// Where the windows lay is not known, so all of it counts as recent.
    #[cold]
    #[inline(never)]
    fn all_recent(self) -> Self {
        Self { previous: 0, current: (self.previous + self.current).min(COUNT_MAX) }
    }

    #[inline]
    fn aged(self, age: Age) -> Self {
        match age {
            Age::Present => self,
            Age::Previous => Self { previous: self.current, current: 0 },
            Age::Older => Self { previous: 0, current: 0 },
        }
    }
}

/// Two counts share the cell's data.
const COUNT_BITS: u32 = DATA_BITS / 2;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
