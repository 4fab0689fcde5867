//! A histogram of delays or counts, in bounded memory.
//!
//! The width of a bucket is at most a 1024th of its values. A bucket is represented by its largest
//! value, so a quantile is a value that occurred and at most 0.1% too large. `hdrhistogram` would report
//! the upper bound of a bucket instead: 400.1 ms for delays of exactly 400 ms.

const STEP_BITS: u32 = 10;
const STEPS: usize = 1 << STEP_BITS;

#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: Vec<Bucket>,
    total: u64,
    max: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    count: u64,
    max: u64,
}

impl Histogram {
    pub(crate) fn add(&mut self, value: u64) {
        self.add_n(value, 1);
    }

    /// Adds a value `n` times.
    pub(crate) fn add_n(&mut self, value: u64, n: u64) {
        let index = bucket_of(value);
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, Bucket::default());
        }
        let bucket = &mut self.buckets[index];
        bucket.count += n;
        bucket.max = bucket.max.max(value);
        self.total += n;
        self.max = self.max.max(value);
    }

    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// Returns a value that `percent` of the values do not exceed.
    pub(crate) fn quantile(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.total) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        let bucket = self.buckets.iter().find(|bucket| {
            seen += u128::from(bucket.count);
            bucket.count > 0 && seen >= wanted
        });
        bucket.map_or(0, |bucket| bucket.max)
    }
}

fn bucket_of(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let shift = 63 - STEP_BITS - value.leading_zeros();
    shift as usize * STEPS + (value >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        let mut start_us = 0u64;
        for us in 1..3_000_000u64 {
            match bucket_of(us) - bucket_of(us - 1) {
                0 => assert!((us - start_us) * 1_024 <= us, "{start_us} to {us}"),
                1 => start_us = us,
                _ => panic!("a gap at {us}"),
            }
        }
        assert!(bucket_of(u64::MAX) < 64 * STEPS);
    }

    #[test]
    fn quantiles_are_close_to_the_true_ones() {
        let mut delays = Histogram::default();
        (1..=1_000).for_each(|n| delays.add(n * 1_000));
        assert!((500_000..=500_500).contains(&delays.quantile(50)));
        assert!((990_000..=991_000).contains(&delays.quantile(99)));
        assert_eq!(delays.quantile(100), 1_000_000);
        assert_eq!(Histogram::default().quantile(50), 0);
    }
}
