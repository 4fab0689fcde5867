//! Keys to addresses: a hash that is keyed at random.
//!
//! Nobody outside can learn the seeds, so nobody can aim two keys at one cell. By accident, in a
//! table full of a million keys the chance that any two of them share a cell is one in 5,000: two of
//! them have to agree in their bucket and in 32 more bits.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;

use super::table::Address;
use crate::charge::Charge;

pub(super) struct KeyHasher {
    own: u64,
    shared: SharedSeed,
}

impl KeyHasher {
    pub(super) fn random() -> Self {
        Self { own: random_u64(), shared: SharedSeed::from_u64(random_u64()) }
    }

    #[inline]
    pub(super) fn address(&self, charge: &Charge<'_>) -> Address {
        // What the key belongs to is trusted and already spread over 64 bits; the key is neither.
        let mut hasher = FoldHasher::with_seed(self.own ^ charge.usage_id, &self.shared);
        hasher.write(charge.key);
        Address::new(hasher.finish())
    }
}

/// From the operating system, by way of the standard library.
fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}
