//! Keys to addresses: a hash that is keyed at random.
//!
//! The seeds are secret, so that no caller can choose two keys that share a slot. By accident, the
//! chance that any two of a million keys share one is one in 5,000: they have to agree in their home
//! line and in 32 more bits.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;

use super::table::Address;
use crate::charge::Charge;

/// Odd and without a pattern: the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

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
        // The quick hash leaves a pattern in its upper bits, and they choose the home. After this they
        // depend on all bits: keys are spread as by the crate's better hash, which costs more.
        Address::new(hasher.finish().wrapping_mul(SPREAD))
    }
}

/// From the operating system, by way of the standard library.
fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use ratekeeper_core::Limit;

    use super::super::table::Table;
    use super::*;

    /// Numbers in a row are the worst: with a hash that is only good enough for most seeds, one store
    /// in thirty gave up live keys while a third of its slots were free.
    #[test]
    fn numbers_in_a_row_are_spread_whatever_the_seed() {
        are_spread(|i| i.to_be_bytes().to_vec());
        are_spread(|i| i.to_le_bytes().to_vec());
        are_spread(|i| u128::from(i).to_be_bytes().to_vec());
        are_spread(|i| format!("user:{i}").into_bytes());
    }

    fn are_spread(key: impl Fn(u64) -> Vec<u8>) {
        const NEIGHBOURHOOD: usize = 64;
        let limit: Limit = "5/s".parse().unwrap();
        let table = Table::with_capacity(1_000);
        let keys: Vec<Vec<u8>> = (0..1_200).map(key).collect();
        for _ in 0..300 {
            let hasher = KeyHasher::random();
            let home = |key: &Vec<u8>| table.home(hasher.address(&Charge::new(&limit, key)));
            let mut homes: Vec<usize> = keys.iter().map(home).collect();
            homes.sort_unstable();
            let near = |(i, home): (usize, &usize)| {
                homes[i..].iter().take_while(|other| *other - home < NEIGHBOURHOOD).count()
            };
            let most = homes.iter().enumerate().map(near).max().unwrap();
            // Two to a line, and seven deviations above that.
            assert!(most < 215, "{most} keys in {NEIGHBOURHOOD} lines");
        }
    }
}
