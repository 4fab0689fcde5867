//! Keys to addresses: a hash that is keyed at random.
//!
//! Nobody outside can learn the seeds, so nobody can aim two keys at one cell. By accident, in a
//! table full of a million keys the chance that any two of them share a cell is one in 5,000: two of
//! them have to agree in their bucket and in 32 more bits.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

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

#[cfg(all(test, not(loom)))]
mod tests {
    use tollgate_core::Limit;

    use super::super::table::Table;
    use super::*;

    /// Numbers in a row are the worst: with a hash that is only good enough for most seeds, one store
    /// in thirty gave up live keys while a third of its slots were free.
    #[test]
    fn numbers_in_a_row_are_spread_whatever_the_seed() {
        const KEYS: u64 = 1_200;
        const NEIGHBOURHOOD: usize = 64;
        let limit: Limit = "5/s".parse().unwrap();
        let table = Table::with_capacity(1_000);
        for _ in 0..1_000 {
            let hasher = KeyHasher::random();
            let mut homes: Vec<usize> = (0..KEYS)
                .map(|i| table.home(hasher.address(&Charge::new(&limit, &i.to_be_bytes()))))
                .collect();
            homes.sort_unstable();
            let near = |(i, home): (usize, &usize)| {
                homes[i..].iter().take_while(|other| *other - home < NEIGHBOURHOOD).count()
            };
            let most = homes.iter().enumerate().map(near).max().unwrap();
            // Two to a bucket, and seven deviations above that.
            assert!(most < 215, "{most} keys in {NEIGHBOURHOOD} buckets");
        }
    }
}
