//! Which users of a class are served, and for how long.

use std::time::Duration;

use ratekeeper_core::Micros;

use super::level::WHOLE;
use crate::uniform::{second, up_to};

/// Returns the hash of a user's name, for [`Shedder::admit`](crate::Shedder::admit). It is the same
/// in all processes, so that a request that needs several services is served by all or by none.
///
/// ```
/// use ratekeeper_control::user_hash;
///
/// assert_eq!(user_hash(b"ann"), user_hash(b"ann"));
/// assert_ne!(user_hash(b"ann"), user_hash(b"bob"));
/// ```
#[must_use]
pub fn user_hash(name: &[u8]) -> u64 {
    // FNV-1a.
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The places of users, which change with each rotation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    period_us: u64,
    seed: u64,
}

impl Rotation {
    pub(super) fn new(period: Duration, seed: u64) -> Self {
        Self { period_us: u64::try_from(period.as_micros()).unwrap_or(u64::MAX), seed }
    }

    /// Returns the place of a user: 0 to [`WHOLE`] − 1.
    ///
    /// With each rotation, a place moves on by the golden ratio (Weyl's sequence). So the places of
    /// one user are spread evenly over the whole range: any part `q` of it has one of `3 / q`
    /// consecutive places. Users rotate at different times, so that who is served changes
    /// gradually.
    pub(super) fn place(self, user_hash: u64, now: Micros) -> u32 {
        /// 2^64 divided by the golden ratio.
        const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

        let first = second(user_hash ^ self.seed);
        let offset_us = up_to(self.period_us - 1, second(first));
        let rotations = now.get().saturating_add(offset_us) / self.period_us;
        let place = first.wrapping_add(rotations.wrapping_mul(GOLDEN_RATIO));
        up_to(u64::from(WHOLE) - 1, place) as u32
    }
}
