//! The answer to one check.

use core::time::Duration;

/// How long until the same request would pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// It passes now.
    None,
    /// It passes after this many microseconds with no other traffic, and not one sooner.
    Micros(u64),
    /// It costs more than the limit can ever hold.
    Never,
}

/// The answer to one check of one limit. A denial is a value, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// 0 if it passes now, [`NEVER`] if it never does.
    pub(crate) wait_us: u64,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_after_us: u64,
    pub(crate) delay_us: u64,
}

/// The wait of a cost that is above what the limit can ever hold.
pub(crate) const NEVER: u64 = u64::MAX;

impl Decision {
    /// A denial without a look at any state, for this long: when whoever keeps it does not answer.
    pub fn refused(limit: u64, wait: Duration) -> Self {
        let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        Self::denied(limit, wait_us, wait_us)
    }

    /// A request that passes, from numbers that somebody else has worked out.
    pub fn passed(limit: u64, remaining: u64, reset_after_us: u64) -> Self {
        Self { wait_us: 0, limit, remaining, reset_after_us, delay_us: 0 }
    }

    /// A denial, from numbers that somebody else has worked out.
    pub fn denied(limit: u64, wait_us: u64, reset_after_us: u64) -> Self {
        let wait_us = wait_us.clamp(1, NEVER - 1);
        Self { wait_us, limit, remaining: 0, reset_after_us, delay_us: 0 }
    }

    /// May the request pass?
    #[inline]
    pub fn allowed(&self) -> bool {
        self.wait_us == 0
    }

    /// The most that can pass at once: the count of a window, the burst of a bucket.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The largest cost that would pass right now, after this decision. Rounded down.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The exact wait after which the same request passes if nothing else happens meanwhile.
    ///
    /// `None` when it was allowed, and when no wait would help (see [`Decision::never`]).
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait() {
            Wait::Micros(us) => Some(Duration::from_micros(us)),
            Wait::None | Wait::Never => None,
        }
    }

    /// The value for a `Retry-After` header: whole seconds, rounded up, never 0.
    pub fn retry_after_secs(&self) -> Option<u64> {
        match self.wait() {
            Wait::Micros(us) => Some(us.div_ceil(1_000_000).max(1)),
            Wait::None | Wait::Never => None,
        }
    }

    /// True when the cost is above what the limit can ever hold, so that no wait would help.
    #[inline]
    pub fn never(&self) -> bool {
        self.wait_us == NEVER
    }

    /// The wait in one value, for code that treats all three cases.
    #[inline]
    pub fn wait(&self) -> Wait {
        match self.wait_us {
            0 => Wait::None,
            NEVER => Wait::Never,
            us => Wait::Micros(us),
        }
    }

    /// How much it matters among others: a longer wait first, then less that remains.
    #[inline]
    pub fn strictness(&self) -> (Wait, core::cmp::Reverse<u64>) {
        (self.wait(), core::cmp::Reverse(self.remaining()))
    }

    /// Until the window turns (fixed window) or the key is as good as new (the others).
    #[inline]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after_us)
    }

    /// How long to hold an admitted request so that output is evenly spaced. Zero for everything
    /// but a leaky bucket.
    #[inline]
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us)
    }
}
