//! Adaptive concurrency limits: how many requests a service should have in flight, learned from
//! latency and throughput.
//!
//! A request rate says little about load: the same rate is nothing for a fast service and too much
//! for a slow one. Requests in flight are what fills queues, pools and memory. These controllers
//! find their limit while the service runs.
//!
//! The hot path is the caller's: it takes and releases permits, and records the end of each request
//! in a [`WindowAggregator`]. When a window closes, a [`ConcurrencyController`] returns the next
//! limit. A [`LimitAlgorithm`] proposes it, and the guards of the controller bound it.
//!
//! | algorithm | follows | good for |
//! |---|---|---|
//! | [`Knee`], the default | latency without queueing × throughput | services whose capacity is unknown or changes |
//! | [`Gradient2`] | latency against its long-term average | latencies that are stable for hours |
//! | [`Vegas`] | an estimated queue of a few requests | low latency before throughput |
//! | [`Aimd`] | timeouts and 503s | services that reject by themselves |
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper_control::Micros;
//! use ratekeeper_control::adaptive::{
//!     Bounds, ConcurrencyController, Knee, SampleOutcome, WindowAggregator,
//! };
//!
//! let mut aggregator = WindowAggregator::default();
//! let mut controller = ConcurrencyController::new(Knee::default(), Bounds::DEFAULT);
//!
//! // When a request ends, with the number of requests in flight:
//! let now = Micros::new(1_790_000_000_000_000);
//! aggregator.record(SampleOutcome::Success, Duration::from_millis(12), 7, now);
//! if let Some(window) = aggregator.try_close(now) {
//!     let limit = controller.update(&window);
//!     // Admit up to `limit` requests at once from now on.
//! }
//! assert_eq!(controller.limit(), 20);
//! ```

mod aimd;
mod baseline;
mod config;
mod gradient2;
mod guards;
mod knee;
mod vegas;
mod window;

use std::time::Duration;

pub use aimd::Aimd;
pub use config::{AdaptiveAlgorithm, AdaptiveConfig};
pub use gradient2::Gradient2;
pub use knee::Knee;
pub use vegas::Vegas;
pub use window::{SampleOutcome, Window, WindowAggregator, WindowConfig};

use guards::{Guards, Target};

/// A rule that proposes the next concurrency limit after each window.
///
/// It is given the limit that was in force in the window. What it returns is bounded by the guards
/// of a [`ConcurrencyController`], so it needs no bounds of its own.
///
/// ```
/// use ratekeeper_control::adaptive::{LimitAlgorithm, Window};
///
/// struct Constant(f64);
///
/// impl LimitAlgorithm for Constant {
///     fn name(&self) -> &'static str {
///         "constant"
///     }
///
///     fn next_limit(&mut self, _limit: f64, _window: &Window) -> f64 {
///         self.0
///     }
/// }
/// ```
pub trait LimitAlgorithm {
    /// Returns the name, for logs and metrics.
    fn name(&self) -> &'static str;

    /// Returns the limit that should follow `limit`.
    fn next_limit(&mut self, limit: f64, window: &Window) -> f64;
}

impl<A: LimitAlgorithm + ?Sized> LimitAlgorithm for Box<A> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn next_limit(&mut self, limit: f64, window: &Window) -> f64 {
        (**self).next_limit(limit, window)
    }
}

/// The lowest, the first and the highest concurrency limit.
///
/// ```
/// use ratekeeper_control::adaptive::{AdaptiveError, Bounds};
///
/// let bounds = Bounds::new(5, 50, 500)?;
/// assert!(matches!(Bounds::new(5, 2, 500), Err(AdaptiveError::Bounds { .. })));
/// # Ok::<(), AdaptiveError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    min: u32,
    initial: u32,
    max: u32,
}

impl Bounds {
    /// From 1 to 1000, beginning with 20.
    pub const DEFAULT: Self = Self { min: 1, initial: 20, max: 1_000 };

    /// Returns bounds.
    ///
    /// # Errors
    /// The minimum is 0, or they are not in order.
    pub const fn new(min: u32, initial: u32, max: u32) -> Result<Self, AdaptiveError> {
        if min == 0 || min > initial || initial > max {
            return Err(AdaptiveError::Bounds { min, initial, max });
        }
        Ok(Self { min, initial, max })
    }

    /// Returns the lowest limit.
    #[must_use]
    pub const fn min(self) -> u32 {
        self.min
    }

    /// Returns the first limit.
    #[must_use]
    pub const fn initial(self) -> u32 {
        self.initial
    }

    /// Returns the highest limit.
    #[must_use]
    pub const fn max(self) -> u32 {
        self.max
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why a configuration of adaptive concurrency is rejected.
///
/// ```
/// use ratekeeper_control::adaptive::Bounds;
///
/// let error = Bounds::new(0, 20, 100).unwrap_err();
/// assert!(error.to_string().contains("at least 1"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdaptiveError {
    /// The bounds of the limit are not in order.
    #[error(
        "a concurrency limit from {min} to {max} that begins with {initial} is not possible; use a minimum of at least 1, an initial limit of at least the minimum and a maximum of at least that"
    )]
    Bounds {
        /// The lowest limit.
        min: u32,
        /// The first limit.
        initial: u32,
        /// The highest limit.
        max: u32,
    },
    /// A window without samples.
    #[error("a window needs at least 1 sample")]
    Samples,
    /// The durations of a window are zero or not in order.
    #[error(
        "a window of {0:?} to {1:?} is not possible; use a minimum above zero and a maximum of at least that"
    )]
    Duration(Duration, Duration),
    /// A target latency of zero.
    #[error("a target latency of 0 is not possible; use one well above the latency without load")]
    Target,
}

/// The concurrency limit of a service, updated by windows of samples.
///
/// The algorithm proposes; these guards hold for every algorithm:
///
/// - The limit is within its [`Bounds`].
/// - It never exceeds five times the recent peak of requests in flight, or the initial limit if
///   that is higher. So it cannot run away while nothing needs it.
/// - It grows only if it was reached in the window. An idle service does not drift.
/// - When growth by half brings no throughput, the limit returns to where it grew from, and does
///   not grow for a while.
/// - A window halves the limit at most, so that one bad window does no lasting harm.
/// - Latency stays near a target, if there is one ([`ConcurrencyController::with_target`]).
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::Micros;
/// use ratekeeper_control::adaptive::{Aimd, Bounds, ConcurrencyController, Window};
///
/// let mut controller = ConcurrencyController::new(Aimd::default(), Bounds::DEFAULT);
/// let window = Window {
///     now: Micros::new(1_790_000_000_000_000),
///     duration: Duration::from_secs(1),
///     samples: 100,
///     successes: 100,
///     in_flight_peak: 20,
///     in_flight_mean: 18.0,
///     ..Window::default()
/// };
/// assert_eq!(controller.update(&window), 24);
/// ```
#[derive(Clone, Debug)]
pub struct ConcurrencyController<A> {
    algorithm: A,
    bounds: Bounds,
    limit: f64,
    guards: Guards,
    target: Option<Target>,
}

impl<A: LimitAlgorithm> ConcurrencyController<A> {
    /// Returns a controller that begins with the initial limit.
    #[must_use]
    pub fn new(algorithm: A, bounds: Bounds) -> Self {
        let limit = f64::from(bounds.initial);
        Self { algorithm, bounds, limit, guards: Guards::default(), target: None }
    }

    /// Sets the limit to one that was learned before, as far as the bounds allow.
    pub fn begin_with(&mut self, limit: u32) {
        self.limit = f64::from(limit.clamp(self.bounds.min, self.bounds.max));
    }

    /// Sets the latency that 90% of the requests should not exceed.
    ///
    /// While they exceed it, the limit shrinks, whatever the algorithm proposes; while they are close
    /// to it, the limit does not grow. A target is a promise to callers, not a measure of load: if the
    /// service exceeds it without any load, the limit falls to its minimum.
    ///
    /// # Errors
    /// The target is zero.
    pub fn with_target(self, target: Duration) -> Result<Self, AdaptiveError> {
        if target.is_zero() {
            return Err(AdaptiveError::Target);
        }
        Ok(Self { target: Some(Target(target)), ..self })
    }

    /// Returns how many requests may be in flight.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// Returns the name of the algorithm.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.algorithm.name()
    }

    /// Learns from a window, and returns how many requests may be in flight from now on.
    pub fn update(&mut self, window: &Window) -> u32 {
        let proposed = self.algorithm.next_limit(self.limit, window);
        let proposed = match self.target {
            Some(target) => target.bound(self.limit, proposed, window),
            None => proposed,
        };
        let guarded = self.guards.apply(self.limit, proposed, window, self.bounds);
        self.limit = guarded.clamp(f64::from(self.bounds.min), f64::from(self.bounds.max));
        self.limit()
    }
}
