//! Keys to addresses: 128 bits of a hash that is keyed at random.
//!
//! Two independently seeded hashes of the whole key, one for the place and one for the tag. Nobody
//! outside can learn the seeds, so nobody can aim two keys at one cell; by accident it takes about
//! 2^40 keys in a table of a million.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use super::table::Address;
use crate::charge::Charge;
use tollgate_core::Algorithm;

pub(super) struct KeyHasher {
    place: Seeds,
    tag: Seeds,
}

struct Seeds {
    own: u64,
    shared: SharedSeed,
}

impl KeyHasher {
    pub(super) fn random() -> Self {
        Self {
            place: Seeds::random(),
            tag: Seeds::random(),
        }
    }

    #[inline]
    pub(super) fn address(&self, charge: &Charge<'_>) -> Address {
        let algorithm = charge.limit.algorithm();
        // The scope is trusted and already spread over 64 bits; the key is neither.
        let scope = charge.scope.id().rotate_left(algorithm as u32);
        Address::new(
            self.place.hash(scope, charge.key),
            self.tag.hash(scope, charge.key),
            algorithm == Algorithm::SlidingLog,
        )
    }
}

impl Seeds {
    fn random() -> Self {
        Self {
            own: random_u64(),
            shared: SharedSeed::from_u64(random_u64()),
        }
    }

    #[inline]
    fn hash(&self, scope: u64, key: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.own ^ scope, &self.shared);
        hasher.write(key);
        hasher.finish()
    }
}

/// From the operating system, by way of the standard library.
fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}
