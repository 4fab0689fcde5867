//! Time as whole microseconds since the Unix epoch.

use core::fmt;
use core::time::Duration;

/// A time, in microseconds since the Unix epoch.
///
/// It saturates at [`Micros::MAX`], in the year 2112. So no sum in the core can overflow, and every
/// value is exact in a double, the only number type of Lua in Redis.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use std::time::Duration;
/// use ratekeeper::Micros;
///
/// let start = Micros::new(1_000_000);
/// let later = start.after(Duration::from_millis(250));
/// assert_eq!(later.since(start), Duration::from_millis(250));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// The latest time: 2^52 − 1 µs, in the year 2112.
    pub const MAX: Micros = Micros((1 << 52) - 1);

    /// Returns the time `us` microseconds after the epoch, at most [`Micros::MAX`].
    #[inline]
    #[must_use]
    pub const fn new(us: u64) -> Self {
        if us > Self::MAX.0 { Self::MAX } else { Self(us) }
    }

    /// Returns the time `us` microseconds after the epoch, which must be at most [`Micros::MAX`].
    /// For hot paths: it is checked in debug builds only.
    #[inline]
    #[must_use]
    pub const fn new_unchecked(us: u64) -> Self {
        debug_assert!(us <= Self::MAX.0);
        Self(us)
    }

    /// Returns the microseconds since the epoch.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the time `duration` after this one, rounded up to a whole microsecond.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let us = duration.as_nanos().div_ceil(1_000);
        Self::new(self.0.saturating_add(u64::try_from(us).unwrap_or(u64::MAX)))
    }

    /// Returns the time elapsed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Micros) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} µs", self.0)
    }
}
