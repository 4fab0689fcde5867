//! What the algorithms have in common: read usage from a cell, decide, add or give back, write.

use crate::cell::Cell;
use crate::cost::Cost;
use crate::decision::{Decision, NEVER};
use crate::time::Micros;

/// One algorithm over [`Cell`]s. Leaves compute; the functions below commit.
pub(super) trait Meter {
    /// What a cell means at a moment.
    type Usage;

    fn usage(&self, cell: Cell, now: u64) -> Self::Usage;
    fn to_cell(&self, usage: &Self::Usage) -> Cell;

    /// Was the cell written under another limit, so that it would go on at the pace of that one?
    /// The first check, even if denied, then rewrites it: what the check says of waits is true.
    fn is_foreign(&self, _cell: Cell, _usage: &Self::Usage) -> bool {
        false
    }

    /// The most that can pass at once.
    fn quota(&self) -> u64;
    /// Does a cost that is at most the quota pass now?
    fn fits(&self, usage: &Self::Usage, cost: u64) -> bool;
    /// The wait for a cost that is at most the quota.
    fn wait_us(&self, usage: &Self::Usage, cost: u64) -> u64;
    fn add(&self, usage: &mut Self::Usage, cost: u64);
    /// Keeps what was added without a check within what a cell can hold.
    fn cap_debt(&self, _usage: &mut Self::Usage) {}
    fn give_back(&self, usage: &mut Self::Usage, cost: u64, charged_at: u64);

    fn remaining(&self, usage: &Self::Usage) -> u64;
    fn reset_after_us(&self, usage: &Self::Usage) -> u64;
    /// How long a request that is admitted now has to be held.
    fn delay_us(&self, _usage: &Self::Usage) -> u64 {
        0
    }
}

#[inline]
pub(super) fn check<M: Meter>(meter: &M, cell: &mut Cell, cost: Cost, now: Micros) -> Decision {
    let before = *cell;
    let swap = |next: Option<Cell>| {
        *cell = next.unwrap_or(before);
        true
    };
    check_and_swap(meter, before, cost, now, swap).expect("it was swapped")
}

/// Decides, swaps the cell for what it has become, and only then works out the rest.
#[inline]
pub(super) fn check_and_swap<M: Meter>(
    meter: &M,
    cell: Cell,
    cost: Cost,
    now: Micros,
    swap: impl FnOnce(Option<Cell>) -> bool,
) -> Option<Decision> {
    let usage = meter.usage(cell, now.get());
    let is_foreign = meter.is_foreign(cell, &usage);
    let swap = |usage: &M::Usage, is_added: bool| {
        swap((is_added || is_foreign).then(|| meter.to_cell(usage)))
    };
    decide(meter, usage, cost, swap)
}

/// The same from what the cell means. `swap` is given what it means next, and whether it was added to.
#[inline(always)]
pub(super) fn decide<M: Meter>(
    meter: &M,
    mut usage: M::Usage,
    cost: Cost,
    swap: impl FnOnce(&M::Usage, bool) -> bool,
) -> Option<Decision> {
    if is_within_quota(meter, cost) && meter.fits(&usage, cost.get()) {
        let delay_us = meter.delay_us(&usage);
        meter.add(&mut usage, cost.get());
        // Not `then`, here and below: two closures would not be put in line, and all be worked out.
        let is_swapped = swap(&usage, true);
        return if is_swapped { Some(report(meter, &usage, 0, delay_us)) } else { None };
    }
    // At least 1, which it is anyway: who asks only whether it is allowed does not pay for the rest.
    let wait_us = wait_us(meter, &usage, cost).max(1);
    if swap(&usage, false) { Some(report(meter, &usage, wait_us, 0)) } else { None }
}

#[inline]
pub(super) fn peek<M: Meter>(meter: &M, cell: Cell, cost: Cost, now: Micros) -> Decision {
    let usage = meter.usage(cell, now.get());
    let wait_us = wait_us(meter, &usage, cost);
    let delay_us = if wait_us == 0 { meter.delay_us(&usage) } else { 0 };
    report(meter, &usage, wait_us, delay_us)
}

pub(super) fn charge<M: Meter>(meter: &M, cell: &mut Cell, cost: Cost, now: Micros) -> Decision {
    let mut usage = meter.usage(*cell, now.get());
    let delay_us = meter.delay_us(&usage);
    meter.add(&mut usage, cost.get());
    meter.cap_debt(&mut usage);
    *cell = meter.to_cell(&usage);
    report(meter, &usage, 0, delay_us)
}

pub(super) fn refund<M: Meter>(
    meter: &M,
    cell: &mut Cell,
    cost: Cost,
    charged_at: Micros,
    now: Micros,
) -> Decision {
    let mut usage = meter.usage(*cell, now.get());
    meter.give_back(&mut usage, cost.get(), charged_at.get());
    *cell = meter.to_cell(&usage);
    report(meter, &usage, 0, 0)
}

#[inline]
fn wait_us<M: Meter>(meter: &M, usage: &M::Usage, cost: Cost) -> u64 {
    match is_within_quota(meter, cost) {
        true => meter.wait_us(usage, cost.get()),
        false => NEVER,
    }
}

#[inline]
fn is_within_quota<M: Meter>(meter: &M, cost: Cost) -> bool {
    cost.get() == 1 || cost.get() <= meter.quota() // every quota is 1 or more
}

#[inline(always)] // so that numbers nobody reads are not worked out
fn report<M: Meter>(meter: &M, usage: &M::Usage, wait_us: u64, delay_us: u64) -> Decision {
    Decision {
        wait_us,
        limit: meter.quota(),
        remaining: meter.remaining(usage),
        reset_after_us: meter.reset_after_us(usage),
        delay_us,
    }
}

/// `n / d` rounded down. Most numerators fit 64 bits, where the division is several times faster.
#[inline]
pub(super) fn div_floor(n: u128, d: u64) -> u64 {
    match u64::try_from(n) {
        Ok(n) => n / d,
        Err(_) => (n / u128::from(d)) as u64,
    }
}

/// A divisor that is divided by often: a multiplication instead, and exact all the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    d: u64,
    /// 2^64 / d, rounded down.
    inverse: u64,
}

impl Divisor {
    pub(super) fn new(d: u64) -> Self {
        let inverse = u64::try_from((1u128 << 64) / u128::from(d)).unwrap_or(u64::MAX);
        Self { d, inverse }
    }

    #[inline]
    pub(super) fn get(self) -> u64 {
        self.d
    }

    /// `n / d` rounded down.
    #[inline]
    pub(super) fn div_floor(self, n: u128) -> u64 {
        match u64::try_from(n) {
            Ok(n) => self.div(n),
            Err(_) => (n / u128::from(self.d)) as u64,
        }
    }

    /// `n / d` rounded up.
    #[inline]
    pub(super) fn div_ceil(self, n: u128) -> u64 {
        self.div_floor(n + u128::from(self.d - 1))
    }

    /// The same where it fits 64 bits: nothing that can fail, so that nobody pays who does not read it.
    #[inline]
    pub(super) fn div_ceil_64(self, n: u64) -> u64 {
        let (quotient, rest) = self.quotient_and_rest(n);
        quotient + u64::from(rest > 0)
    }

    #[inline]
    fn div(self, n: u64) -> u64 {
        self.quotient_and_rest(n).0
    }

    /// How much `n` is above a multiple of `d`.
    #[inline]
    pub(super) fn rest(self, n: u64) -> u64 {
        self.quotient_and_rest(n).1
    }

    #[inline]
    fn quotient_and_rest(self, n: u64) -> (u64, u64) {
        // The inverse is too small by less than one, so this is too small by at most one.
        let quotient = (product(n, self.inverse) >> 64) as u64;
        let rest = n - quotient * self.d;
        if rest < self.d { (quotient, rest) } else { (quotient + 1, rest - self.d) }
    }
}

/// The exact product of two 64-bit numbers.
#[inline]
pub(super) fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of every size, and those around the powers of two.
    fn numbers() -> impl Iterator<Item = u64> + Clone {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let any = (0..64).map(move |size| {
            random = random.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ random >> 31;
            random >> size
        });
        let edges = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        any.chain(edges).chain([u64::MAX])
    }

    #[test]
    fn a_divisor_divides_as_division_does() {
        for d in numbers().filter(|d| *d > 0) {
            let divisor = Divisor::new(d);
            for n in numbers() {
                assert_eq!(divisor.div(n), n / d, "{n} / {d}");
                assert_eq!(divisor.rest(n), n % d, "{n} % {d}");
                assert_eq!(divisor.div_ceil_64(n), n.div_ceil(d), "{n} / {d}, rounded up");
                assert_eq!(divisor.div_ceil(n.into()), n.div_ceil(d), "{n} / {d}, rounded up");
                // Around the quotients, where a rounded inverse would show.
                let multiple = n / d * d;
                assert_eq!(divisor.div(multiple), n / d, "{multiple} / {d}");
                assert_eq!(divisor.div(multiple.saturating_sub(1)), multiple.saturating_sub(1) / d);
            }
        }
    }
}
