//! Windows of samples: what a controller learns from, aggregated so that a request costs a few
//! additions.

use std::time::Duration;

use ratekeeper_core::Micros;

use super::AdaptiveError;

/// How a request ended, as far as a concurrency limit is concerned.
///
/// ```
/// use ratekeeper_control::adaptive::SampleOutcome;
///
/// fn of_status(status: u16) -> SampleOutcome {
///     match status {
///         503 | 504 => SampleOutcome::Overload,
///         500.. => SampleOutcome::Ignored,
///         _ => SampleOutcome::Success,
///     }
/// }
/// # assert_eq!(of_status(200), SampleOutcome::Success);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOutcome {
    /// The service did the work. Only these are latency samples.
    Success,
    /// The service is overloaded: a timeout, or a response that says so, such as a 503.
    Overload,
    /// Says nothing about load: an error of the request itself, or one that failed at once.
    Ignored,
}

/// When a [`WindowAggregator`] closes a window.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::adaptive::{WindowAggregator, WindowConfig};
///
/// let config = WindowConfig::DEFAULT
///     .with_samples_min(50)
///     .with_sample_timeout(Duration::from_secs(10));
/// let aggregator = WindowAggregator::new(config)?;
/// # Ok::<(), ratekeeper_control::adaptive::AdaptiveError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    samples_min: u32,
    duration_min: Duration,
    duration_max: Duration,
    sample_timeout: Duration,
}

impl WindowConfig {
    /// At least 100 samples and 200 ms, at most 30 s; a request of over a minute is no sample.
    pub const DEFAULT: Self = Self {
        samples_min: 100,
        duration_min: Duration::from_millis(200),
        duration_max: Duration::from_secs(30),
        sample_timeout: Duration::from_secs(60),
    };

    /// Sets how many requests have to end before a window closes, unless it is as long as the
    /// maximum.
    #[must_use]
    pub const fn with_samples_min(self, samples_min: u32) -> Self {
        Self { samples_min, ..self }
    }

    /// Sets the shortest and the longest duration of a window.
    #[must_use]
    pub const fn with_duration(self, min: Duration, max: Duration) -> Self {
        Self { duration_min: min, duration_max: max, ..self }
    }

    /// Sets the latency above which a request is no latency sample: it hung, and says nothing about
    /// how long requests take.
    #[must_use]
    pub const fn with_sample_timeout(self, sample_timeout: Duration) -> Self {
        Self { sample_timeout, ..self }
    }
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What happened in a span of time: latencies, outcomes, and how many requests were in flight.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::adaptive::Window;
///
/// let window =
///     Window { successes: 500, duration: Duration::from_millis(500), ..Window::default() };
/// assert_eq!(window.throughput(), 1_000.0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// When the window was closed.
    pub now: Micros,
    /// How long it was measured.
    pub duration: Duration,
    /// The number of latency samples. Without any, all latencies are zero.
    pub samples: u64,
    /// The shortest latency.
    pub latency_min: Duration,
    /// The mean of the shorter three quarters of the latencies. It shows queueing, which delays all
    /// requests, with much less noise than the mean, which a few slow requests dominate.
    pub latency_typical: Duration,
    /// The mean latency.
    pub latency_mean: Duration,
    /// A latency that 90% of the samples do not exceed.
    pub latency_p90: Duration,
    /// Requests that succeeded.
    pub successes: u64,
    /// Requests that ended with [`SampleOutcome::Overload`].
    pub overloads: u64,
    /// The most requests in flight at once.
    pub in_flight_peak: u32,
    /// The mean number of requests in flight over time.
    pub in_flight_mean: f64,
}

impl Window {
    /// Returns the successful requests per second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        match self.duration.as_secs_f64() {
            0.0 => 0.0,
            secs => self.successes as f64 / secs,
        }
    }

    /// Returns the share of requests that ended because of overload: 0 to 1.
    #[must_use]
    pub fn overload_share(&self) -> f64 {
        match self.successes + self.overloads {
            0 => 0.0,
            ended => self.overloads as f64 / ended as f64,
        }
    }

    /// Returns whether requests in flight reached a limit.
    #[must_use]
    pub fn reached(&self, limit: u32) -> bool {
        self.in_flight_peak >= limit
    }
}

/// Buckets of one octave: a bucket is at most a sixteenth of its latencies wide.
const STEP_BITS: u32 = 4;
const STEPS: usize = 1 << STEP_BITS;
/// Latencies up to 2^36 µs, 19 hours; longer ones count as that long.
const OCTAVES: usize = 33;
const BUCKETS: usize = OCTAVES * STEPS;

/// A window that lasts so many times its minimum ...
const LONGER: u64 = 5;
/// ... needs so many times fewer samples.
const FEWER: u64 = 4;

/// Collects what happens to requests, and closes windows.
///
/// The latencies are counted in a histogram of fixed size (2 KiB), so that recording is a few
/// additions and never allocates. A program with several threads has one aggregator for each and
/// [merges](Self::merge) them, or one behind a lock.
///
/// A window begins with a pause of twice the mean latency of the window before: requests that end
/// in it began under the previous limit. Nothing but peaks is recorded then.
///
/// Of a long stream, the latency is the time to the first byte: record it then, and only release
/// the permit when the stream ends.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::Micros;
/// use ratekeeper_control::adaptive::{SampleOutcome, WindowAggregator};
///
/// let start = 1_790_000_000_000_000;
/// let mut aggregator = WindowAggregator::default();
/// let mut windows = 0;
/// for n in 0..1_000 {
///     let now = Micros::new(start + n * 1_000);
///     aggregator.record(SampleOutcome::Success, Duration::from_millis(20), 12, now);
///     if let Some(window) = aggregator.try_close(now) {
///         assert_eq!(window.latency_mean, Duration::from_millis(20));
///         assert_eq!(window.in_flight_peak, 12);
///         windows += 1;
///     }
/// }
/// assert_eq!(windows, 4);
/// ```
#[derive(Clone, Debug)]
pub struct WindowAggregator {
    config: WindowConfig,
    /// When recording begins; `None` before the first request.
    begins_us: Option<u64>,
    counts: [u32; BUCKETS],
    samples: u64,
    latency_min_us: u64,
    latency_sum_us: u64,
    successes: u64,
    overloads: u64,
    in_flight_peak: u32,
    /// Requests in flight × 2 microseconds, over the microseconds of `observed_us`.
    in_flight_half_us: u64,
    observed_us: u64,
    /// The latest record and how many requests it left in flight.
    latest: Option<(u64, u32)>,
}

impl WindowAggregator {
    /// Returns an aggregator whose first window begins with the first request.
    ///
    /// # Errors
    /// A window without samples or duration, or a maximum below the minimum.
    pub fn new(config: WindowConfig) -> Result<Self, AdaptiveError> {
        if config.samples_min == 0 {
            return Err(AdaptiveError::Samples);
        }
        if config.duration_min.is_zero() || config.duration_max < config.duration_min {
            return Err(AdaptiveError::Duration(config.duration_min, config.duration_max));
        }
        Ok(Self::empty(config))
    }

    fn empty(config: WindowConfig) -> Self {
        Self {
            config,
            begins_us: None,
            counts: [0; BUCKETS],
            samples: 0,
            latency_min_us: u64::MAX,
            latency_sum_us: 0,
            successes: 0,
            overloads: 0,
            in_flight_peak: 0,
            in_flight_half_us: 0,
            observed_us: 0,
            latest: None,
        }
    }

    /// Records the end of a request, or the first byte of a stream.
    ///
    /// `in_flight` counts the requests in flight before this one ends, this one included. Only the
    /// latency of a success is used, and only if it is within the sample timeout.
    pub fn record(
        &mut self,
        outcome: SampleOutcome,
        latency: Duration,
        in_flight: u32,
        now: Micros,
    ) {
        self.in_flight_peak = self.in_flight_peak.max(in_flight);
        let begins_us = *self.begins_us.get_or_insert(now.get());
        if now.get() < begins_us {
            return;
        }
        let (latest_us, left) = self.latest.unwrap_or((now.get(), 0));
        let us = now.get().saturating_sub(latest_us);
        // From what the latest one left to what is now, steadily.
        let both = u64::from(left) + u64::from(in_flight);
        self.in_flight_half_us = self.in_flight_half_us.saturating_add(us.saturating_mul(both));
        self.observed_us += us;
        self.latest = Some((now.get().max(latest_us), in_flight.saturating_sub(1)));
        match outcome {
            SampleOutcome::Success => {
                self.successes += 1;
                if latency <= self.config.sample_timeout {
                    self.sample(micros(latency));
                }
            }
            SampleOutcome::Overload => self.overloads += 1,
            SampleOutcome::Ignored => {}
        }
    }

    /// Adds successes whose latency was not measured: with many requests, a part of them is enough.
    pub fn add_successes(&mut self, successes: u64) {
        self.successes += successes;
    }

    /// Returns when the recording of the window begins, if it is known.
    #[must_use]
    pub fn begins(&self) -> Option<Micros> {
        self.begins_us.map(Micros::new)
    }

    fn sample(&mut self, us: u64) {
        self.counts[bucket_of(us)] += 1;
        self.samples += 1;
        self.latency_min_us = self.latency_min_us.min(us);
        self.latency_sum_us = self.latency_sum_us.saturating_add(us);
    }

    /// Adds what another aggregator recorded in the same window, and empties it. It can record on.
    pub fn merge(&mut self, other: &mut Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.begins_us = match (self.begins_us, other.begins_us) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        self.samples += other.samples;
        self.latency_min_us = self.latency_min_us.min(other.latency_min_us);
        self.latency_sum_us = self.latency_sum_us.saturating_add(other.latency_sum_us);
        self.successes += other.successes;
        self.overloads += other.overloads;
        self.in_flight_peak = self.in_flight_peak.max(other.in_flight_peak);
        self.in_flight_half_us = self.in_flight_half_us.saturating_add(other.in_flight_half_us);
        self.observed_us += other.observed_us;
        let latest = other.latest;
        self.latest = self.latest.max(latest);
        *other = Self { begins_us: self.begins_us, latest, ..Self::empty(other.config) };
    }

    /// Returns the window and begins the next one, if there is enough in it.
    ///
    /// A window has enough if it has the minimum of requests, lasts the minimum, and is at least
    /// twice as long as the mean latency; or if it has a quarter of them and lasts five times as
    /// long; or if it lasts the maximum. A window in which no request
    /// ended is never closed: an idle service has nothing to learn from.
    #[must_use]
    pub fn try_close(&mut self, now: Micros) -> Option<Window> {
        let us = now.get().checked_sub(self.begins_us?)?;
        let ended = self.successes + self.overloads;
        let mean_us = self.latency_sum_us.checked_div(self.samples).unwrap_or(0);
        let min_us = micros(self.config.duration_min).max(2 * mean_us);
        let max_us = micros(self.config.duration_max);
        let samples_min = u64::from(self.config.samples_min);
        let is_full = (ended >= samples_min && us >= min_us)
            || (ended >= samples_min.div_ceil(FEWER) && us >= LONGER * min_us);
        if !is_full && (us < max_us || ended == 0) {
            return None;
        }
        let window = Window {
            now,
            duration: Duration::from_micros(us.max(1)),
            samples: self.samples,
            latency_min: Duration::from_micros(if self.samples == 0 {
                0
            } else {
                self.latency_min_us
            }),
            latency_typical: Duration::from_micros(self.mean_of_shortest_us(75)),
            latency_mean: Duration::from_micros(mean_us),
            latency_p90: Duration::from_micros(self.quantile_us(90)),
            successes: self.successes,
            overloads: self.overloads,
            in_flight_peak: self.in_flight_peak,
            in_flight_mean: self.in_flight_half_us as f64 / 2.0 / self.observed_us.max(1) as f64,
        };
        let begins_us = now.get().saturating_add((2 * mean_us).min(max_us));
        *self = Self { begins_us: Some(begins_us), ..Self::empty(self.config) };
        Some(window)
    }

    /// Returns the mean of this share of the samples, the shortest ones.
    fn mean_of_shortest_us(&self, percent: u64) -> u64 {
        let wanted = (self.samples * percent).div_ceil(100);
        let (mut left, mut sum_us) = (wanted, 0.0);
        for (bucket, count) in self.counts.iter().enumerate() {
            let taken = left.min(u64::from(*count));
            sum_us += taken as f64 * middle_us(bucket);
            left -= taken;
            if left == 0 {
                break;
            }
        }
        if wanted == 0 { 0 } else { (sum_us / wanted as f64) as u64 }
    }

    /// Returns the middle of the bucket that this share of the samples does not exceed.
    fn quantile_us(&self, percent: u64) -> u64 {
        let wanted = (self.samples * percent).div_ceil(100);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            *count > 0 && seen >= wanted
        });
        bucket.map_or(0, |bucket| middle_us(bucket) as u64)
    }
}

impl Default for WindowAggregator {
    fn default() -> Self {
        Self::empty(WindowConfig::DEFAULT)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn bucket_of(us: u64) -> usize {
    if us < STEPS as u64 {
        return us as usize;
    }
    let shift = 63 - STEP_BITS - us.leading_zeros();
    (shift as usize * STEPS + (us >> shift) as usize).min(BUCKETS - 1)
}

/// Returns the middle of a bucket's latencies.
fn middle_us(bucket: usize) -> f64 {
    if bucket < STEPS {
        return bucket as f64;
    }
    let shift = bucket / STEPS - 1;
    let width = (1u64 << shift) as f64;
    (bucket % STEPS + STEPS) as f64 * width + (width - 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_bucket_is_within_a_thirtieth_of_its_latencies() {
        for us in (0..100_000u64).chain((17..36).map(|bits| (1 << bits) + 12_345)) {
            let middle = middle_us(bucket_of(us));
            assert!((middle - us as f64).abs() <= us as f64 / 30.0, "{us}: {middle}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }
}
