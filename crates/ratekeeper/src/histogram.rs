//! How long things took, in fixed buckets.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in microseconds. Above the last, there is no bound.
pub const BOUNDS_US: [u64; 19] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
    250_000, 500_000, 1_000_000,
];

/// Counts durations. Two additions for each, without a lock.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One for each bound, and one for what is above all of them.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// What a histogram has counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// How many took no longer than each of [`BOUNDS_US`].
    pub within: [u64; BOUNDS_US.len()],
    /// How many there were.
    pub count: u64,
    /// How long they took together.
    pub sum: Duration,
}

impl Histogram {
    /// Counts so many that took this long each.
    #[inline]
    pub fn record(&self, took: Duration, times: u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(times, Ordering::Relaxed);
        self.sum_us.fetch_add(us.saturating_mul(times), Ordering::Relaxed);
    }

    /// What has been counted so far.
    pub fn durations(&self) -> Durations {
        let mut durations = Durations::default();
        for (i, bucket) in self.buckets.iter().enumerate() {
            durations.count += bucket.load(Ordering::Relaxed);
            if let Some(within) = durations.within.get_mut(i) {
                *within = durations.count;
            }
        }
        durations.sum = Duration::from_micros(self.sum_us.load(Ordering::Relaxed));
        durations
    }
}

thread_local! {
    static TURN: Cell<u64> = const { Cell::new(0) };
}

/// Times one in so many and counts it for all of them: for what takes no longer than it takes to read
/// the clock.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "policy"), allow(dead_code))]
pub(crate) struct Sampled(Histogram);

#[cfg_attr(not(feature = "policy"), allow(dead_code))]
impl Sampled {
    const ONE_IN: u64 = 64;

    /// Is it this one's turn? The first of a thread is.
    #[inline]
    pub(crate) fn is_due() -> bool {
        TURN.with(|turn| turn.replace(turn.get().wrapping_add(1)) % Self::ONE_IN == 0)
    }

    pub(crate) fn record(&self, took: Duration) {
        self.0.record(took, Self::ONE_IN);
    }

    pub(crate) fn durations(&self) -> Durations {
        self.0.durations()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket_and_buckets_add_up() {
        let histogram = Histogram::default();
        for (us, times) in [(0, 1), (1, 1), (2, 3), (3, 1), (1_000_000, 1), (9_000_000, 2)] {
            histogram.record(Duration::from_micros(us), times);
        }
        let told = histogram.durations();
        assert_eq!(told.within[..3], [2, 5, 6]);
        assert_eq!((told.within[18], told.count), (7, 9));
        assert_eq!(told.sum, Duration::from_micros(1 + 6 + 3 + 1_000_000 + 18_000_000));
    }
}
