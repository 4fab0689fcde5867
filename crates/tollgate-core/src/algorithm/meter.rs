//! What the algorithms have in common: read usage from a cell, decide, add or give back, write.

use crate::cell::Cell;
use crate::cost::Cost;
use crate::decision::{Decision, Wait};
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
    /// The wait for a cost that is at most the quota.
    fn wait_us(&self, usage: &Self::Usage, cost: u64) -> u64;
    fn add(&self, usage: &mut Self::Usage, cost: u64);
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
    let mut usage = meter.usage(*cell, now.get());
    let wait = wait(meter, &usage, cost);
    let mut delay_us = 0;
    if wait == Wait::None {
        delay_us = meter.delay_us(&usage);
        meter.add(&mut usage, cost.get());
        *cell = meter.to_cell(&usage);
    } else if meter.is_foreign(*cell, &usage) {
        *cell = meter.to_cell(&usage);
    }
    report(meter, &usage, wait, delay_us)
}

#[inline]
pub(super) fn peek<M: Meter>(meter: &M, cell: Cell, cost: Cost, now: Micros) -> Decision {
    let usage = meter.usage(cell, now.get());
    let wait = wait(meter, &usage, cost);
    let delay_us = if wait == Wait::None {
        meter.delay_us(&usage)
    } else {
        0
    };
    report(meter, &usage, wait, delay_us)
}

pub(super) fn charge<M: Meter>(meter: &M, cell: &mut Cell, cost: Cost, now: Micros) -> Decision {
    let mut usage = meter.usage(*cell, now.get());
    let delay_us = meter.delay_us(&usage);
    meter.add(&mut usage, cost.get());
    *cell = meter.to_cell(&usage);
    report(meter, &usage, Wait::None, delay_us)
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
    report(meter, &usage, Wait::None, 0)
}

#[inline]
fn wait<M: Meter>(meter: &M, usage: &M::Usage, cost: Cost) -> Wait {
    if cost.get() > meter.quota() {
        return Wait::Never;
    }
    match meter.wait_us(usage, cost.get()) {
        0 => Wait::None,
        us => Wait::Micros(us),
    }
}

#[inline]
fn report<M: Meter>(meter: &M, usage: &M::Usage, wait: Wait, delay_us: u64) -> Decision {
    Decision {
        wait,
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

/// `n / d` rounded up.
#[inline]
pub(super) fn div_ceil(n: u128, d: u64) -> u64 {
    div_floor(n + u128::from(d - 1), d)
}

/// The exact product of two 64-bit numbers.
#[inline]
pub(super) fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}
