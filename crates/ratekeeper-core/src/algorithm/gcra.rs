//! Token bucket and leaky bucket, both as GCRA (generic cell rate algorithm).
//!
//! A limit of `R` requests per period `W` with a burst of `B` has
//! - the emission interval `T = W/R`, the time in which one request is replenished, and
//! - the burst tolerance `τ = B·T`, the time in which an empty bucket refills.
//!
//! The state of a key is its TAT (theoretical arrival time): when the bucket is full again (token
//! bucket) or empty again (leaky bucket) if no request follows. A request of cost `n` is admitted
//! at `now` if `max(TAT, now) + n·T ≤ now + τ`, and that sum becomes the new TAT. The two buckets
//! admit the same requests; a leaky bucket also delays each one until the TAT before it.
//!
//! Times are exact: whole microseconds and a fraction in units of `1/R` ([`FractionalMicros`]). So
//! there is no drift at any rational rate, and a check decides without a multiplication or
//! division.
//!
//! [`scaled_gcra`](super::scaled_gcra) is the same algorithm for the rates that fit a simpler
//! encoding, which are most.

use super::arithmetic::{Divisor, div_floor, product};
use super::cell_algorithm::CellAlgorithm;
use crate::cell::{Cell, TIME_MAX, Ttl};
use crate::cost::Cost;
use crate::limit::LimitError;
use crate::params::{FractionalMicros, LimitParams};
use crate::rate::Rate;
use crate::time::Micros;

/// GCRA at one rate.
#[derive(Clone, Debug)]
pub struct Gcra {
    /// A leaky bucket delays what it admits; a token bucket does not.
    is_leaky: bool,
    /// `R` in lowest terms: `R / gcd(R, W)`. Also the denominator of all fractions.
    count: u64,
    /// `W` in microseconds, in lowest terms.
    period_us: Divisor,
    burst: u64,
    /// `T = W/R`.
    emission_interval: FractionalMicros,
    /// `τ = B·T`.
    burst_tolerance: FractionalMicros,
    rate_code: RateCode,
}

/// Returns how many requests a GCRA cell accounts for, at the rate it was written at.
pub(crate) fn usage(cell: Cell, now: u64) -> u64 {
    RateCode::of(cell).count_in(cell.time().saturating_sub(now))
}

/// Returns `R`, and `W` in microseconds, divided by their greatest common divisor.
pub(super) fn in_lowest_terms(rate: Rate) -> (u64, u64) {
    let divisor = gcd(rate.count(), rate.period_us());
    (rate.count() / divisor, rate.period_us() / divisor)
}

pub struct GcraState {
    now: u64,
    /// Never before `now`.
    tat: FractionalMicros,
}

impl Gcra {
    pub(super) fn new(rate: Rate, is_leaky: bool) -> Result<Self, LimitError> {
        let (count, period_us) = in_lowest_terms(rate);
        if count > FRAC_MASK {
            return Err(LimitError::RateTooFine { rate, count_max: FRAC_MASK });
        }
        let burst = rate.burst().unwrap_or(rate.count());
        let burst_max = div_floor(product(Micros::MAX.get(), count), period_us);
        if burst > burst_max {
            return Err(LimitError::RefillTooLong { rate, burst_max });
        }
        let emission_interval = FractionalMicros { us: period_us / count, frac: period_us % count };
        let mut gcra = Self {
            is_leaky,
            count,
            period_us: Divisor::new(period_us),
            burst,
            emission_interval,
            burst_tolerance: emission_interval,
            rate_code: RateCode::new(count, period_us),
        };
        gcra.burst_tolerance = gcra.increment(burst);
        Ok(gcra)
    }

    pub(super) fn params(&self, cost: Cost) -> LimitParams {
        LimitParams::Gcra {
            denominator: self.count,
            rate_code: self.rate_code.get(),
            increment: self.increment(cost.get()),
            burst_tolerance: self.burst_tolerance,
        }
    }

    /// Returns `R` and `W` in lowest terms.
    pub(super) fn lowest_terms(&self) -> (u64, u64) {
        (self.count, self.period_us.get())
    }

    /// Returns what is left in the bucket, in units of `1/W` requests (in lowest terms); negative in debt.
    pub(super) fn level(&self, cell: Cell, now: u64) -> i128 {
        let GcraState { now, tat } = self.decode(cell, now);
        let units = |us: u64, frac: u64| (product(us, self.count) + u128::from(frac)) as i128;
        let FractionalMicros { us, frac } = self.burst_tolerance;
        units(us, frac) - units(tat.us - now, tat.frac)
    }

    /// Returns `n·T`, exactly, capped at [`TIME_MAX`].
    #[inline]
    fn increment(&self, n: u64) -> FractionalMicros {
        if n == 1 {
            return self.emission_interval;
        }
        let (fracs, count) = (product(n, self.emission_interval.frac), u128::from(self.count));
        let us = product(n, self.emission_interval.us) + fracs / count;
        match u64::try_from(us) {
            Ok(us) if us < TIME_MAX => FractionalMicros { us, frac: (fracs % count) as u64 },
            _ => FractionalMicros { us: TIME_MAX, frac: 0 },
        }
    }

    /// Returns `τ + n·T`: how far ahead of now a debt of `n` may move the TAT. `None` if that is further
    /// than any TAT is.
    pub(super) fn debt_tolerance(&self, debt_max: u64) -> Option<FractionalMicros> {
        let tolerance = self.plus(self.burst_tolerance, self.increment(debt_max));
        (tolerance.us < TIME_MAX).then_some(tolerance)
    }

    #[inline]
    fn frac_of(&self, cell: Cell) -> u64 {
        (cell.data() & FRAC_MASK).min(self.count - 1)
    }

    #[inline]
    fn plus(&self, a: FractionalMicros, b: FractionalMicros) -> FractionalMicros {
        let (us, frac) = (a.us + b.us, a.frac + b.frac);
        match frac < self.count {
            true => FractionalMicros { us, frac },
            false => FractionalMicros { us: us + 1, frac: frac - self.count },
        }
    }

    #[inline]
    fn minus(&self, a: FractionalMicros, b: FractionalMicros) -> FractionalMicros {
        match a.frac >= b.frac {
            true => FractionalMicros { us: a.us - b.us, frac: a.frac - b.frac },
            false => FractionalMicros { us: a.us - b.us - 1, frac: a.frac + self.count - b.frac },
        }
    }

    /// Returns `now + τ`: the latest TAT that an admitted request may lead to.
    #[inline]
    fn tat_max(&self, state: &GcraState) -> FractionalMicros {
        FractionalMicros {
            us: state.now + self.burst_tolerance.us,
            frac: self.burst_tolerance.frac,
        }
    }

    /// Converts the TAT of a cell that was written at another rate. It keeps the usage in whole
    /// requests, exact up to one part in half a million and the flow of one microsecond.
    #[cold]
    fn convert_tat(&self, cell: Cell, now: u64) -> FractionalMicros {
        let used = RateCode::of(cell).count_in(cell.time() - now);
        let tat = self.plus(FractionalMicros { us: now, frac: 0 }, self.increment(used));
        FractionalMicros { us: tat.us.min(TIME_MAX), frac: tat.frac }
    }
}

impl CellAlgorithm for Gcra {
    type Now = u64;
    type State = GcraState;

    #[inline]
    fn prepare(&self, now: u64) -> u64 {
        now
    }

    #[inline]
    fn decode(&self, cell: Cell, now: u64) -> GcraState {
        let tat = if cell.time() < now {
            FractionalMicros { us: now, frac: 0 }
        } else if RateCode::of(cell) == self.rate_code {
            FractionalMicros { us: cell.time(), frac: self.frac_of(cell) }
        } else {
            self.convert_tat(cell, now)
        };
        GcraState { now, tat }
    }

    #[inline]
    fn encode(&self, state: &GcraState) -> Cell {
        Cell::new(state.tat.us, Ttl::ZERO, self.rate_code.data(state.tat.frac))
    }

    #[inline]
    fn is_from_other_limit(&self, cell: Cell, state: &GcraState) -> bool {
        cell.time() > state.now && RateCode::of(cell) != self.rate_code
    }

    #[inline]
    fn quota(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn fits(&self, state: &GcraState, cost: u64) -> bool {
        self.plus(state.tat, self.increment(cost)) <= self.tat_max(state)
    }

    #[inline]
    fn wait_us(&self, state: &GcraState, cost: u64) -> u64 {
        let new_tat = self.plus(state.tat, self.increment(cost));
        let tat_max = self.tat_max(state);
        match new_tat <= tat_max {
            true => 0,
            // Rounded up to a whole microsecond.
            false => new_tat.us - tat_max.us + u64::from(new_tat.frac > tat_max.frac),
        }
    }

    #[inline]
    fn add(&self, state: &mut GcraState, cost: u64) {
        state.tat = self.plus(state.tat, self.increment(cost));
    }

    fn add_debt(&self, state: &mut GcraState, cost: u64, debt_max: u64) -> bool {
        let before = state.tat;
        self.add(state, cost);
        let tat_max = self.debt_tolerance(debt_max).map(|tolerance| {
            before.max(FractionalMicros { us: state.now + tolerance.us, frac: tolerance.frac })
        });
        let is_cut = tat_max.is_some_and(|tat_max| state.tat > tat_max);
        state.tat = tat_max.map_or(state.tat, |tat_max| state.tat.min(tat_max));
        state.tat.us = state.tat.us.min(TIME_MAX);
        is_cut
    }

    fn refund(&self, state: &mut GcraState, cost: u64, charged_at: u64) {
        let now = FractionalMicros { us: state.now, frac: 0 };
        // Time has replenished the charge already, in part or in full: after τ, or a debt after its own time.
        let increment = self.increment(cost);
        let whole = increment.max(self.burst_tolerance);
        let refundable_us = whole.us.saturating_sub(state.now.saturating_sub(charged_at));
        let refundable = FractionalMicros { us: refundable_us, frac: whole.frac };
        let decrement = increment.min(refundable);
        let used = self.minus(state.tat, now);
        state.tat = match used > decrement {
            true => self.minus(state.tat, decrement),
            false => now,
        };
    }

    #[inline]
    fn remaining(&self, state: &GcraState) -> u64 {
        let used = FractionalMicros { us: state.tat.us - state.now, frac: state.tat.frac };
        if used >= self.burst_tolerance {
            return 0;
        }
        let left = self.minus(self.burst_tolerance, used);
        self.period_us.div_floor(product(left.us, self.count) + u128::from(left.frac))
    }

    #[inline]
    fn reset_after_us(&self, state: &GcraState) -> u64 {
        state.tat.us - state.now + u64::from(state.tat.frac > 0)
    }

    #[inline]
    fn delay_us(&self, state: &GcraState) -> u64 {
        if self.is_leaky { self.reset_after_us(state) } else { 0 }
    }
}

/// A rate in 27 bits, as a floating-point number: a 20-bit mantissa of requests per microsecond,
/// over a power of two.
///
/// The cell holds it, so that usage can be counted after the limit has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateCode(u32);

impl RateCode {
    const MANTISSA_BITS: u32 = 20;
    const MANTISSA_MAX: u128 = (1 << Self::MANTISSA_BITS) - 1;

    pub(super) fn new(count: u64, period_us: u64) -> Self {
        let mantissa = |shift: u32| (u128::from(count) << shift) / u128::from(period_us);
        let shift =
            (0..=90).rev().find(|shift| mantissa(*shift) <= Self::MANTISSA_MAX).unwrap_or(0);
        Self(shift << Self::MANTISSA_BITS | mantissa(shift).min(Self::MANTISSA_MAX) as u32)
    }

    pub(super) fn get(self) -> u64 {
        self.0.into()
    }

    /// Returns the data of a cell: this rate, and the fraction of the TAT.
    #[inline]
    pub(super) fn data(self, frac: u64) -> u64 {
        u64::from(self.0) << FRAC_BITS | frac
    }

    #[inline]
    pub(super) fn of(cell: Cell) -> Self {
        Self((cell.data() >> FRAC_BITS) as u32)
    }

    /// Returns how many requests are replenished in `us`, rounded up.
    pub(super) fn count_in(self, us: u64) -> u64 {
        let (shift, mantissa) = (self.0 >> Self::MANTISSA_BITS, self.0 & Self::MANTISSA_MAX as u32);
        let count = product(us, mantissa.into()).div_ceil(1 << shift);
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

pub(super) const FRAC_BITS: u32 = 26;
pub(super) const FRAC_MASK: u64 = (1 << FRAC_BITS) - 1;

pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
