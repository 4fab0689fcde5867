//! Token bucket and leaky bucket, as in [`bucket`](super::bucket), where one word tells the moment of
//! rest exactly: in units of `1/count` microseconds, which `W/R` is a whole number of.
//!
//! That is so for every rate with `count` (which is `R` over its greatest common divisor with `W`) up to
//! 1023: 100 a second has 1, 60 a second has 3, 999 a second has 999.

use super::RuleTime;
use super::bucket::{FRAC_BITS, FRAC_MASK, Pace, in_lowest_terms};
use super::meter::{Divisor, Meter, div_floor, product};
use crate::cell::{Cell, TIME_MAX};
use crate::cost::Cost;
use crate::limit::LimitError;
use crate::rate::Rate;
use crate::terms::{Span, Terms};
use crate::time::Micros;

/// No sum of a time and a span in these units leaves 64 bits.
const COUNT_MAX: u64 = 1023;

#[derive(Clone, Debug)]
pub(crate) struct ScaledBucket {
    /// The one difference: in a leaky bucket the admitted have to wait their turn.
    is_queue: bool,
    /// How many units there are in a microsecond.
    count: Divisor,
    /// `W/R`: how far one request moves the moment of rest.
    interval: Divisor,
    burst: u64,
    /// `B·W/R`: how far ahead that moment may lie.
    fill: u64,
    pace: Pace,
    /// The second word of all its cells.
    second_word: u64,
}

pub(crate) struct Usage {
    now: RuleTime,
    /// When the bucket is back at rest; never before now.
    rest: u64,
}

impl Usage {
    #[inline]
    pub(super) fn rest(&self) -> u64 {
        self.rest
    }
}

impl ScaledBucket {
    /// Does one word tell all for this rate?
    pub(super) fn suits(rate: Rate) -> bool {
        in_lowest_terms(rate).0 <= COUNT_MAX
    }

    pub(super) fn new(rate: Rate, is_queue: bool) -> Result<Self, LimitError> {
        let (count, interval) = in_lowest_terms(rate);
        let burst = rate.burst().unwrap_or(rate.count());
        let burst_max = div_floor(product(Micros::MAX.get(), count), interval);
        if burst > burst_max {
            return Err(LimitError::RefillTooLong { rate, burst_max });
        }
        let pace = Pace::new(count, interval);
        let [_, second_word] = Cell::scaled(0, pace.data(count)).to_words();
        let (count, interval, fill) =
            (Divisor::new(count), Divisor::new(interval), burst * interval);
        Ok(Self { is_queue, count, interval, burst, fill, pace, second_word })
    }

    pub(super) fn terms(&self, cost: Cost) -> Terms {
        let count = self.count.get();
        let span = |units: u64| Span { us: units / count, frac: units % count };
        let (cost, fill) = (span(self.span(cost.get())), span(self.fill));
        Terms::Bucket { count, pace: self.pace.code(), cost, fill }
    }

    /// The second word of all its cells.
    #[inline]
    pub(super) fn second_word(&self) -> u64 {
        self.second_word
    }

    #[inline(always)]
    pub(super) fn time(&self, us: u64) -> RuleTime {
        RuleTime { us, units: us * self.count.get() }
    }

    /// What the first word means.
    #[inline(always)]
    pub(super) fn usage_at(&self, rest: u64, now: RuleTime) -> Usage {
        Usage { now, rest: rest.max(now.units) }
    }

    /// The cell of these parts ([`Cell::to_parts`]), if it was written at this rate.
    pub(super) fn cell_from_parts(&self, cell: Cell) -> Cell {
        match Pace::of(cell) == self.pace {
            true => Cell::scaled(self.units_of(cell), self.pace.data(self.count.get())),
            false => cell,
        }
    }

    /// The moment of a cell that was written at this rate.
    fn units_of(&self, cell: Cell) -> u64 {
        let count = self.count.get();
        cell.time() * count + (cell.data() & FRAC_MASK).min(count - 1)
    }

    /// `n·W/R`, exactly; capped where it would leave the calendar.
    #[inline]
    fn span(&self, n: u64) -> u64 {
        let interval = self.interval.get();
        match n {
            1 => interval,
            _ => {
                n.checked_mul(interval).map_or(self.units_max(), |span| span.min(self.units_max()))
            }
        }
    }

    #[inline]
    fn units_max(&self) -> u64 {
        TIME_MAX * self.count.get()
    }

    /// What a cell means that is not one of these as it is.
    #[cold]
    fn rest_of(&self, cell: Cell, now: RuleTime) -> u64 {
        if cell.time() < now.us {
            now.units
        } else if Pace::of(cell) == self.pace {
            self.units_of(cell)
        } else {
            // The same usage in whole requests, as far as a pace can tell.
            let used = Pace::of(cell).count_in(cell.time() - now.us);
            (now.units + self.span(used)).min(self.units_max())
        }
    }

    #[inline]
    fn microseconds(&self, units: u64) -> u64 {
        self.count.div_ceil_64(units)
    }
}

impl Meter for ScaledBucket {
    type Usage = Usage;

    #[inline]
    fn usage(&self, cell: Cell, now: u64) -> Usage {
        let now = self.time(now);
        let [first, second] = cell.to_words();
        match second == self.second_word {
            true => self.usage_at(first, now),
            false => self.usage_at(self.rest_of(cell, now), now),
        }
    }

    #[inline]
    fn to_cell(&self, usage: &Usage) -> Cell {
        Cell::scaled(usage.rest, self.pace.data(self.count.get()))
    }

    #[inline]
    fn is_foreign(&self, cell: Cell, usage: &Usage) -> bool {
        let [_, second] = cell.to_words();
        second != self.second_word && cell.time() > usage.now.us && Pace::of(cell) != self.pace
    }

    #[inline]
    fn quota(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn fits(&self, usage: &Usage, cost: u64) -> bool {
        usage.rest + self.span(cost) <= usage.now.units + self.fill
    }

    #[inline]
    fn wait_us(&self, usage: &Usage, cost: u64) -> u64 {
        let latest = usage.now.units + self.fill;
        self.microseconds((usage.rest + self.span(cost)).saturating_sub(latest))
    }

    #[inline]
    fn add(&self, usage: &mut Usage, cost: u64) {
        usage.rest += self.span(cost);
    }

    fn cap_debt(&self, usage: &mut Usage) {
        // The fraction stays, as everywhere else.
        let frac = self.count.rest(usage.rest);
        usage.rest = usage.rest.min(self.units_max() + frac);
    }

    fn give_back(&self, usage: &mut Usage, cost: u64, charged_at: u64) {
        // What was charged then is gone once a whole bucket could have flowed since.
        let frac = self.count.rest(self.fill);
        let fill_us = (self.fill - frac) / self.count.get();
        let counts_for_us = fill_us.saturating_sub(usage.now.us.saturating_sub(charged_at));
        let span = self.span(cost).min(counts_for_us * self.count.get() + frac);
        usage.rest = usage.rest.saturating_sub(span).max(usage.now.units);
    }

    #[inline]
    fn remaining(&self, usage: &Usage) -> u64 {
        let used = usage.rest - usage.now.units;
        self.interval.div_floor(self.fill.saturating_sub(used).into())
    }

    #[inline]
    fn reset_after_us(&self, usage: &Usage) -> u64 {
        self.microseconds(usage.rest - usage.now.units)
    }

    #[inline]
    fn delay_us(&self, usage: &Usage) -> u64 {
        if self.is_queue { self.reset_after_us(usage) } else { 0 }
    }
}

const _: () = assert!(COUNT_MAX < 1 << FRAC_BITS);
