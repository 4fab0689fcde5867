//! Ids that cannot be guessed.

/// Returns 128 random bits from the operating system.
pub(crate) fn unguessable_id() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    u128::from_ne_bytes(bytes)
}
