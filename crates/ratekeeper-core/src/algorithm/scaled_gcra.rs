//! [GCRA](super::gcra) for rates whose TAT fits one word: a count of units of `1/count`
//! microseconds, of which the emission interval `T = W/R` is a whole number.
//!
//! It serves every rate whose `count` (`R` divided by its greatest common divisor with `W`) is at
//! most 1023. The count of 100/s is 1, of 60/s is 3, of 999/s is 999.

use super::arithmetic::{Divisor, div_floor, product};
use super::cell_algorithm::{CellAlgorithm, CellWord};
use super::gcra::{FRAC_BITS, FRAC_MASK, RateCode, in_lowest_terms};
use crate::cell::{Cell, TIME_MAX};
use crate::cost::Cost;
use crate::limit::LimitError;
use crate::params::{FractionalMicros, LimitParams};
use crate::rate::Rate;
use crate::time::Micros;

/// Up to this count, no sum of a time and an increment in these units exceeds 64 bits.
const COUNT_MAX: u64 = 1023;

/// GCRA at a rate whose TAT fits one word.
#[derive(Clone, Debug)]
pub struct ScaledGcra {
    /// A leaky bucket delays what it admits; a token bucket does not.
    is_leaky: bool,
    /// The number of units in a microsecond: `R` in lowest terms.
    count: Divisor,
    /// `T = W/R`, in units.
    emission_interval: Divisor,
    burst: u64,
    /// `τ = B·T`, in units.
    burst_tolerance: u64,
    rate_code: RateCode,
    /// The second word of all its cells.
    second_word: u64,
}

/// A time in microseconds and in units.
#[derive(Clone, Copy, Debug)]
pub struct ScaledTime {
    us: u64,
    units: u64,
}

pub struct ScaledGcraState {
    now: ScaledTime,
    /// In units; never before `now`.
    tat: u64,
}

impl ScaledGcra {
    /// Does the TAT of this rate fit one word?
    pub(super) fn supports(rate: Rate) -> bool {
        in_lowest_terms(rate).0 <= COUNT_MAX
    }

    pub(super) fn new(rate: Rate, is_leaky: bool) -> Result<Self, LimitError> {
        let (count, emission_interval) = in_lowest_terms(rate);
        let burst = rate.burst().unwrap_or(rate.count());
        let burst_max = div_floor(product(Micros::MAX.get(), count), emission_interval);
        if burst > burst_max {
            return Err(LimitError::RefillTooLong { rate, burst_max });
        }
        let rate_code = RateCode::new(count, emission_interval);
        let [_, second_word] = Cell::scaled(0, rate_code.data(count)).to_words();
        Ok(Self {
            is_leaky,
            count: Divisor::new(count),
            emission_interval: Divisor::new(emission_interval),
            burst,
            burst_tolerance: burst * emission_interval,
            rate_code,
            second_word,
        })
    }

    pub(super) fn params(&self, cost: Cost) -> LimitParams {
        LimitParams::Gcra {
            denominator: self.count.get(),
            rate_code: self.rate_code.get(),
            increment: self.to_micros(self.increment(cost.get())),
            burst_tolerance: self.to_micros(self.burst_tolerance),
        }
    }

    /// Returns `τ + n·T`: how far ahead of now a debt of `n` may move the TAT. `None` if that is further
    /// than any TAT is.
    pub(super) fn debt_tolerance(&self, debt_max: u64) -> Option<FractionalMicros> {
        self.debt_tolerance_units(debt_max).map(|units| self.to_micros(units))
    }

    fn debt_tolerance_units(&self, debt_max: u64) -> Option<u64> {
        let tolerance = self.burst_tolerance.checked_add(self.increment(debt_max))?;
        (tolerance < self.units_max()).then_some(tolerance)
    }

    /// Returns `R` and `W` in lowest terms.
    pub(super) fn lowest_terms(&self) -> (u64, u64) {
        (self.count.get(), self.emission_interval.get())
    }

    /// Returns what is left in the bucket, in units of `1/W` requests (in lowest terms); negative in debt.
    pub(super) fn level(&self, cell: Cell, now: u64) -> i128 {
        let ScaledGcraState { now, tat } = self.decode(cell, self.prepare(now));
        i128::from(self.burst_tolerance) - i128::from(tat - now.units)
    }

    fn to_micros(&self, units: u64) -> FractionalMicros {
        let count = self.count.get();
        FractionalMicros { us: units / count, frac: units % count }
    }

    /// Converts a cell that was made of parts ([`Cell::to_parts`]), if it was written at this rate.
    pub(super) fn cell_from_parts(&self, cell: Cell) -> Cell {
        match RateCode::of(cell) == self.rate_code {
            true => Cell::scaled(self.units_of(cell), self.rate_code.data(self.count.get())),
            false => cell,
        }
    }

    /// Returns the TAT of a cell that was written at this rate.
    fn units_of(&self, cell: Cell) -> u64 {
        let count = self.count.get();
        cell.time() * count + (cell.data() & FRAC_MASK).min(count - 1)
    }

    /// Returns `n·T` in units, exactly, capped at [`TIME_MAX`].
    #[inline]
    fn increment(&self, n: u64) -> u64 {
        let emission_interval = self.emission_interval.get();
        match n {
            1 => emission_interval,
            _ => n
                .checked_mul(emission_interval)
                .map_or(self.units_max(), |increment| increment.min(self.units_max())),
        }
    }

    #[inline]
    fn units_max(&self) -> u64 {
        TIME_MAX * self.count.get()
    }

    /// Returns the TAT of a cell in another encoding, or of another rate.
    #[cold]
    fn convert_tat(&self, cell: Cell, now: ScaledTime) -> u64 {
        if cell.time() < now.us {
            now.units
        } else if RateCode::of(cell) == self.rate_code {
            self.units_of(cell)
        } else {
            // The same usage in whole requests, as precise as a rate code is.
            let used = RateCode::of(cell).count_in(cell.time() - now.us);
            (now.units + self.increment(used)).min(self.units_max())
        }
    }

    /// Converts units to microseconds, rounded up.
    #[inline]
    fn to_us(&self, units: u64) -> u64 {
        self.count.div_ceil_64(units)
    }
}

impl CellAlgorithm for ScaledGcra {
    type Now = ScaledTime;
    type State = ScaledGcraState;

    #[inline(always)]
    fn prepare(&self, us: u64) -> ScaledTime {
        ScaledTime { us, units: us * self.count.get() }
    }

    #[inline]
    fn decode(&self, cell: Cell, now: ScaledTime) -> ScaledGcraState {
        let [first, second] = cell.to_words();
        match second == self.second_word {
            true => self.decode_word(first, now),
            false => self.decode_word(self.convert_tat(cell, now), now),
        }
    }

    #[inline]
    fn encode(&self, state: &ScaledGcraState) -> Cell {
        Cell::scaled(state.tat, self.rate_code.data(self.count.get()))
    }

    #[inline]
    fn is_from_other_limit(&self, cell: Cell, state: &ScaledGcraState) -> bool {
        let [_, second] = cell.to_words();
        second != self.second_word
            && cell.time() > state.now.us
            && RateCode::of(cell) != self.rate_code
    }

    #[inline]
    fn quota(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn fits(&self, state: &ScaledGcraState, cost: u64) -> bool {
        state.tat + self.increment(cost) <= state.now.units + self.burst_tolerance
    }

    #[inline]
    fn wait_us(&self, state: &ScaledGcraState, cost: u64) -> u64 {
        let tat_max = state.now.units + self.burst_tolerance;
        self.to_us((state.tat + self.increment(cost)).saturating_sub(tat_max))
    }

    #[inline]
    fn add(&self, state: &mut ScaledGcraState, cost: u64) {
        state.tat += self.increment(cost);
    }

    fn add_debt(&self, state: &mut ScaledGcraState, cost: u64, debt_max: u64) -> bool {
        let before = state.tat;
        self.add(state, cost);
        let tolerance = self.debt_tolerance_units(debt_max);
        let tat_max =
            tolerance.map(|tolerance| before.max(state.now.units.saturating_add(tolerance)));
        let is_cut = tat_max.is_some_and(|tat_max| state.tat > tat_max);
        state.tat = tat_max.map_or(state.tat, |tat_max| state.tat.min(tat_max));
        // Only the whole microseconds are capped, as in `gcra` and in the Redis scripts.
        let frac = self.count.remainder(state.tat);
        state.tat = state.tat.min(self.units_max() + frac);
        is_cut
    }

    fn refund(&self, state: &mut ScaledGcraState, cost: u64, charged_at: u64) {
        // Time has replenished the charge already, in part or in full: after τ, or a debt after its own time.
        let increment = self.increment(cost);
        let whole = increment.max(self.burst_tolerance);
        let frac = self.count.remainder(whole);
        let whole_us = (whole - frac) / self.count.get();
        let refundable_us = whole_us.saturating_sub(state.now.us.saturating_sub(charged_at));
        let decrement = increment.min(refundable_us * self.count.get() + frac);
        state.tat = state.tat.saturating_sub(decrement).max(state.now.units);
    }

    #[inline]
    fn remaining(&self, state: &ScaledGcraState) -> u64 {
        let used = state.tat - state.now.units;
        self.emission_interval.div_floor(self.burst_tolerance.saturating_sub(used).into())
    }

    #[inline]
    fn reset_after_us(&self, state: &ScaledGcraState) -> u64 {
        self.to_us(state.tat - state.now.units)
    }

    #[inline]
    fn delay_us(&self, state: &ScaledGcraState) -> u64 {
        if self.is_leaky { self.reset_after_us(state) } else { 0 }
    }

    /// The cells of one limit differ in their TAT only.
    const UPDATED_WORD: Option<CellWord> = Some(CellWord::First);

    #[inline(always)]
    fn other_word(&self, _now: ScaledTime) -> u64 {
        self.second_word
    }

    #[inline(always)]
    fn decode_word(&self, tat: u64, now: ScaledTime) -> ScaledGcraState {
        ScaledGcraState { now, tat: tat.max(now.units) }
    }

    #[inline(always)]
    fn encode_word(&self, _before: u64, state: &ScaledGcraState, _cost: u64) -> u64 {
        state.tat
    }
}

const _: () = assert!(COUNT_MAX < 1 << FRAC_BITS);
