//! Fixed window counter: `count + cost ≤ limit` within windows that are aligned to the epoch.
//!
//! Not smooth: around a boundary up to twice the limit can pass within one period.

use super::meter::Meter;
use super::windows::{Age, Windowed, Windows};
use crate::cell::{Cell, DATA_MASK};
use crate::rate::Rate;
use crate::terms::Terms;

#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    windows: Windows,
    limit: u64,
}

pub(crate) struct Usage {
    now: u64,
    /// Of the present window or, if the clock has gone back, of the last one that was counted in.
    start: u64,
    count: u64,
    is_foreign: bool,
}

impl FixedWindow {
    pub(super) fn new(rate: Rate) -> Self {
        Self { windows: Windows::new(rate.period_us(), 1), limit: rate.count() }
    }

    pub(super) fn terms(&self) -> Terms {
        let Self { windows, limit } = *self;
        let window_us = windows.length_us().get();
        Terms::FixedWindow { window_us, limit, life: windows.life_code() }
    }
}

impl Meter for FixedWindow {
    type Usage = Usage;

    #[inline]
    fn usage(&self, cell: Cell, now: u64) -> Usage {
        let counted = self.windows.locate(cell, now);
        let count = if counted.age == Age::Present { cell.data() } else { 0 };
        Usage { now, start: counted.start, count, is_foreign: counted.is_foreign }
    }

    #[inline]
    fn to_cell(&self, usage: &Usage) -> Cell {
        self.windows.cell(usage.start, usage.count)
    }

    #[inline]
    fn is_foreign(&self, _cell: Cell, usage: &Usage) -> bool {
        usage.is_foreign && usage.count > 0
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
        usage.start + self.windows.length_us().get() - usage.now
    }
}

impl Windowed for FixedWindow {
    #[inline(always)]
    fn windows(&self) -> Windows {
        self.windows
    }

    #[inline(always)]
    fn present_usage(&self, count: u64, now: u64) -> Usage {
        Usage { now, start: self.windows.start_of(now), count, is_foreign: false }
    }
}

const COUNT_MAX: u64 = DATA_MASK;
