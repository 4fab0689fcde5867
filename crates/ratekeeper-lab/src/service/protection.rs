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
/// assert_eq!(Protection::Fixed(100).name(), "fixed 100");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protection {
    /// Every request reaches the queue of the service.
    None,
    /// A fixed limit: tower's `ConcurrencyLimit` and `LoadShed`.
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
            Self::Fixed(limit) => format!("fixed {limit}"),
            Self::Knee => "knee".to_string(),
            Self::Gradient2 => "gradient2".to_string(),
            Self::Vegas => "vegas".to_string(),
            Self::Aimd => "aimd".to_string(),
            Self::NetflixGradient2 => "Netflix Gradient2".to_string(),
            Self::EnvoyGradient => "Envoy gradient".to_string(),
        }
    }

    pub(super) fn limiter(self) -> Limiter {
        let guarded = |algorithm: Box<dyn LimitAlgorithm>| {
            let controller = ConcurrencyController::new(algorithm, Bounds::DEFAULT);
            Limiter::Adaptive(Box::new((WindowAggregator::default(), controller)))
        };
        match self {
            Self::None => Limiter::Fixed(u32::MAX),
            Self::Fixed(limit) => Limiter::Fixed(limit),
            Self::Knee => guarded(Box::<Knee>::default()),
            Self::Gradient2 => guarded(Box::<Gradient2>::default()),
            Self::Vegas => guarded(Box::<Vegas>::default()),
            Self::Aimd => guarded(Box::<Aimd>::default()),
            Self::NetflixGradient2 => Limiter::Netflix(Box::default()),
            Self::EnvoyGradient => Limiter::Envoy(Box::default()),
        }
    }
}

type Controller = ConcurrencyController<Box<dyn LimitAlgorithm>>;

/// The state of a protection.
pub(super) enum Limiter {
    Fixed(u32),
    Adaptive(Box<(WindowAggregator, Controller)>),
    Netflix(Box<NetflixGradient2>),
    Envoy(Box<EnvoyGradient>),
}

impl Limiter {
    pub(super) fn limit(&self) -> u32 {
        match self {
            Self::Fixed(limit) => *limit,
            Self::Adaptive(adaptive) => adaptive.1.limit(),
            Self::Netflix(netflix) => netflix.limit(),
            Self::Envoy(envoy) => envoy.limit(),
        }
    }

    /// Records the end of a request, or the first byte of a stream.
    pub(super) fn record(
        &mut self,
        outcome: SampleOutcome,
        latency_us: u64,
        in_flight: u32,
        now_us: u64,
    ) {
        let (latency, now) = (Duration::from_micros(latency_us), Micros::new(now_us));
        match self {
            Self::Fixed(_) => {}
            Self::Adaptive(adaptive) => {
                let (aggregator, controller) = adaptive.as_mut();
                aggregator.record(outcome, latency, in_flight, now);
                if let Some(window) = aggregator.try_close(now) {
                    controller.update(&window);
                }
            }
            Self::Netflix(netflix) => netflix.record(outcome, latency, in_flight, now),
            Self::Envoy(envoy) => envoy.record(outcome, latency_us, now_us),
        }
    }
}
