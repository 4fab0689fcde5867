//! Uniform draws from random bits that the caller supplies.

use std::time::Duration;

/// Returns a value in `0..=max`, uniform if `random` is.
pub(crate) fn up_to(max: u64, random: u64) -> u64 {
    let draw = (u128::from(random) * (u128::from(max) + 1)) >> 64;
    // At most `max`, because `random` is below 2^64.
    draw as u64
}

/// Returns a duration in `0..=max`, uniform if `random` is.
pub(crate) fn duration_up_to(max: Duration, random: u64) -> Duration {
    Duration::from_nanos(up_to(nanos(max), random))
}

/// Returns a number in `0.0..1.0`, uniform if `random` is.
pub(crate) fn fraction(random: u64) -> f64 {
    /// The bits that a double holds exactly.
    const BITS: u32 = f64::MANTISSA_DIGITS;
    (random >> (u64::BITS - BITS)) as f64 / (1u64 << BITS) as f64
}

/// Returns other bits that are made of the same ones, for a second draw (the finalizer of
/// SplitMix64).
pub(crate) fn second(random: u64) -> u64 {
    let mut bits = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Returns the nanoseconds of a duration; at most `u64::MAX`, which is over 500 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_drawn() {
        for max in [0, 1, 9, u64::MAX - 1, u64::MAX] {
            assert_eq!(up_to(max, 0), 0);
            assert_eq!(up_to(max, u64::MAX), max);
        }
        assert_eq!(fraction(0), 0.0);
        assert!(fraction(u64::MAX) < 1.0);
    }
}
