//! What stands in front of the service.

use std::time::Duration;

use ratekeeper_control::Micros;
use ratekeeper_control::adaptive::{
    Aimd, Bounds, ConcurrencyController, Gradient2, Knee, LimitAlgorithm, SampleOutcome, Vegas,
    WindowAggregator,
};

use super::rivals::{EnvoyGradient, NetflixGradient2};

/// A concurrency limit in front of the service, or none.
///
/// ```
/// use ratekeeper_lab::service::{PROTECTIONS, Protection};
///
/// assert!(PROTECTIONS.contains(&Protection::Knee));
/// assert_eq!(Protection::Fixed(100).name(), "tower limit 100");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protection {
    /// Every request reaches the queue of the service.
    None,
    /// A fixed limit: what tower's `ConcurrencyLimit` and `LoadShed` do.
    Fixed(u32),
    /// [`Knee`], the default.
    Knee,
    /// [`Gradient2`] with the guards.
    Gradient2,
    /// [`Vegas`] with the guards.
    Vegas,
    /// [`Aimd`] with the guards.
    Aimd,
    /// A model of Gradient2 in Netflix's concurrency-limits: limits 20 to 200, windows of a second, no
    /// guards.
    NetflixGradient2,
    /// A model of Envoy's adaptive concurrency filter: measures the minimal round-trip time every minute,
    /// with 3 requests in flight.
    EnvoyGradient,
}

/// The protections that are compared.
pub const PROTECTIONS: &[Protection] = &[
    Protection::Knee,
    Protection::Gradient2,
    Protection::Vegas,
    Protection::Aimd,
    Protection::None,
    Protection::Fixed(100),
    Protection::NetflixGradient2,
    Protection::EnvoyGradient,
];

impl Protection {
    /// Returns the name, for tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::None => "no limit".to_string(),
            Self::Fixed(limit) => format!("tower limit {limit}"),
            Self::Knee => "knee".to_string(),
            Self::Gradient2 => "gradient2".to_string(),
            Self::Vegas => "vegas".to_string(),
            Self::Aimd => "aimd".to_string(),
            Self::NetflixGradient2 => "Netflix Gradient2".to_string(),
            Self::EnvoyGradient => "Envoy gradient".to_string(),
        }
    }

    pub(super) fn limiter(self) -> Box<dyn ConcurrencyLimiter> {
        match self {
            Self::None => Box::new(NoLimit),
            Self::Fixed(limit) => Box::new(TowerLimit(limit)),
            Self::Knee => Guarded::boxed(Knee::default()),
            Self::Gradient2 => Guarded::boxed(Gradient2::default()),
            Self::Vegas => Guarded::boxed(Vegas::default()),
            Self::Aimd => Guarded::boxed(Aimd::default()),
            Self::NetflixGradient2 => Box::<NetflixGradient2>::default(),
            Self::EnvoyGradient => Box::<EnvoyGradient>::default(),
        }
    }
}

/// A concurrency limit that stands in front of the service.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::Micros;
/// use ratekeeper_control::adaptive::SampleOutcome;
/// use ratekeeper_lab::service::{ConcurrencyLimiter, scenarios, simulate_behind};
///
/// /// A limit of one worker's requests and a few more.
/// struct Seven;
///
/// impl ConcurrencyLimiter for Seven {
///     fn limit(&self) -> u32 {
///         7
///     }
///
///     fn record(&mut self, _: SampleOutcome, _: Duration, _: u32, _: Micros) {}
/// }
///
/// let measures = simulate_behind(&scenarios()[0], &mut Seven, 1);
/// assert_eq!(measures.limits().max(), Some(7));
/// ```
pub trait ConcurrencyLimiter {
    /// Returns how many requests may be in flight now.
    fn limit(&self) -> u32;

    /// Records the end of a request, or the first byte of a stream.
    fn record(&mut self, outcome: SampleOutcome, latency: Duration, in_flight: u32, now: Micros);

    /// Returns whether a stream is in flight until it ends, and not only until its first byte.
    fn holds_streams(&self) -> bool {
        true
    }
}

struct NoLimit;

impl ConcurrencyLimiter for NoLimit {
    fn limit(&self) -> u32 {
        u32::MAX
    }

    fn record(&mut self, _: SampleOutcome, _: Duration, _: u32, _: Micros) {}
}

/// tower's `ConcurrencyLimit` releases its permit when the response begins.
struct TowerLimit(u32);

impl ConcurrencyLimiter for TowerLimit {
    fn limit(&self) -> u32 {
        self.0
    }

    fn record(&mut self, _: SampleOutcome, _: Duration, _: u32, _: Micros) {}

    fn holds_streams(&self) -> bool {
        false
    }
}

/// An algorithm with the guards.
struct Guarded<A> {
    windows: WindowAggregator,
    controller: ConcurrencyController<A>,
}

impl<A: LimitAlgorithm + 'static> Guarded<A> {
    fn boxed(algorithm: A) -> Box<dyn ConcurrencyLimiter> {
        let controller = ConcurrencyController::new(algorithm, Bounds::DEFAULT);
        Box::new(Self { windows: WindowAggregator::default(), controller })
    }
}

impl<A: LimitAlgorithm> ConcurrencyLimiter for Guarded<A> {
    fn limit(&self) -> u32 {
        self.controller.limit()
    }

    fn record(&mut self, outcome: SampleOutcome, latency: Duration, in_flight: u32, now: Micros) {
        self.windows.record(outcome, latency, in_flight, now);
        if let Some(window) = self.windows.try_close(now) {
            self.controller.update(&window);
        }
    }
}
