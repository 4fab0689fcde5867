//! Random bits: ids that cannot be guessed, and jitter.

use std::hash::{BuildHasher, RandomState};

/// Returns 128 random bits from the operating system.
#[cfg(any(feature = "policy", feature = "redis"))]
pub(crate) fn unguessable_id() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    u128::from_ne_bytes(bytes)
}

/// A generator for jitter (SplitMix64), which differs between processes. Its bits can be guessed.
#[derive(Debug)]
pub(crate) struct JitterBits(u64);

impl JitterBits {
    pub(crate) fn new() -> Self {
        // Seeded by the operating system, once per thread, and different each time.
        Self(RandomState::new().hash_one(0))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
