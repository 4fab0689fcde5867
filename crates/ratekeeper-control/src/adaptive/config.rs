//! The configuration of an adaptive concurrency limit.

use std::time::Duration;

use super::{
    AdaptiveError, Aimd, Bounds, ConcurrencyController, Gradient2, Knee, LimitAlgorithm, Vegas,
    WindowConfig,
};

/// An algorithm of adaptive concurrency limits, by name.
///
/// ```
/// use ratekeeper_control::adaptive::AdaptiveAlgorithm;
///
/// let names: Vec<_> = AdaptiveAlgorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
/// assert_eq!(names, ["knee", "gradient2", "vegas", "aimd"]);
/// assert_eq!(AdaptiveAlgorithm::of_name("vegas"), Some(AdaptiveAlgorithm::Vegas));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdaptiveAlgorithm {
    /// [`Knee`].
    #[default]
    Knee,
    /// [`Gradient2`].
    Gradient2,
    /// [`Vegas`].
    Vegas,
    /// [`Aimd`].
    Aimd,
}

impl AdaptiveAlgorithm {
    /// All of them, the default first.
    pub const ALL: [Self; 4] = [Self::Knee, Self::Gradient2, Self::Vegas, Self::Aimd];

    /// Returns the name, as in policies, logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Knee => "knee",
            Self::Gradient2 => "gradient2",
            Self::Vegas => "vegas",
            Self::Aimd => "aimd",
        }
    }

    /// Returns the algorithm of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    fn state(self) -> Box<dyn LimitAlgorithm + Send> {
        match self {
            Self::Knee => Box::new(Knee::default()),
            Self::Gradient2 => Box::new(Gradient2::default()),
            Self::Vegas => Box::new(Vegas::default()),
            Self::Aimd => Box::new(Aimd::default()),
        }
    }
}

/// How an adaptive concurrency limit is found: by which algorithm, between which bounds.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::adaptive::{AdaptiveAlgorithm, AdaptiveConfig, Bounds};
///
/// let config = AdaptiveConfig::DEFAULT
///     .with_algorithm(AdaptiveAlgorithm::Gradient2)
///     .with_bounds(Bounds::new(5, 50, 500)?)
///     .with_target(Duration::from_millis(200));
/// assert_eq!(config.controller()?.limit(), 50);
/// # Ok::<(), ratekeeper_control::adaptive::AdaptiveError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdaptiveConfig {
    algorithm: AdaptiveAlgorithm,
    bounds: Bounds,
    target: Option<Duration>,
    window: WindowConfig,
}

impl AdaptiveConfig {
    /// The knee, the default bounds and windows, and no target.
    pub const DEFAULT: Self = Self {
        algorithm: AdaptiveAlgorithm::Knee,
        bounds: Bounds::DEFAULT,
        target: None,
        window: WindowConfig::DEFAULT,
    };

    /// Sets the algorithm.
    #[must_use]
    pub const fn with_algorithm(self, algorithm: AdaptiveAlgorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// Sets the lowest, the first and the highest limit.
    #[must_use]
    pub const fn with_bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sets the latency that 90% of the requests should not exceed: see
    /// [`ConcurrencyController::with_target`].
    #[must_use]
    pub const fn with_target(self, target: Duration) -> Self {
        Self { target: Some(target), ..self }
    }

    /// Sets when windows are closed.
    #[must_use]
    pub const fn with_window(self, window: WindowConfig) -> Self {
        Self { window, ..self }
    }

    /// Returns the algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> AdaptiveAlgorithm {
        self.algorithm
    }

    /// Returns the bounds.
    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Returns the target latency.
    #[must_use]
    pub const fn target(&self) -> Option<Duration> {
        self.target
    }

    /// Returns when windows are closed.
    #[must_use]
    pub const fn window(&self) -> WindowConfig {
        self.window
    }

    /// Returns a controller that begins with the initial limit.
    ///
    /// # Errors
    /// The target is zero.
    pub fn controller(
        &self,
    ) -> Result<ConcurrencyController<Box<dyn LimitAlgorithm + Send>>, AdaptiveError> {
        let controller = ConcurrencyController::new(self.algorithm.state(), self.bounds);
        match self.target {
            Some(target) => controller.with_target(target),
            None => Ok(controller),
        }
    }
}
