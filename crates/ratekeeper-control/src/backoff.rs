//! Exponential backoff with jitter.

use std::time::Duration;

use crate::uniform::{nanos, up_to};

/// How the delays of callers are spread, so that those which failed together do not retry together.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{Backoff, Jitter};
///
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// let third = |jitter, random| backoff.with_jitter(jitter).delay(3, Duration::ZERO, random);
///
/// assert_eq!(third(Jitter::None, 0), Duration::from_secs(4));
/// assert_eq!(third(Jitter::Full, 0), Duration::ZERO);
/// assert_eq!(third(Jitter::Equal, 0), Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jitter {
    /// The delay is the ceiling itself. Only for tests and for a single caller.
    None,
    /// Uniform between zero and the ceiling.
    #[default]
    Full,
    /// Half of the ceiling, and a uniform share of the other half.
    Equal,
    /// Uniform between the base and three times the previous delay, at most the maximum. The
    /// delay does not depend on the number of the retry.
    Decorrelated,
}

/// Exponential backoff: the ceiling of the delay doubles with each retry, up to a maximum.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::Backoff;
///
/// const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(20));
///
/// let random = 1 << 63; // from the caller's generator; this is the middle
/// assert_eq!(BACKOFF.delay(1, Duration::ZERO, random).as_millis(), 50);
/// assert_eq!(BACKOFF.delay(2, Duration::ZERO, random).as_millis(), 100);
/// assert_eq!(BACKOFF.delay(u32::MAX, Duration::ZERO, random).as_secs(), 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    jitter: Jitter,
}

impl Backoff {
    /// 100 ms, doubling up to 20 s, with full jitter.
    pub const DEFAULT: Self = Self::new(Duration::from_millis(100), Duration::from_secs(20));

    /// Returns a backoff with full jitter whose ceiling is `base` for the first retry and at most
    /// `max`.
    #[must_use]
    pub const fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, jitter: Jitter::Full }
    }

    /// Returns the same backoff with another jitter.
    #[must_use]
    pub const fn with_jitter(self, jitter: Jitter) -> Self {
        Self { jitter, ..self }
    }

    /// Returns the delay before a retry.
    ///
    /// `retry` is 1 for the first retry. `previous` is the delay before the previous retry, zero if
    /// there was none; only [`Jitter::Decorrelated`] uses it. `random` is uniform.
    #[must_use]
    pub fn delay(&self, retry: u32, previous: Duration, random: u64) -> Duration {
        let ceiling = self.ceiling_ns(retry);
        let delay = match self.jitter {
            Jitter::None => ceiling,
            Jitter::Full => up_to(ceiling, random),
            Jitter::Equal => ceiling - ceiling / 2 + up_to(ceiling / 2, random),
            Jitter::Decorrelated => self.decorrelated_ns(previous, random),
        };
        Duration::from_nanos(delay)
    }

    fn ceiling_ns(&self, retry: u32) -> u64 {
        let doublings = retry.saturating_sub(1).min(u64::BITS - 1);
        nanos(self.base).saturating_mul(1 << doublings).min(nanos(self.max))
    }

    fn decorrelated_ns(&self, previous: Duration, random: u64) -> u64 {
        let base = nanos(self.base);
        let high = nanos(previous).max(base).saturating_mul(3);
        (base + up_to(high - base, random)).min(nanos(self.max))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
    }
}
