//! Numbers that nobody else has.

use std::hash::{BuildHasher, Hasher, RandomState};

/// From the operating system, by way of the standard library.
pub(super) fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}
