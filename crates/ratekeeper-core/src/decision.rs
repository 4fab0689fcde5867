//! The result of a check.

use core::time::Duration;

/// How long until the same request is admitted.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{Decision, Wait};
///
/// fn explain(decision: &Decision) -> String {
///     match decision.wait() {
///         Wait::None => "allowed".into(),
///         Wait::Micros(us) => format!("retry in {us} µs"),
///         Wait::Never => "the cost exceeds the limit".into(),
///     }
/// }
/// # assert_eq!(explain(&Decision::deny(10, 5, 5)), "retry in 5 µs");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// It is admitted now.
    None,
    /// It is admitted after exactly this many microseconds if no other request comes.
    Micros(u64),
    /// Its cost exceeds the capacity of the limit, so no wait helps.
    Never,
}

/// The result of checking one request against one limit. A denial is a value, not an error.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::Decision;
///
/// fn respond(decision: Decision) -> (u16, Option<u64>) {
///     match decision.allowed() {
///         true => (200, None),
///         // The value of a `Retry-After` header.
///         false => (429, decision.retry_after_secs()),
///     }
/// }
/// # assert_eq!(respond(Decision::deny(10, 1_500_000, 0)), (429, Some(2)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request may proceed only if it is allowed"]
pub struct Decision {
    /// 0 if the request is admitted, [`NEVER`] if no wait helps.
    pub(crate) wait_us: u64,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_after_us: u64,
    /// The delay and, in the highest bits, whether the charge was cut ([`CUT`]) or borrowed
    /// ([`BORROWED`]).
    pub(crate) delay_us: u64,
}

/// The wait of a cost that exceeds the capacity of the limit.
pub(crate) const NEVER: u64 = u64::MAX;

/// A flag above every delay. A field of its own would make every decision larger.
const CUT: u64 = 1 << 63;
/// Another flag above every delay.
const BORROWED: u64 = 1 << 62;

impl Decision {
    /// Returns a denial for `wait` that is not based on any state, for when the store is
    /// unavailable.
    pub fn deny_for(limit: u64, wait: Duration) -> Self {
        let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        Self::deny(limit, wait_us, wait_us)
    }

    /// Returns an admission with these numbers, for code that decides by its own means.
    pub fn allow(limit: u64, remaining: u64, reset_after_us: u64) -> Self {
        Self { wait_us: 0, limit, remaining, reset_after_us, delay_us: 0 }
    }

    /// Returns a denial with these numbers, for code that decides by its own means.
    pub fn deny(limit: u64, wait_us: u64, reset_after_us: u64) -> Self {
        let wait_us = wait_us.clamp(1, NEVER - 1);
        Self { wait_us, limit, remaining: 0, reset_after_us, delay_us: 0 }
    }

    /// Returns whether the request is admitted.
    #[inline]
    #[must_use]
    pub fn allowed(&self) -> bool {
        self.wait_us == 0
    }

    /// Returns the largest cost that can be admitted at once: the count of a window, or the burst
    /// of a bucket.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the largest cost that would be admitted right after this decision.
    #[inline]
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the exact wait after which the same request is admitted if no other request comes.
    ///
    /// `None` if it is admitted now, or if no wait helps ([`Decision::exceeds_capacity`]).
    #[inline]
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait() {
            Wait::Micros(us) => Some(Duration::from_micros(us)),
            Wait::None | Wait::Never => None,
        }
    }

    /// Returns the value for a `Retry-After` header: whole seconds, rounded up, at least 1.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        match self.wait() {
            Wait::Micros(us) => Some(us.div_ceil(1_000_000).max(1)),
            Wait::None | Wait::Never => None,
        }
    }

    /// Returns whether the cost exceeds the capacity of the limit, so that no wait helps.
    #[inline]
    #[must_use]
    pub fn exceeds_capacity(&self) -> bool {
        self.wait_us == NEVER
    }

    /// Returns the wait as one value, for code that handles all three cases.
    #[inline]
    #[must_use]
    pub fn wait(&self) -> Wait {
        match self.wait_us {
            0 => Wait::None,
            NEVER => Wait::Never,
            us => Wait::Micros(us),
        }
    }

    /// Returns a sort key by which the binding one of several decisions is the greatest: the
    /// longest wait, then the least remaining.
    #[inline]
    #[must_use]
    pub fn strictness(&self) -> (Wait, core::cmp::Reverse<u64>) {
        (self.wait(), core::cmp::Reverse(self.remaining()))
    }

    /// Returns the time until the next window (fixed window), or until the key has its full quota
    /// again (all others).
    #[inline]
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after_us)
    }

    /// Returns how long to delay an admitted request so that requests leave evenly spaced. Zero for
    /// every algorithm but the leaky bucket.
    #[inline]
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us & !(CUT | BORROWED))
    }

    /// Returns whether less than the cost was charged, because the debt of the key would exceed the
    /// maximum debt.
    #[inline]
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.delay_us & CUT != 0
    }

    /// Returns whether the request was admitted by borrowing from capacity that is guaranteed to no one or
    /// left unused ([`Guarantees`](crate::Guarantees)), and not by the guarantee of its class.
    #[inline]
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        self.delay_us & BORROWED != 0
    }

    pub(crate) fn with_borrowed(self, is_borrowed: bool) -> Self {
        Self {
            delay_us: if is_borrowed { self.delay_us | BORROWED } else { self.delay_us },
            ..self
        }
    }

    pub(crate) fn with_cut(self, is_cut: bool) -> Self {
        Self { delay_us: if is_cut { self.delay_us | CUT } else { self.delay_us }, ..self }
    }
}
