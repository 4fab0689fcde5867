//! Time as the core sees it: whole microseconds since the Unix epoch.

use core::fmt;
use core::time::Duration;

/// A moment, in microseconds since the Unix epoch.
///
/// It saturates at [`Micros::MAX`], in the year 2112, so that no sum in the core can overflow and
/// every value stays exact in a double (which is all that Lua in Redis has).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// The last moment that can be told: 2^52 − 1 µs, in the year 2112.
    pub const MAX: Micros = Micros((1 << 52) - 1);

    /// The moment `us` microseconds after the epoch, or [`Micros::MAX`] if that is later.
    #[inline]
    pub const fn new(us: u64) -> Self {
        if us > Self::MAX.0 { Self::MAX } else { Self(us) }
    }

    /// The same where the caller knows that it is not later, and time matters too much to look.
    #[inline]
    pub const fn known(us: u64) -> Self {
        debug_assert!(us <= Self::MAX.0);
        Self(us)
    }

    /// Microseconds since the epoch.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// This moment moved forward by `span`, rounded up to a whole microsecond.
    pub fn after(self, span: Duration) -> Self {
        let us = span.as_nanos().div_ceil(1_000);
        Self::new(self.0.saturating_add(u64::try_from(us).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is before.
    pub fn since(self, earlier: Micros) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} µs", self.0)
    }
}
