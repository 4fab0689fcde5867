//! The levels of all buckets at one moment, in one unit, and what they allow now and later.

use crate::decision::NEVER;

use super::GUARANTEES_MAX;

/// The level of one bucket, and how it refills.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Level {
    /// The level now; negative in debt.
    pub(super) now: i128,
    /// The level of a full bucket.
    pub(super) full: i128,
    /// By how much the level rises in a microsecond, until the bucket is full. More than 0.
    pub(super) flow: i128,
}

impl Level {
    /// The level after some microseconds.
    fn after(&self, us: u64) -> i128 {
        self.full.min(self.now + i128::from(us) * self.flow)
    }

    /// What is held back for the class of a guarantee: nothing if it is in debt.
    fn held_after(&self, us: u64) -> i128 {
        self.after(us).max(0)
    }

    /// How much more is held back for its class with every microsecond from then on.
    fn held_flow(&self, us: u64) -> i128 {
        match self.after(us) {
            level if level < 0 || level == self.full => 0,
            _ => self.flow,
        }
    }

    /// Until when the level rises evenly, in whole microseconds and at least `us`. What is held back does not rise
    /// before a debt is paid.
    fn even_until(&self, us: u64) -> u64 {
        match self.after(us) {
            level if level == self.full => u64::MAX,
            level if level < 0 => micros((-self.now) / self.flow),
            _ => micros((self.full - self.now) / self.flow),
        }
    }

    /// The microseconds until the level is `units`, rounded up; [`NEVER`] if a full bucket has less.
    fn wait_us(&self, units: i128) -> u64 {
        match units {
            _ if units > self.full => NEVER,
            _ if units <= self.now => 0,
            _ => div_ceil(units - self.now, self.flow),
        }
    }
}

/// A way to admit a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It fits the guarantee of its class, and the total.
    Guarantee,
    /// The total has more than all guarantees hold back.
    Borrow,
}

/// The levels of the total and of each guarantee.
#[derive(Debug)]
pub(super) struct Levels {
    /// How many units one request is.
    scale: i128,
    /// The index of the class's own guarantee.
    own: Option<usize>,
    levels: [Level; GUARANTEES_MAX + 1],
    len: usize,
}

impl Levels {
    pub(super) fn new(scale: u64, own: Option<usize>) -> Self {
        Self { scale: scale.into(), own, levels: Default::default(), len: 0 }
    }

    pub(super) fn push(&mut self, level: Level) {
        self.levels[self.len] = level;
        self.len += 1;
    }

    fn total(&self) -> &Level {
        &self.levels[0]
    }

    fn guarantees(&self) -> &[Level] {
        &self.levels[1..self.len]
    }

    /// How a request that needs so many units is admitted now; `None` if it is denied.
    pub(super) fn way(&self, needed: i128) -> Option<Way> {
        let fits_own = self.own.is_some_and(|own| needed <= self.levels[own].now);
        if fits_own && needed <= self.total().now {
            Some(Way::Guarantee)
        } else if needed <= self.lendable(0) {
            Some(Way::Borrow)
        } else {
            None
        }
    }

    /// What the total has beyond what all guarantees hold back, after some microseconds. Negative if the total is
    /// short.
    pub(super) fn lendable(&self, us: u64) -> i128 {
        let held: i128 = self.guarantees().iter().map(|level| level.held_after(us)).sum();
        self.total().after(us) - held
    }

    /// How much a bucket owes.
    pub(super) fn debt(&self, index: usize) -> i128 {
        (-self.levels[index].now).max(0)
    }

    /// When a request is admitted that is denied now, without other traffic: at the earlier one of both ways.
    pub(super) fn wait_us(&self, needed: i128) -> u64 {
        let own = self.own.map(|own| self.levels[own].wait_us(needed));
        let guarantee = own.map_or(NEVER, |wait| wait.max(self.total().wait_us(needed)));
        guarantee.min(self.borrow_wait(needed))
    }

    /// The microseconds until so many units can be borrowed; [`NEVER`] if that will not be possible without other
    /// traffic.
    ///
    /// What can be lent does not fall until the total is full, and does not rise from then on. In between it rises
    /// evenly, except where a guarantee becomes full or has paid a debt. So this walks from one such point to the
    /// next. A point between two microseconds is passed by a step of one.
    fn borrow_wait(&self, needed: i128) -> u64 {
        let mut us = 0;
        loop {
            let short = needed - self.lendable(us);
            if short <= 0 {
                return us;
            }
            if self.total().after(us) == self.total().full {
                return NEVER;
            }
            let all = &self.levels[..self.len];
            let even_until = all.iter().map(|level| level.even_until(us)).min().unwrap_or(us);
            let held: i128 = self.guarantees().iter().map(|level| level.held_flow(us)).sum();
            let flow = self.total().flow - held;
            let crossing = if flow > 0 { us.saturating_add(div_ceil(short, flow)) } else { NEVER };
            if crossing <= even_until {
                return crossing;
            }
            us = even_until.max(us + 1);
        }
    }

    /// The largest cost that is admitted now.
    pub(super) fn remaining(&self) -> u64 {
        let own = self.own.map_or(0, |own| self.levels[own].now.min(self.total().now));
        let units = own.max(self.lendable(0)).max(0);
        u64::try_from(units / self.scale).unwrap_or(u64::MAX)
    }

    /// The time until all buckets are full.
    pub(super) fn reset_after_us(&self) -> u64 {
        let waits = self.levels[..self.len].iter().map(|level| level.wait_us(level.full));
        waits.max().unwrap_or_default()
    }
}

/// `n / d` rounded up, of positive numbers.
fn div_ceil(n: i128, d: i128) -> u64 {
    micros((n + d - 1) / d)
}

fn micros(us: i128) -> u64 {
    u64::try_from(us).unwrap_or(NEVER - 1)
}
