//! Fixed window counter: admits if `count + cost ≤ limit`, in windows that are aligned to the
//! epoch, or in the windows of a calendar period.
//!
//! Around a window boundary, up to twice the limit can be admitted within one period.

use core::time::Duration;

use super::cell_algorithm::{CellAlgorithm, CellWord};
use super::windows::{Age, WindowFunction, WindowTime, Windows};
use crate::calendar::{CalendarPeriod, CalendarWindows};
use crate::cell::{Cell, DATA_MASK};
use crate::params::LimitParams;
use crate::rate::Rate;

/// The fixed window algorithm at one rate.
#[derive(Clone, Debug)]
pub struct FixedWindow<W = Windows> {
    windows: W,
    limit: u64,
}

/// The fixed window algorithm in the windows of a calendar period.
pub type CalendarWindow = FixedWindow<CalendarWindows>;

pub struct FixedWindowState {
    now: u64,
    /// The start of the current window or, if the clock has gone back, of the last one counted in.
    start: u64,
    count: u64,
    is_from_other_limit: bool,
}

impl FixedWindow {
    pub(super) fn new(rate: Rate) -> Self {
        Self { windows: Windows::new(rate.period_us(), 1), limit: rate.count() }
    }

    pub(super) fn params(&self) -> LimitParams {
        let Self { windows, limit } = *self;
        let window_us = windows.length_us().get();
        LimitParams::FixedWindow { window_us, limit, ttl_code: windows.ttl().code() }
    }
}

impl CalendarWindow {
    pub(super) fn of_calendar(count: u64, period: CalendarPeriod) -> Self {
        Self { windows: CalendarWindows::new(period), limit: count }
    }

    pub(super) fn params(&self) -> LimitParams {
        LimitParams::CalendarWindow { limit: self.limit, ttl_code: self.windows.ttl().code() }
    }

    pub(crate) fn last_length(&self) -> Duration {
        self.windows.last_length()
    }

    /// Returns the starts of the previous, the current and the next window at a time, and the end of the last.
    pub(crate) fn bounds_around(&self, now: u64) -> [u64; 4] {
        self.windows.bounds_around(now)
    }
}

impl<W: WindowFunction> CellAlgorithm for FixedWindow<W> {
    type Now = WindowTime;
    type State = FixedWindowState;

    #[inline(always)]
    fn prepare(&self, now: u64) -> WindowTime {
        self.windows.time(now)
    }

    #[inline]
    fn decode(&self, cell: Cell, now: WindowTime) -> FixedWindowState {
        let located = self.windows.locate(cell, now);
        FixedWindowState {
            now: now.us,
            start: located.start,
            count: if located.age == Age::Current { cell.data() } else { 0 },
            is_from_other_limit: located.is_from_other_limit,
        }
    }

    #[inline]
    fn encode(&self, state: &FixedWindowState) -> Cell {
        self.windows.cell(state.start, state.count)
    }

    #[inline]
    fn is_from_other_limit(&self, _cell: Cell, state: &FixedWindowState) -> bool {
        state.is_from_other_limit && state.count > 0
    }

    #[inline]
    fn quota(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn fits(&self, state: &FixedWindowState, cost: u64) -> bool {
        state.count.saturating_add(cost) <= self.limit
    }

    #[inline]
    fn wait_us(&self, state: &FixedWindowState, cost: u64) -> u64 {
        match self.fits(state, cost) {
            true => 0,
            false => self.reset_after_us(state),
        }
    }

    #[inline]
    fn add(&self, state: &mut FixedWindowState, cost: u64) {
        state.count += cost;
    }

    fn add_debt(&self, state: &mut FixedWindowState, cost: u64, debt_max: u64) -> bool {
        let count_max = self.limit.saturating_add(debt_max).max(state.count);
        let count = state.count.saturating_add(cost);
        state.count = count.min(count_max).min(COUNT_MAX);
        count > count_max
    }

    fn refund(&self, state: &mut FixedWindowState, cost: u64, charged_at: u64) {
        if charged_at >= state.start {
            state.count = state.count.saturating_sub(cost);
        }
    }

    #[inline]
    fn remaining(&self, state: &FixedWindowState) -> u64 {
        self.limit.saturating_sub(state.count)
    }

    #[inline]
    fn reset_after_us(&self, state: &FixedWindowState) -> u64 {
        self.windows.end(state.start) - state.now
    }

    /// Within a window, only the count changes.
    const UPDATED_WORD: Option<CellWord> = Some(CellWord::Second);

    #[inline(always)]
    fn other_word(&self, now: WindowTime) -> u64 {
        self.windows.first_word(now)
    }

    #[inline(always)]
    fn decode_word(&self, word: u64, now: WindowTime) -> FixedWindowState {
        let (now, start, count) = (now.us, now.start, word & DATA_MASK);
        FixedWindowState { now, start, count, is_from_other_limit: false }
    }

    #[inline(always)]
    fn encode_word(&self, before: u64, _state: &FixedWindowState, cost: u64) -> u64 {
        before + cost // an admitted cost does not overflow into other bits
    }
}

const COUNT_MAX: u64 = DATA_MASK;
