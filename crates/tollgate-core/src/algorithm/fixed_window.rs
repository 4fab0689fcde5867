//! Fixed window counter: `count + cost ≤ limit` within windows that are aligned to the epoch.
//!
//! Not smooth: around a boundary up to twice the limit can pass within one period.
//!
//! The cell holds the time of the last charge and the count of the window which that time lies in.
//! No window number is kept, so that usage carries over when the period changes: the count stands
//! while the last charge is still in the present window, whatever its length.

use super::meter::{Divisor, Meter};
use crate::cell::{Cell, DATA_BITS, Life};
use crate::rate::Rate;
use crate::terms::Terms;

#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    window_us: Divisor,
    limit: u64,
    life: Life,
}

pub(crate) struct Usage {
    now: u64,
    /// `now`, or the last charge if the clock has gone back since.
    at: u64,
    start: u64,
    count: u64,
}

impl FixedWindow {
    pub(super) fn new(rate: Rate) -> Self {
        let window_us = rate.period_us();
        let life = Life::at_least(window_us);
        Self { window_us: Divisor::new(window_us), limit: rate.count(), life }
    }

    pub(super) fn terms(&self) -> Terms {
        let Self { window_us, limit, life } = *self;
        Terms::FixedWindow { window_us: window_us.get(), limit, life: life.code() }
    }
}

impl Meter for FixedWindow {
    type Usage = Usage;

    #[inline]
    fn usage(&self, cell: Cell, now: u64) -> Usage {
        let (at, start) = self.window_us.window_at(now, cell.time());
        let count = if cell.time() >= start { cell.data() } else { 0 };
        Usage { now, at, start, count }
    }

    #[inline]
    fn to_cell(&self, usage: &Usage) -> Cell {
        Cell::new(usage.at, self.life, usage.count)
    }

    #[inline]
    fn quota(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn fits(&self, usage: &Usage, cost: u64) -> bool {
        usage.count.saturating_add(cost) <= self.limit
    }

    #[inline]
    fn wait_us(&self, usage: &Usage, cost: u64) -> u64 {
        match self.fits(usage, cost) {
            true => 0,
            false => self.reset_after_us(usage),
        }
    }

    #[inline]
    fn add(&self, usage: &mut Usage, cost: u64) {
        usage.count = usage.count.saturating_add(cost).min(COUNT_MAX);
    }

    fn give_back(&self, usage: &mut Usage, cost: u64, charged_at: u64) {
        if charged_at >= usage.start {
            usage.count = usage.count.saturating_sub(cost);
        }
    }

    #[inline]
    fn remaining(&self, usage: &Usage) -> u64 {
        self.limit.saturating_sub(usage.count)
    }

    #[inline]
    fn reset_after_us(&self, usage: &Usage) -> u64 {
        usage.start + self.window_us.get() - usage.now
    }
}

const COUNT_MAX: u64 = (1 << DATA_BITS) - 1;
