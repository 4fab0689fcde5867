//! Numbers that nobody else has.

use std::hash::{BuildHasher, Hasher, RandomState};

/// From the operating system, by way of the standard library.
pub(super) fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A number that nobody can guess, straight from the operating system.
pub(super) fn unguessable() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    u128::from_ne_bytes(bytes)
}
