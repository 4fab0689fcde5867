//! Token bucket and leaky bucket: one arithmetic, two meanings.
//!
//! `R` per `W` flows, at most `B` at once. In a token bucket the flow fills it and a request takes
//! from it; in a leaky bucket a request fills it and the flow drains it. What either has to
//! remember is one moment: when the bucket will be back at rest if nothing else comes. A request
//! of cost `n` moves that moment by `n·W/R`, and is admitted if it stays within `B·W/R` of now.
//!
//! The moment is kept exactly, as whole microseconds and a fraction in units of `1/R`
//! ([`Moment`]), so there is no drift at any rational rate, and a check neither multiplies nor
//! divides to decide.
//!
//! Most rates need no fraction, in a unit of their own: [`scaled_bucket`](super::scaled_bucket).

use super::meter::{Divisor, Meter, div_floor, product};
use crate::cell::{Cell, Life, TIME_MAX};
use crate::cost::Cost;
use crate::limit::LimitError;
use crate::rate::Rate;
use crate::terms::{Span, Terms};
use crate::time::Micros;

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The one difference: in a leaky bucket the admitted have to wait their turn.
    is_queue: bool,
    /// `R`, over the greatest common divisor of `R` and `W`.
    count: u64,
    /// `W` in microseconds, over the same.
    period_us: Divisor,
    burst: u64,
    /// `W/R`: how far one request moves the moment of rest.
    interval: Moment,
    /// `B·W/R`: how far ahead that moment may lie.
    fill: Moment,
    pace: Pace,
}

/// How many requests are in use by a bucket's cell, at the rate it was written at.
pub(crate) fn usage(cell: Cell, now: u64) -> u64 {
    Pace::of(cell).count_in(cell.time().saturating_sub(now))
}

/// `R` and `W` in microseconds, both over their greatest common divisor.
pub(super) fn in_lowest_terms(rate: Rate) -> (u64, u64) {
    let divisor = gcd(rate.count(), rate.period_us());
    (rate.count() / divisor, rate.period_us() / divisor)
}

/// A moment or a span: `us + frac/R` microseconds, with `frac < R`. Compares in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    us: u64,
    frac: u64,
}

pub(crate) struct Usage {
    now: u64,
    /// When the bucket is back at rest; never before `now`.
    rest: Moment,
}

impl Bucket {
    pub(super) fn new(rate: Rate, is_queue: bool) -> Result<Self, LimitError> {
        let (count, period_us) = in_lowest_terms(rate);
        if count > FRAC_MASK {
            return Err(LimitError::RateTooFine { rate, count_max: FRAC_MASK });
        }
        let burst = rate.burst().unwrap_or(rate.count());
        let burst_max = div_floor(product(Micros::MAX.get(), count), period_us);
        if burst > burst_max {
            return Err(LimitError::RefillTooLong { rate, burst_max });
        }
        let interval = Moment { us: period_us / count, frac: period_us % count };
        let pace = Pace::new(count, period_us);
        let period_us = Divisor::new(period_us);
        let fill = interval;
        let mut bucket = Self { is_queue, count, period_us, burst, interval, fill, pace };
        bucket.fill = bucket.span(burst);
        Ok(bucket)
    }

    pub(super) fn terms(&self, cost: Cost) -> Terms {
        let span = |moment: Moment| Span { us: moment.us, frac: moment.frac };
        Terms::Bucket {
            count: self.count,
            pace: self.pace.code(),
            cost: span(self.span(cost.get())),
            fill: span(self.fill),
        }
    }

    /// `n·W/R`, exactly; capped where it would leave the calendar.
    #[inline]
    fn span(&self, n: u64) -> Moment {
        if n == 1 {
            return self.interval;
        }
        let (fracs, count) = (product(n, self.interval.frac), u128::from(self.count));
        let us = product(n, self.interval.us) + fracs / count;
        match u64::try_from(us) {
            Ok(us) if us < TIME_MAX => Moment { us, frac: (fracs % count) as u64 },
            _ => Moment { us: TIME_MAX, frac: 0 },
        }
    }

    #[inline]
    fn frac_of(&self, cell: Cell) -> u64 {
        (cell.data() & FRAC_MASK).min(self.count - 1)
    }

    #[inline]
    fn plus(&self, a: Moment, b: Moment) -> Moment {
        let (us, frac) = (a.us + b.us, a.frac + b.frac);
        match frac < self.count {
            true => Moment { us, frac },
            false => Moment { us: us + 1, frac: frac - self.count },
        }
    }

    #[inline]
    fn minus(&self, a: Moment, b: Moment) -> Moment {
        match a.frac >= b.frac {
            true => Moment { us: a.us - b.us, frac: a.frac - b.frac },
            false => Moment { us: a.us - b.us - 1, frac: a.frac + self.count - b.frac },
        }
    }

    /// The latest moment of rest that the bucket has room for.
    #[inline]
    fn latest(&self, usage: &Usage) -> Moment {
        Moment { us: usage.now + self.fill.us, frac: self.fill.frac }
    }

    /// What a cell that was written at another rate means at this one: the same usage in whole
    /// requests, exact up to one part in half a million and the flow of one microsecond.
    #[cold]
    fn carry_over(&self, cell: Cell, now: u64) -> Moment {
        let used = Pace::of(cell).count_in(cell.time() - now);
        let rest = self.plus(Moment { us: now, frac: 0 }, self.span(used));
        Moment { us: rest.us.min(TIME_MAX), frac: rest.frac }
    }
}

impl Meter for Bucket {
    type Usage = Usage;

    #[inline]
    fn usage(&self, cell: Cell, now: u64) -> Usage {
        let rest = if cell.time() < now {
            Moment { us: now, frac: 0 }
        } else if Pace::of(cell) == self.pace {
            Moment { us: cell.time(), frac: self.frac_of(cell) }
        } else {
            self.carry_over(cell, now)
        };
        Usage { now, rest }
    }

    #[inline]
    fn to_cell(&self, usage: &Usage) -> Cell {
        Cell::new(usage.rest.us, Life::ZERO, self.pace.data(usage.rest.frac))
    }

    #[inline]
    fn is_foreign(&self, cell: Cell, usage: &Usage) -> bool {
        cell.time() > usage.now && Pace::of(cell) != self.pace
    }

    #[inline]
    fn quota(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn fits(&self, usage: &Usage, cost: u64) -> bool {
        self.plus(usage.rest, self.span(cost)) <= self.latest(usage)
    }

    #[inline]
    fn wait_us(&self, usage: &Usage, cost: u64) -> u64 {
        let after = self.plus(usage.rest, self.span(cost));
        let limit = self.latest(usage);
        match after <= limit {
            true => 0,
            // Rounded up to a whole microsecond.
            false => after.us - limit.us + u64::from(after.frac > limit.frac),
        }
    }

    #[inline]
    fn add(&self, usage: &mut Usage, cost: u64) {
        usage.rest = self.plus(usage.rest, self.span(cost));
    }

    fn cap_debt(&self, usage: &mut Usage) {
        usage.rest.us = usage.rest.us.min(TIME_MAX);
    }

    fn give_back(&self, usage: &mut Usage, cost: u64, charged_at: u64) {
        let at_rest = Moment { us: usage.now, frac: 0 };
        // What was charged then is gone once a whole bucket could have flowed since.
        let counts_for = self.fill.us.saturating_sub(usage.now.saturating_sub(charged_at));
        let span = self.span(cost).min(Moment { us: counts_for, frac: self.fill.frac });
        let used = self.minus(usage.rest, at_rest);
        usage.rest = match used > span {
            true => self.minus(usage.rest, span),
            false => at_rest,
        };
    }

    #[inline]
    fn remaining(&self, usage: &Usage) -> u64 {
        let used = Moment { us: usage.rest.us - usage.now, frac: usage.rest.frac };
        if used >= self.fill {
            return 0;
        }
        let left = self.minus(self.fill, used);
        self.period_us.div_floor(product(left.us, self.count) + u128::from(left.frac))
    }

    #[inline]
    fn reset_after_us(&self, usage: &Usage) -> u64 {
        usage.rest.us - usage.now + u64::from(usage.rest.frac > 0)
    }

    #[inline]
    fn delay_us(&self, usage: &Usage) -> u64 {
        if self.is_queue { self.reset_after_us(usage) } else { 0 }
    }
}

/// A rate in 27 bits: requests per microsecond as 20 bits over a power of two.
///
/// It travels with the state, so that usage can be counted after the limit has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace(u32);

impl Pace {
    const DIGITS: u32 = 20;
    const DIGITS_MAX: u128 = (1 << Self::DIGITS) - 1;

    pub(super) fn new(count: u64, period_us: u64) -> Self {
        let digits = |shift: u32| (u128::from(count) << shift) / u128::from(period_us);
        let shift = (0..=90).rev().find(|shift| digits(*shift) <= Self::DIGITS_MAX).unwrap_or(0);
        Self(shift << Self::DIGITS | digits(shift).min(Self::DIGITS_MAX) as u32)
    }

    pub(super) fn code(self) -> u64 {
        self.0.into()
    }

    /// What a cell keeps: the pace, and the fraction of its moment.
    #[inline]
    pub(super) fn data(self, frac: u64) -> u64 {
        u64::from(self.0) << FRAC_BITS | frac
    }

    #[inline]
    pub(super) fn of(cell: Cell) -> Self {
        Self((cell.data() >> FRAC_BITS) as u32)
    }

    /// How many pass in `us`, rounded up.
    pub(super) fn count_in(self, us: u64) -> u64 {
        let (shift, digits) = (self.0 >> Self::DIGITS, self.0 & Self::DIGITS_MAX as u32);
        let count = product(us, digits.into()).div_ceil(1 << shift);
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

pub(super) const FRAC_BITS: u32 = 26;
pub(super) const FRAC_MASK: u64 = (1 << FRAC_BITS) - 1;

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
