//! Space-Saving: who was counted most often, in a fixed amount of memory (Metwally, Agrawal and
//! El Abbadi, 2005).
//!
//! Every key that is kept has a count that is never too low, and knows by how much it may be too high.
//! A key that is not kept was counted no more often than the least that is.

use super::text::Text;

/// How many keys are kept. The most that a count can be wrong by is what was counted, divided by this.
pub(super) const KEYS: usize = 64;

/// Keys and their counts.
pub(super) struct Sketch {
    /// Beside each other, for they are looked through.
    hashes: Vec<u64>,
    counts: Vec<u64>,
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    error: u64,
    limit: Text<64>,
    key: Text<128>,
}

/// A key that was counted often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) limit: String,
    pub(super) key: String,
    pub(super) is_cut: bool,
    pub(super) count: u64,
    /// By how much the count may be too high.
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

    /// Counts a key, known by its hash, so many times.
    pub(super) fn add(&mut self, hash: u64, limit: &str, key: &[u8], times: u64) {
        if let Some(i) = self.hashes.iter().position(|known| *known == hash) {
            self.counts[i] += times;
            return;
        }
        if self.hashes.len() < KEYS {
            self.hashes.push(hash);
            self.counts.push(times);
            self.entries.push(Entry::new(0, limit, key));
            return;
        }
        let (i, least) = self.least();
        self.hashes[i] = hash;
        self.counts[i] = least + times;
        self.entries[i] = Entry::new(least, limit, key);
    }

    fn least(&self) -> (usize, u64) {
        let counts = self.counts.iter().copied().enumerate();
        counts.min_by_key(|(_, count)| *count).unwrap_or_default()
    }

    /// How often a key that is not kept was counted at most.
    pub(super) fn unlisted(&self) -> u64 {
        if self.hashes.len() < KEYS { 0 } else { self.least().1 }
    }

    /// Halves every count, and forgets whose is nothing then.
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

    /// Every key that is kept, in no order.
    pub(super) fn counted(&self) -> impl Iterator<Item = Counted> {
        self.entries.iter().zip(&self.counts).map(|(entry, count)| Counted {
            limit: entry.limit.to_string(),
            key: entry.key.to_string(),
            is_cut: entry.key.is_cut() || entry.limit.is_cut(),
            count: *count,
            error: entry.error,
        })
    }

    /// What it takes, whatever is counted.
    pub(super) const fn bytes() -> usize {
        KEYS * (2 * size_of::<u64>() + size_of::<Entry>())
    }

    #[cfg(test)]
    pub(super) fn bytes_now(&self) -> usize {
        let words = self.hashes.capacity() + self.counts.capacity();
        words * size_of::<u64>() + self.entries.capacity() * size_of::<Entry>()
    }
}

impl Entry {
    fn new(error: u64, limit: &str, key: &[u8]) -> Self {
        Self { error, limit: Text::new(limit.as_bytes()), key: Text::new(key) }
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
        fn a_count_is_never_too_low_and_its_error_is_told(
            stream in proptest::collection::vec((zipf(), 1_u64..5), 1..4_000),
        ) {
            let (mut sketch, mut truth) = (Sketch::new(), HashMap::<String, u64>::new());
            for (key, times) in &stream {
                add(&mut sketch, *key, *times);
                *truth.entry(key.to_string()).or_default() += times;
            }
            let total: u64 = truth.values().sum();
            let told: HashMap<_, _> =
                sketch.counted().map(|counted| (counted.key.clone(), counted)).collect();
            for counted in told.values() {
                let real = truth[&counted.key];
                prop_assert!(counted.count >= real);
                prop_assert!(counted.count - counted.error <= real);
                prop_assert!(counted.error <= total / KEYS as u64);
            }
            for (key, real) in &truth {
                prop_assert!(told.contains_key(key) || *real <= sketch.unlisted());
                prop_assert!(told.contains_key(key) || *real <= total / KEYS as u64);
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
    fn what_was_fades() {
        let mut sketch = Sketch::new();
        add(&mut sketch, 1, 9);
        add(&mut sketch, 2, 1);
        sketch.halve();
        let counted: Vec<_> = sketch.counted().collect();
        assert_eq!(counted.len(), 1, "{counted:?}");
        assert_eq!((counted[0].key.as_str(), counted[0].count), ("1", 4));
    }
}
