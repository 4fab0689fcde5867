//! Sliding window counter: estimates the count of the last `W` as `c + p·weight`, where `p` and `c`
//! are the counts of the previous and the current window, and the weight is the part of the
//! previous window that the sliding window still overlaps: `(W − e)/W`, at a time `e` into the
//! current window.
//!
//! Admits if `c + n + p·(W − e)/W ≤ L`; in whole numbers, `p·(W − e) + (c + n)·W ≤ L·W`.
//!
//! It is an approximation: it assumes that the requests of the previous window were evenly spaced.

use super::arithmetic::{Divisor, div_floor, product};
use super::cell_algorithm::{CellAlgorithm, CellWord};
use super::windows::{Age, LocatedCounts, WindowFunction, WindowTime, Windows};
use crate::cell::{Cell, DATA_BITS, DATA_MASK};
use crate::limit::LimitError;
use crate::params::LimitParams;
use crate::rate::Rate;

/// The sliding window counter at one rate.
#[derive(Clone, Debug)]
pub struct SlidingCounter {
    windows: Windows,
    limit: u64,
    /// Is the window so short that every product of a count and a time fits 64 bits?
    products_fit_u64: bool,
}

pub struct SlidingCounterState {
    now: u64,
    /// The start of the current window or, if the clock has gone back, of the last one counted in.
    start: u64,
    /// `W − e`: how much of the previous window the sliding window overlaps.
    overlap_us: u64,
    counts: Counts,
    is_from_other_limit: bool,
}

/// The counts of the previous and of the current window.
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
        let products_fit_u64 = rate.period_us() < 1 << (u64::BITS - COUNT_BITS - 1);
        Ok(Self { windows, limit: rate.count(), products_fit_u64 })
    }

    pub(super) fn params(&self) -> LimitParams {
        let Self { windows, limit, .. } = *self;
        let window_us = windows.length_us().get();
        LimitParams::SlidingCounter { window_us, limit, ttl_code: windows.ttl().code() }
    }

    #[inline]
    fn window_us(&self) -> Divisor {
        self.windows.length_us()
    }

    /// Returns `(L − c − n)·W`: the largest `p·(W − e)` at which `cost` is admitted.
    #[inline]
    fn weighted_previous_max(&self, current: u64, cost: u64) -> u128 {
        product(self.limit - current - cost, self.window_us().get())
    }

    /// Returns `p·(W − e)/W`, rounded up.
    #[inline]
    fn weighted_previous(&self, state: &SlidingCounterState) -> u64 {
        // No shortcut for a previous count of 0: the branch is hard to predict.
        self.window_us().div_ceil(product(state.counts.previous, state.overlap_us))
    }

    /// Returns when a cost is admitted that is not admitted now.
    #[inline(never)] // takes numbers, so that the caller can keep the state in registers
    fn admitted_at(&self, start: u64, Counts { previous, current }: Counts, cost: u64) -> u64 {
        let window = self.window_us().get();
        if current + cost <= self.limit {
            // The weight of the previous count has to shrink: W − e = floor((L − c − n)·W / p).
            return start + window - div_floor(self.weighted_previous_max(current, cost), previous);
        }
        // Not before the next window, where the current count is the previous one.
        let into_next =
            window.saturating_sub(div_floor(self.weighted_previous_max(0, cost), current));
        start + window + into_next
    }
}

impl CellAlgorithm for SlidingCounter {
    type Now = WindowTime;
    type State = SlidingCounterState;

    #[inline(always)]
    fn prepare(&self, now: u64) -> WindowTime {
        self.windows.time(now)
    }

    #[inline]
    fn decode(&self, cell: Cell, now: WindowTime) -> SlidingCounterState {
        let LocatedCounts { start, age, is_from_other_limit } = self.windows.locate(cell, now);
        let now = now.us;
        let counts = Counts::of(cell.data());
        let counts = if is_from_other_limit { counts.merged() } else { counts };
        let overlap_us = start + self.window_us().get() - now.max(start);
        let counts = counts.aged(age);
        SlidingCounterState { now, start, overlap_us, counts, is_from_other_limit }
    }

    #[inline]
    fn encode(&self, state: &SlidingCounterState) -> Cell {
        self.windows.cell(state.start, state.counts.to_data())
    }

    #[inline]
    fn is_from_other_limit(&self, _cell: Cell, state: &SlidingCounterState) -> bool {
        state.is_from_other_limit && state.counts.to_data() != 0
    }

    #[inline]
    fn quota(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn fits(&self, state: &SlidingCounterState, cost: u64) -> bool {
        let Counts { previous, current } = state.counts;
        if current + cost > self.limit {
            return false;
        }
        match self.products_fit_u64 {
            true => {
                let available = self.limit - current - cost;
                previous * state.overlap_us <= available * self.window_us().get()
            }
            false => {
                product(previous, state.overlap_us) <= self.weighted_previous_max(current, cost)
            }
        }
    }

    #[inline]
    fn wait_us(&self, state: &SlidingCounterState, cost: u64) -> u64 {
        match self.fits(state, cost) {
            true => 0,
            false => self.admitted_at(state.start, state.counts, cost) - state.now,
        }
    }

    #[inline]
    fn add(&self, state: &mut SlidingCounterState, cost: u64) {
        state.counts.current += cost;
    }

    fn add_debt(&self, state: &mut SlidingCounterState, cost: u64, debt_max: u64) -> bool {
        let Counts { current, .. } = state.counts;
        let charged = current.saturating_add(cost);
        let usage_max = self.limit.saturating_add(debt_max);
        if usage_max >= COUNT_MAX {
            state.counts.current = charged.min(COUNT_MAX);
            return false;
        }
        let current_max = usage_max.saturating_sub(self.weighted_previous(state)).max(current);
        state.counts.current = charged.min(current_max);
        charged > current_max
    }

    fn refund(&self, state: &mut SlidingCounterState, cost: u64, charged_at: u64) {
        let mut left = cost;
        if charged_at >= state.start {
            left = cost.saturating_sub(state.counts.current);
            state.counts.current = state.counts.current.saturating_sub(cost);
        }
        if charged_at + self.window_us().get() >= state.start {
            state.counts.previous = state.counts.previous.saturating_sub(left);
        }
    }

    #[inline]
    fn remaining(&self, state: &SlidingCounterState) -> u64 {
        self.limit.saturating_sub(state.counts.current + self.weighted_previous(state))
    }

    #[inline]
    fn reset_after_us(&self, state: &SlidingCounterState) -> u64 {
        let windows = match state.counts {
            Counts { current: 1.., .. } => 2,
            Counts { previous: 1.., .. } => 1,
            _ => return 0,
        };
        state.start + windows * self.window_us().get() - state.now
    }

    /// Within a window, only the counts change.
    const UPDATED_WORD: Option<CellWord> = Some(CellWord::Second);

    #[inline(always)]
    fn other_word(&self, now: WindowTime) -> u64 {
        self.windows.first_word(now)
    }

    #[inline(always)]
    fn decode_word(&self, word: u64, now: WindowTime) -> SlidingCounterState {
        SlidingCounterState {
            now: now.us,
            start: now.start,
            overlap_us: self.window_us().get() - now.elapsed_us,
            counts: Counts::of(word & DATA_MASK),
            is_from_other_limit: false,
        }
    }

    #[inline(always)]
    fn encode_word(&self, before: u64, _state: &SlidingCounterState, cost: u64) -> u64 {
        before + cost // the current count is in the low bits, and does not overflow if admitted
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

    /// Counts everything as current: where the windows of another length began is unknown.
    #[cold]
    #[inline(never)]
    fn merged(self) -> Self {
        Self { previous: 0, current: (self.previous + self.current).min(COUNT_MAX) }
    }

    #[inline]
    fn aged(self, age: Age) -> Self {
        match age {
            Age::Current => self,
            Age::Previous => Self { previous: self.current, current: 0 },
            Age::Older => Self { previous: 0, current: 0 },
        }
    }
}

/// Each of the two counts has half of the cell's data.
const COUNT_BITS: u32 = DATA_BITS / 2;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
