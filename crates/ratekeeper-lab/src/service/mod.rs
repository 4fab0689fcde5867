//! A modelled service in virtual time: shows what a concurrency limit does under overload.
//!
//! A [`Scenario`] describes workers, service times, arrivals and clients. [`simulate`] runs it behind
//! a [`Protection`] and returns [`Measures`]: goodput, latency of admitted requests, how long it took to
//! converge and to recover, the longest queue. It is a discrete event simulation: the same scenario,
//! protection and seed have the same result (the last digits of logarithms may differ between platforms).
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper_lab::service::{Load, Protection, Scenario, ServiceTime, simulate};
//!
//! // 10 workers of 10 ms process 1000 requests per second; 2000 arrive.
//! let service_time = ServiceTime::Exponential(Duration::from_millis(10));
//! let load = Load::constant(2_000.0, Duration::from_secs(20));
//! let scenario = Scenario::new("twice the capacity", 10, service_time, load);
//!
//! let unprotected = simulate(&scenario, Protection::None, 1);
//! let protected = simulate(&scenario, Protection::Fixed(15), 1);
//! assert!(unprotected.goodput() < 0.2, "requests wait until their clients have given up");
//! assert!(protected.goodput() > 0.9);
//! ```

mod event;
mod load;
mod measures;
mod protection;
mod rivals;
mod scenarios;
mod service_time;
mod simulation;

use std::time::Duration;

pub use load::{Clients, Load};
pub use measures::Measures;
pub use protection::{ConcurrencyLimiter, PROTECTIONS, Protection};
pub use scenarios::{scenarios, step};
pub use service_time::ServiceTime;
pub(crate) use service_time::fraction;
pub use simulation::{simulate, simulate_behind};

/// A service, its load, and what goes wrong.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_lab::service::{Clients, Load, Scenario, ServiceTime};
///
/// let second = Duration::from_secs(1);
/// let load = Load::constant(500.0, 20 * second).then(2_000.0, 30 * second).then(500.0, 20 * second);
/// let scenario = Scenario::new(
///     "a step with naive retries",
///     50,
///     ServiceTime::Exponential(Duration::from_millis(50)),
///     load,
/// )
/// .with_clients(Clients::Naive { retries: 2 })
/// .with_overload(20 * second..50 * second);
/// assert_eq!(scenario.capacity(), 1_000.0);
/// ```
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) workers: u32,
    pub(crate) service_time: ServiceTime,
    pub(crate) load: Load,
    pub(crate) clients: Clients,
    pub(crate) timeout: Duration,
    pub(crate) slow: Vec<Slow>,
    pub(crate) hung_share: f64,
    pub(crate) streams: Option<Streams>,
    pub(crate) overload: Option<std::ops::Range<Duration>>,
}

/// A span in which each request takes longer.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    pub(crate) from_us: u64,
    pub(crate) until_us: u64,
    pub(crate) factor: f64,
}

/// Requests whose response goes on after its first byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) share: f64,
    pub(crate) duration: Duration,
}

impl Scenario {
    /// Returns a scenario with clients that wait for a second and do not retry.
    #[must_use]
    pub fn new(name: &'static str, workers: u32, service_time: ServiceTime, load: Load) -> Self {
        Self {
            name,
            workers,
            service_time,
            load,
            clients: Clients::OneShot,
            timeout: Duration::from_secs(1),
            slow: Vec::new(),
            hung_share: 0.0,
            streams: None,
            overload: None,
        }
    }

    /// Sets how clients react to a failed request.
    #[must_use]
    pub fn with_clients(self, clients: Clients) -> Self {
        Self { clients, ..self }
    }

    /// Sets how long clients wait for a response. The service does not notice that one gave up, and
    /// processes its request anyway.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Makes each request that begins in a span take `factor` times as long.
    #[must_use]
    pub fn with_slow(mut self, span: std::ops::Range<Duration>, factor: f64) -> Self {
        let (from_us, until_us) = (micros(span.start), micros(span.end));
        self.slow.push(Slow { from_us, until_us, factor });
        self
    }

    /// Makes a share of the requests hang: they occupy no worker, but never get a response.
    #[must_use]
    pub fn with_hung(self, hung_share: f64) -> Self {
        Self { hung_share, ..self }
    }

    /// Makes a share of the responses streams. After its first byte, a stream occupies no worker, but
    /// stays in flight for this duration.
    #[must_use]
    pub fn with_streams(self, share: f64, duration: Duration) -> Self {
        Self { streams: Some(Streams { share, duration }), ..self }
    }

    /// Sets when the service is overloaded: from its begin the time to converge is measured, and from
    /// its end the time to recover.
    #[must_use]
    pub fn with_overload(self, overload: std::ops::Range<Duration>) -> Self {
        Self { overload: Some(overload), ..self }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns how many requests per second the workers can process when nothing is slow.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        f64::from(self.workers) / self.service_time.mean().as_secs_f64()
    }

    /// Returns how many times longer a request takes that begins now.
    pub(crate) fn slowness(&self, now_us: u64) -> f64 {
        let is_now = |slow: &&Slow| (slow.from_us..slow.until_us).contains(&now_us);
        self.slow.iter().filter(is_now).map(|slow| slow.factor).product()
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
