//! A histogram of durations with fixed buckets.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in microseconds. The last bucket has none.
pub const BOUNDS_US: [u64; 19] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
    250_000, 500_000, 1_000_000,
];

/// Counts durations in buckets, lock-free.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::histogram::Histogram;
///
/// let histogram = Histogram::default();
/// histogram.record(Duration::from_millis(3), 1);
/// assert_eq!(histogram.counts().count, 1);
/// ```
#[derive(Debug, Default)]
pub struct Histogram {
    /// One for each bound, and one for longer durations.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// The counts of a [`Histogram`] at one time.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::histogram::{BOUNDS_US, Histogram};
///
/// let histogram = Histogram::default();
/// histogram.record(Duration::from_micros(3), 2);
/// let counts = histogram.counts();
/// assert_eq!((BOUNDS_US[2], counts.within[2]), (5, 2));
/// assert_eq!(counts.sum, Duration::from_micros(6));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationCounts {
    /// How many durations were at most each of [`BOUNDS_US`].
    pub within: [u64; BOUNDS_US.len()],
    /// How many durations there were.
    pub count: u64,
    /// The sum of all durations.
    pub sum: Duration,
}

impl Histogram {
    /// Counts a duration, `times` times.
    #[inline]
    pub fn record(&self, took: Duration, times: u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(times, Ordering::Relaxed);
        self.sum_us.fetch_add(us.saturating_mul(times), Ordering::Relaxed);
    }

    /// Returns what has been counted so far.
    pub fn counts(&self) -> DurationCounts {
        let mut counts = DurationCounts::default();
        for (i, bucket) in self.buckets.iter().enumerate() {
            counts.count += bucket.load(Ordering::Relaxed);
            if let Some(within) = counts.within.get_mut(i) {
                *within = counts.count;
            }
        }
        counts.sum = Duration::from_micros(self.sum_us.load(Ordering::Relaxed));
        counts
    }
}

/// Counts of two histograms together.
impl std::ops::AddAssign for DurationCounts {
    fn add_assign(&mut self, other: Self) {
        self.within.iter_mut().zip(other.within).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
        self.sum += other.sum;
    }
}

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Times one call in 64 and counts it as 64, for calls that take no longer than reading the clock.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "policy"), allow(dead_code))]
pub(crate) struct SampledHistogram(Histogram);

#[cfg_attr(not(feature = "policy"), allow(dead_code))]
impl SampledHistogram {
    const ONE_IN: u64 = 64;

    /// Returns whether this call is one to time. The first call of a thread is.
    #[inline]
    pub(crate) fn is_due() -> bool {
        CALLS.with(|calls| calls.replace(calls.get().wrapping_add(1)) % Self::ONE_IN == 0)
    }

    pub(crate) fn record(&self, took: Duration) {
        self.0.record(took, Self::ONE_IN);
    }

    pub(crate) fn counts(&self) -> DurationCounts {
        self.0.counts()
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
        let counts = histogram.counts();
        assert_eq!(counts.within[..3], [2, 5, 6]);
        assert_eq!((counts.within[18], counts.count), (7, 9));
        assert_eq!(counts.sum, Duration::from_micros(1 + 6 + 3 + 1_000_000 + 18_000_000));
    }
}
