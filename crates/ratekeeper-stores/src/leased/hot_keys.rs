//! Which keys are hot: a rough count of recent requests, in a fixed amount of memory.

use std::sync::atomic::{AtomicU64, Ordering};

const SLOTS: usize = 4_096;
/// Requests are counted in slices of time of this length.
pub(super) const SLICE_US: u64 = 100_000;

/// A slot for each key, which other keys may overwrite: 16 bits of the key's hash, 24 of the slice's
/// number, and 12 each for the counts of this slice and the one before.
pub(super) struct HotKeys(Box<[AtomicU64]>);

const COUNT_MAX: u64 = (1 << 12) - 1;

impl HotKeys {
    pub(super) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts a request. Returns how many there are in a slice of time.
    pub(super) fn count(&self, hash: u64, now: u64) -> u64 {
        let slot = &self.0[hash as usize % SLOTS];
        let (tag, slice) = (hash >> 48, (now / SLICE_US) & 0xff_ffff);
        let seen = slot.load(Ordering::Relaxed);
        let (seen_tag, seen_slice) = (seen >> 48, (seen >> 24) & 0xff_ffff);
        let (count, before) = ((seen >> 12) & COUNT_MAX, seen & COUNT_MAX);
        let (count, before) = match slice.wrapping_sub(seen_slice) {
            0 if seen_tag == tag => ((count + 1).min(COUNT_MAX), before),
            1 if seen_tag == tag => (1, count),
            _ => (1, 0),
        };
        let next = tag << 48 | slice << 24 | count << 12 | before;
        // A count that is lost to another thread does no harm.
        slot.store(next, Ordering::Relaxed);
        count.max(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_larger_count_of_this_slice_and_the_last() {
        let keys = HotKeys::new();
        let counts: Vec<_> = (0..5).map(|_| keys.count(7, 50)).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5]);
        assert_eq!(keys.count(7, SLICE_US), 5);
        assert_eq!(keys.count(7, 2 * SLICE_US), 1);
        assert_eq!(keys.count(7, 9 * SLICE_US), 1);
        assert_eq!(keys.count(7 | 1 << 60, 9 * SLICE_US), 1, "another key overwrites the slot");
    }
}
