//! Sliding window counter: admit when `p·(W − e) + (c + n)·W ≤ L·W`, where `p` and `c` are the
//! counts of the previous and the present window and `e` the time into the present one.
//!
//! Not exact about the past: it assumes that the previous window's requests came evenly.
//!
//! The cell holds the time of the last charge, and `p` and `c` of the window it lies in.

use super::meter::{Divisor, Meter, div_floor, product};
use crate::cell::{Cell, DATA_BITS, Life};
use crate::limit::LimitError;
use crate::rate::Rate;
use crate::terms::Terms;

#[derive(Clone, Debug)]
pub(crate) struct SlidingCounter {
    window_us: Divisor,
    limit: u64,
    /// Two windows. It also tells whether a cell was written under another period.
    life: Life,
}

pub(crate) struct Usage {
    now: u64,
    /// `now`, or the last charge if the clock has gone back since.
    at: u64,
    start: u64,
    previous: u64,
    current: u64,
}

impl SlidingCounter {
    pub(super) fn new(rate: Rate) -> Result<Self, LimitError> {
        if rate.count() > COUNT_MAX {
            return Err(LimitError::CounterTooLarge { rate, count_max: COUNT_MAX });
        }
        let window_us = rate.period_us();
        let life = Life::at_least(2 * window_us);
        Ok(Self { window_us: Divisor::new(window_us), limit: rate.count(), life })
    }

    pub(super) fn terms(&self) -> Terms {
        let Self { window_us, limit, life } = *self;
        Terms::SlidingCounter { window_us: window_us.get(), limit, life: life.code() }
    }

    /// What the previous window may amount to if `cost` is added to this one.
    #[inline]
    fn room(&self, usage: &Usage, cost: u64) -> u128 {
        product(self.limit - usage.current - cost, self.window_us.get())
    }

    /// What is left of the present window.
    #[inline]
    fn rest_us(&self, usage: &Usage) -> u64 {
        usage.start + self.window_us.get() - usage.at
    }
}

impl Meter for SlidingCounter {
    type Usage = Usage;

    #[inline]
    fn usage(&self, cell: Cell, now: u64) -> Usage {
        let last = cell.time();
        let (at, start) = self.window_us.window_at(now, last);
        let (mut previous, mut current) = match cell.life() == self.life {
            true => counts(cell),
            false => carry_over(cell),
        };
        if last < start {
            let is_previous = last + self.window_us.get() >= start;
            (previous, current) = (if is_previous { current } else { 0 }, 0);
        }
        Usage { now, at, start, previous, current }
    }

    #[inline]
    fn to_cell(&self, usage: &Usage) -> Cell {
        Cell::new(usage.at, self.life, usage.previous << COUNT_BITS | usage.current)
    }

    #[inline]
    fn quota(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn fits(&self, usage: &Usage, cost: u64) -> bool {
        usage.current + cost <= self.limit
            && product(usage.previous, self.rest_us(usage)) <= self.room(usage, cost)
    }

    #[inline]
    fn wait_us(&self, usage: &Usage, cost: u64) -> u64 {
        if self.fits(usage, cost) {
            return 0;
        }
        let &Usage { previous, current, .. } = usage;
        let window = self.window_us.get();
        if current + cost <= self.limit {
            let room = self.room(usage, cost);
            // The previous window has to shrink until it fits: W − e' = floor(room / p).
            let target = usage.start + window - div_floor(room, previous);
            return target - usage.now;
        }
        // Only in the next window, where today's count is the previous one.
        let room = product(self.limit - cost, window);
        let into_next = window.saturating_sub(div_floor(room, current));
        usage.start + window + into_next - usage.now
    }

    #[inline]
    fn add(&self, usage: &mut Usage, cost: u64) {
        usage.current = usage.current.saturating_add(cost).min(COUNT_MAX);
    }

    fn give_back(&self, usage: &mut Usage, cost: u64, charged_at: u64) {
        let mut rest = cost;
        if charged_at >= usage.start {
            rest = cost.saturating_sub(usage.current);
            usage.current = usage.current.saturating_sub(cost);
        }
        if charged_at + self.window_us.get() >= usage.start {
            usage.previous = usage.previous.saturating_sub(rest);
        }
    }

    #[inline]
    fn remaining(&self, usage: &Usage) -> u64 {
        // Also where there is no previous count: nobody can foresee whether there is.
        let weighted = self.window_us.div_ceil(product(usage.previous, self.rest_us(usage)));
        self.limit.saturating_sub(usage.current + weighted)
    }

    #[inline]
    fn reset_after_us(&self, usage: &Usage) -> u64 {
        let windows = match usage {
            Usage { current: 1.., .. } => 2,
            Usage { previous: 1.., .. } => 1,
            _ => return 0,
        };
        usage.start + windows * self.window_us.get() - usage.now
    }
}

/// The counts of the previous and the present window.
#[inline]
fn counts(cell: Cell) -> (u64, u64) {
    (cell.data() >> COUNT_BITS, cell.data() & COUNT_MAX)
}

/// Another period: where its windows lay is not known, so all of it counts as recent.
#[cold]
#[inline(never)]
fn carry_over(cell: Cell) -> (u64, u64) {
    let (previous, current) = counts(cell);
    (0, (previous + current).min(COUNT_MAX))
}

/// Two counts share the cell's data.
const COUNT_BITS: u32 = DATA_BITS / 2;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
