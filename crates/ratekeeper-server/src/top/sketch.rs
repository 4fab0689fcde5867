//! Space-Saving: the most frequent keys of a stream, in a fixed amount of memory (Metwally, Agrawal and
//! El Abbadi, 2005).
//!
//! The count of a key in the sketch is never too low, and too high by at most its error. A key that is not
//! in the sketch occurred no more often than the least count in it.

use super::fixed_text::FixedText;

/// The number of keys in a sketch. The error of a count is at most the total divided by this.
pub(super) const KEYS: usize = 64;

/// Keys and their counts.
pub(super) struct Sketch {
    /// Contiguous, because they are searched linearly.
    hashes: Vec<u64>,
    counts: Vec<u64>,
    entries: Vec<SketchEntry>,
}

#[derive(Clone)]
struct SketchEntry {
    error: u64,
    limit: FixedText<64>,
    key: FixedText<128>,
}

/// A frequent key, and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyCount {
    pub(super) limit: String,
    pub(super) key: String,
    pub(super) is_truncated: bool,
    pub(super) count: u64,
    /// How much too high the count can be.
    pub(super) error: u64,
}

impl Sketch {
    pub(super) fn new() -> Self {
        Self {
            hashes: Vec::with_capacity(KEYS),
            counts: Vec::with_capacity(KEYS),
            entries: Vec::with_capacity(KEYS),
        }
    }

    /// Counts a key, identified by its hash, `times` times.
    pub(super) fn add(&mut self, hash: u64, limit: &str, key: &[u8], times: u64) {
        if let Some(i) = self.hashes.iter().position(|known| *known == hash) {
            self.counts[i] += times;
            return;
        }
        if self.hashes.len() < KEYS {
            self.hashes.push(hash);
            self.counts.push(times);
            self.entries.push(SketchEntry::new(0, limit, key));
            return;
        }
        let (i, least) = self.least();
        self.hashes[i] = hash;
        self.counts[i] = least + times;
        self.entries[i] = SketchEntry::new(least, limit, key);
    }

    fn least(&self) -> (usize, u64) {
        let counts = self.counts.iter().copied().enumerate();
        counts.min_by_key(|(_, count)| *count).unwrap_or_default()
    }

    /// Returns the most that a key that is not in the sketch can have been counted.
    pub(super) fn unlisted(&self) -> u64 {
        if self.hashes.len() < KEYS { 0 } else { self.least().1 }
    }

    /// Halves every count, and removes keys whose count becomes 0.
    pub(super) fn halve(&mut self) {
        for i in (0..self.hashes.len()).rev() {
            self.counts[i] /= 2;
            self.entries[i].error = self.entries[i].error.div_ceil(2).min(self.counts[i]);
            if self.counts[i] == 0 {
                self.hashes.swap_remove(i);
                self.counts.swap_remove(i);
                self.entries.swap_remove(i);
            }
        }
    }

    /// Returns every key in the sketch, in no order.
    pub(super) fn counted(&self) -> impl Iterator<Item = KeyCount> {
        self.entries.iter().zip(&self.counts).map(|(entry, count)| KeyCount {
            limit: entry.limit.to_string(),
            key: entry.key.to_string(),
            is_truncated: entry.key.is_truncated() || entry.limit.is_truncated(),
            count: *count,
            error: entry.error,
        })
    }

    /// Returns the memory of a sketch, whatever is counted.
    pub(super) const fn bytes() -> usize {
        KEYS * (2 * size_of::<u64>() + size_of::<SketchEntry>())
    }

    #[cfg(test)]
    pub(super) fn bytes_now(&self) -> usize {
        let words = self.hashes.capacity() + self.counts.capacity();
        words * size_of::<u64>() + self.entries.capacity() * size_of::<SketchEntry>()
    }
}

impl SketchEntry {
    fn new(error: u64, limit: &str, key: &[u8]) -> Self {
        Self { error, limit: FixedText::new(limit.as_bytes()), key: FixedText::new(key) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn add(sketch: &mut Sketch, key: u64, times: u64) {
        sketch.add(key, "api", format!("{key}").as_bytes(), times);
    }

    /// Numbers from 0 on, the small ones far more often: the n-th half as often as the (n/2)-th.
    fn zipf() -> impl Strategy<Value = u64> {
        (0_u64..16, any::<u64>()).prop_map(|(bits, random)| random % (1 << bits))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_count_is_never_too_low_and_within_its_error(
            stream in proptest::collection::vec((zipf(), 1_u64..5), 1..4_000),
        ) {
            let (mut sketch, mut truth) = (Sketch::new(), HashMap::<String, u64>::new());
            for (key, times) in &stream {
                add(&mut sketch, *key, *times);
                *truth.entry(key.to_string()).or_default() += times;
            }
            let total: u64 = truth.values().sum();
            let counted: HashMap<_, _> =
                sketch.counted().map(|counted| (counted.key.clone(), counted)).collect();
            for key in counted.values() {
                let real = truth[&key.key];
                prop_assert!(key.count >= real);
                prop_assert!(key.count - key.error <= real);
                prop_assert!(key.error <= total / KEYS as u64);
            }
            for (key, real) in &truth {
                prop_assert!(counted.contains_key(key) || *real <= sketch.unlisted());
                prop_assert!(counted.contains_key(key) || *real <= total / KEYS as u64);
            }
        }
    }

    #[test]
    fn the_true_top_of_a_zipf_stream_is_found() {
        let mut sketch = Sketch::new();
        for round in 1..=2_000_u64 {
            (1..=1_000).filter(|rank| round % rank == 0).for_each(|rank| add(&mut sketch, rank, 1));
        }
        let mut counted: Vec<_> = sketch.counted().collect();
        counted.sort_by_key(|counted| std::cmp::Reverse(counted.count));
        let top: Vec<_> = counted.iter().take(10).map(|counted| counted.key.as_str()).collect();
        assert_eq!(top, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
    }

    #[test]
    fn a_flood_of_distinct_keys_takes_no_more_memory() {
        let mut sketch = Sketch::new();
        let before = sketch.bytes_now();
        (0..50_000).for_each(|key| add(&mut sketch, key, 1));
        assert_eq!(sketch.bytes_now(), before);
        assert!(before <= Sketch::bytes());
        assert_eq!(sketch.counted().count(), KEYS);
    }

    #[test]
    fn old_counts_fade() {
        let mut sketch = Sketch::new();
        add(&mut sketch, 1, 9);
        add(&mut sketch, 2, 1);
        sketch.halve();
        let counted: Vec<_> = sketch.counted().collect();
        assert_eq!(counted.len(), 1, "{counted:?}");
        assert_eq!((counted[0].key.as_str(), counted[0].count), ("1", 4));
    }
}
