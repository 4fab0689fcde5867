//! A histogram of delays, in bounded memory.
//!
//! The width of a bucket is at most a 1024th of its values. A bucket is represented by its longest
//! delay, so a quantile is a delay that occurred and at most 0.1% too long. `hdrhistogram` would report
//! the upper bound of a bucket instead: 400.1 ms for delays of exactly 400 ms.

const STEP_BITS: u32 = 10;
const STEPS: usize = 1 << STEP_BITS;

#[derive(Debug, Default)]
pub(crate) struct DelayHistogram {
    buckets: Vec<Bucket>,
    total: u64,
    max_us: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    count: u64,
    max_us: u64,
}

impl DelayHistogram {
    pub(crate) fn add(&mut self, us: u64) {
        let index = bucket_of(us);
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, Bucket::default());
        }
        let bucket = &mut self.buckets[index];
        bucket.count += 1;
        bucket.max_us = bucket.max_us.max(us);
        self.total += 1;
        self.max_us = self.max_us.max(us);
    }

    pub(crate) fn max_us(&self) -> u64 {
        self.max_us
    }

    /// Returns a delay that `percent` of the delays do not exceed.
    pub(crate) fn quantile_us(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.total) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        let bucket = self.buckets.iter().find(|bucket| {
            seen += u128::from(bucket.count);
            bucket.count > 0 && seen >= wanted
        });
        bucket.map_or(0, |bucket| bucket.max_us)
    }
}

fn bucket_of(us: u64) -> usize {
    if us < STEPS as u64 {
        return us as usize;
    }
    let shift = 63 - STEP_BITS - us.leading_zeros();
    shift as usize * STEPS + (us >> shift) as usize
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
        let mut delays = DelayHistogram::default();
        (1..=1_000).for_each(|n| delays.add(n * 1_000));
        assert!((500_000..=500_500).contains(&delays.quantile_us(50)));
        assert!((990_000..=991_000).contains(&delays.quantile_us(99)));
        assert_eq!(delays.quantile_us(100), 1_000_000);
        assert_eq!(DelayHistogram::default().quantile_us(50), 0);
    }
}
