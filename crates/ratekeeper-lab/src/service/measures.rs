//! What a simulation measures.

use std::time::Duration;

use super::{Scenario, Slow, micros};
use crate::histogram::Histogram;

const SECOND_US: u64 = 1_000_000;

/// The result of a simulation.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_lab::service::{Load, Protection, Scenario, ServiceTime, simulate};
///
/// let service_time = ServiceTime::Constant(Duration::from_millis(10));
/// let load = Load::constant(300.0, Duration::from_secs(10));
/// let measures = simulate(&Scenario::new("light load", 10, service_time, load), Protection::Knee, 1);
/// assert!(measures.goodput() > 0.95);
/// assert_eq!(measures.rejected(), 0);
/// assert_eq!(measures.p99_over_unloaded(), 1.0);
/// ```
#[derive(Debug)]
pub struct Measures {
    seconds: Vec<Second>,
    /// Latencies since the overload began.
    overload_latencies: Histogram,
    overload_from_us: u64,
    overload_until_us: Option<u64>,
    unloaded_p99_us: u64,
    slow: Vec<Slow>,
    queue_max: usize,
}

#[derive(Debug, Default)]
struct Second {
    /// New requests, without retries.
    arrived: u64,
    /// Requests whose client got a response in time.
    succeeded: u64,
    rejected: u64,
    timed_out: u64,
    /// Admitted requests that took more than three times the unloaded p99.
    slow: u64,
    ended: u64,
    /// How many requests the workers could process.
    capacity: f64,
    /// The limit at the end of the second.
    limit: u32,
}

impl Second {
    fn ideal(&self) -> f64 {
        self.capacity.min(self.arrived as f64)
    }
}

impl Measures {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let duration = scenario.load.duration();
        let seconds = micros(duration).div_ceil(SECOND_US);
        let capacity = |second: u64| {
            // Sampled, as a slow span may be a part of a second.
            let samples = (0..10).map(|tenth| second * SECOND_US + tenth * SECOND_US / 10);
            samples.map(|at_us| scenario.capacity() / scenario.slowness(at_us)).sum::<f64>() / 10.0
        };
        let second = |n| Second { capacity: capacity(n), ..Second::default() };
        let overload = scenario.overload.as_ref();
        Self {
            seconds: (0..seconds).map(second).collect(),
            overload_latencies: Histogram::default(),
            overload_from_us: overload.map_or(0, |span| micros(span.start)),
            overload_until_us: overload.map(|span| micros(span.end)),
            unloaded_p99_us: micros(scenario.service_time.p99()),
            slow: scenario.slow.clone(),
            queue_max: 0,
        }
    }

    pub(super) fn on_arrival(&mut self, now_us: u64) {
        self.at(now_us, |second| second.arrived += 1);
    }

    pub(super) fn on_rejected(&mut self, now_us: u64) {
        self.at(now_us, |second| second.rejected += 1);
    }

    pub(super) fn on_success(&mut self, latency_us: u64, now_us: u64) {
        self.at(now_us, |second| second.succeeded += 1);
        self.on_admitted_end(latency_us, now_us);
    }

    pub(super) fn on_timeout(&mut self, timeout_us: u64, now_us: u64) {
        self.at(now_us, |second| second.timed_out += 1);
        self.on_admitted_end(timeout_us, now_us);
    }

    fn on_admitted_end(&mut self, latency_us: u64, now_us: u64) {
        let latency_us = self.unslowed_us(latency_us, now_us);
        let is_slow = latency_us > 3 * self.unloaded_p99_us;
        self.at(now_us, |second| {
            second.ended += 1;
            second.slow += u64::from(is_slow);
        });
        if now_us >= self.overload_from_us {
            self.overload_latencies.add(latency_us);
        }
    }

    /// Returns the latency as it would be if nothing were slow.
    fn unslowed_us(&self, latency_us: u64, now_us: u64) -> u64 {
        let begin_us = now_us - latency_us;
        let is_during = |slow: &&Slow| begin_us < slow.until_us && slow.from_us <= now_us;
        let factor: f64 = self.slow.iter().filter(is_during).map(|slow| slow.factor).product();
        (latency_us as f64 / factor) as u64
    }

    pub(super) fn on_queue(&mut self, length: usize) {
        self.queue_max = self.queue_max.max(length);
    }

    pub(super) fn on_limit(&mut self, limit: u32, now_us: u64) {
        self.at(now_us, |second| second.limit = limit);
    }

    fn at(&mut self, now_us: u64, change: impl FnOnce(&mut Second)) {
        if let Some(second) = self.seconds.get_mut((now_us / SECOND_US) as usize) {
            change(second);
        }
    }

    /// Returns the share of the possible responses that clients got in time. Possible is the capacity, or
    /// what arrives if that is less, in each second.
    #[must_use]
    pub fn goodput(&self) -> f64 {
        goodput_of(&self.seconds)
    }

    /// Returns the goodput while the service is overloaded.
    #[must_use]
    pub fn overload_goodput(&self) -> f64 {
        goodput_of(&self.seconds[self.overload_seconds()])
    }

    /// Returns the goodput of the worst ten seconds.
    #[must_use]
    pub fn worst_goodput(&self) -> f64 {
        let spans = self.seconds.windows(10.min(self.seconds.len()));
        spans.map(goodput_of).fold(1.0, f64::min)
    }

    /// Returns the latency that 99% of the admitted requests did not exceed, since the overload began. A
    /// request without a response in time counts with the timeout. Where requests take `factor` times as
    /// long, latencies are divided by that.
    #[must_use]
    pub fn p99(&self) -> Duration {
        Duration::from_micros(self.overload_latencies.quantile(99))
    }

    /// Returns how many times longer that is than the p99 without load.
    #[must_use]
    pub fn p99_over_unloaded(&self) -> f64 {
        self.overload_latencies.quantile(99) as f64 / self.unloaded_p99_us as f64
    }

    /// Returns how long after the begin of the overload the last second was that was not good: goodput
    /// below 0.8 of what is possible, or a p99 above three times the unloaded one. `None` if that is the
    /// last second of the overload. Where a second has fewer than 300 possible responses, several are
    /// judged together.
    #[must_use]
    pub fn converged_after(&self) -> Option<Duration> {
        last_bad(&self.seconds[self.overload_seconds()])
    }

    /// Returns the same for the time after the overload.
    #[must_use]
    pub fn recovered_after(&self) -> Option<Duration> {
        last_bad(&self.seconds[self.overload_seconds().end..])
    }

    fn overload_seconds(&self) -> std::ops::Range<usize> {
        let until =
            self.overload_until_us.map_or(self.seconds.len(), |us| (us / SECOND_US) as usize);
        (self.overload_from_us / SECOND_US) as usize..until
    }

    /// Returns the longest queue of requests that wait for a worker.
    #[must_use]
    pub fn queue_max(&self) -> usize {
        self.queue_max
    }

    /// Returns how many requests, retries included, were rejected.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.seconds.iter().map(|second| second.rejected).sum()
    }

    /// Returns how many requests, retries included, had no response in time.
    #[must_use]
    pub fn timed_out(&self) -> u64 {
        self.seconds.iter().map(|second| second.timed_out).sum()
    }

    /// Returns the limit at the end of each second.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = u32> {
        self.seconds.iter().map(|second| second.limit)
    }

    /// Returns the responses in time of each second.
    pub fn successes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.seconds.iter().map(|second| second.succeeded)
    }
}

fn goodput_of(seconds: &[Second]) -> f64 {
    let ideal: f64 = seconds.iter().map(Second::ideal).sum();
    let succeeded: u64 = seconds.iter().map(|second| second.succeeded).sum();
    if ideal == 0.0 { 1.0 } else { succeeded as f64 / ideal }
}

/// Fewer possible responses than this are too few to judge a span by.
const JUDGED_MIN: f64 = 300.0;

/// Returns when the last bad span ends: one second, or as many as have enough requests to be judged.
fn last_bad(seconds: &[Second]) -> Option<Duration> {
    let ideal: f64 = seconds.iter().map(Second::ideal).sum();
    let length = (JUDGED_MIN * seconds.len() as f64 / ideal).ceil() as usize;
    let length = length.clamp(1, seconds.len().max(1));
    match seconds.windows(length).rposition(|span| !is_good(span)) {
        None => Some(Duration::ZERO),
        Some(last) if last + length < seconds.len() => {
            Some(Duration::from_secs((last + length) as u64))
        }
        Some(_) => None,
    }
}

/// Returns whether goodput is at least 0.8 of what is possible, and the p99 of admitted requests at most
/// three times the unloaded one.
fn is_good(span: &[Second]) -> bool {
    let sum = |of: fn(&Second) -> u64| -> u64 { span.iter().map(of).sum() };
    goodput_of(span) >= 0.8 && sum(|second| second.slow) * 100 <= sum(|second| second.ended)
}
