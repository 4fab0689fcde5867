//! The settings of a shedder.

use std::time::Duration;

use super::class::Class;
use super::rotation::Rotation;
use crate::window_counter::{WINDOW_MAX, WINDOW_MIN, checked_window};

/// Maximum number of classes.
pub(super) const CLASSES_MAX: usize = 16;

/// How many intervals without overload it takes until the level falls.
pub(super) const HOLD_INTERVALS: u64 = 10;

/// How many intervals the requests of classes are counted over.
const TRAFFIC_INTERVALS: u32 = 10;

/// The classes of a [`Shedder`](crate::Shedder), when it takes a signal for overload, and how long
/// the same users are served.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{Class, Shedder, ShedderConfig};
///
/// let config = ShedderConfig::DEFAULT
///     .with_classes(3)
///     .with_reserved_percent(Class::new(2), 5)
///     .with_queue_target(Duration::from_millis(5))
///     .with_rotation(Duration::from_secs(600));
/// let shedder = Shedder::new(config)?;
/// # Ok::<(), ratekeeper_control::ShedderError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShedderConfig {
    classes: u8,
    reserved_percent: [u8; CLASSES_MAX],
    queue_target: Duration,
    utilization_target_percent: u8,
    interval: Duration,
    rotation: Duration,
    seed: u64,
}

impl ShedderConfig {
    /// Four classes without reserved shares; overload is a queueing time over 20 ms or a
    /// utilization over 80%, for an interval of 100 ms; users rotate every hour.
    pub const DEFAULT: Self = Self {
        classes: 4,
        reserved_percent: [0; CLASSES_MAX],
        queue_target: Duration::from_millis(20),
        utilization_target_percent: 80,
        interval: Duration::from_millis(100),
        rotation: Duration::from_secs(3600),
        seed: 0,
    };

    /// Sets the number of classes: 1 to 16.
    #[must_use]
    pub const fn with_classes(self, classes: u8) -> Self {
        Self { classes, ..self }
    }

    /// Reserves a share of what is admitted for a class: 0 to 100.
    ///
    /// A request of the class is not shed while the class has less than this share of all requests
    /// that were admitted in the last ten intervals. So a higher class cannot starve it, and it
    /// cannot take more than this share from a higher class, however many requests it has. Of a
    /// class that the level sheds entirely, the reserved share is first come, first served.
    #[must_use]
    pub const fn with_reserved_percent(mut self, class: Class, percent: u8) -> Self {
        let index = class.rank() as usize;
        if index < CLASSES_MAX {
            self.reserved_percent[index] = percent;
        }
        self
    }

    /// Sets the queueing time that is acceptable: 1 ms to 24 hours. 5 to 20 ms are usual.
    #[must_use]
    pub const fn with_queue_target(self, queue_target: Duration) -> Self {
        Self { queue_target, ..self }
    }

    /// Sets the utilization that is acceptable: 1 to 99.
    #[must_use]
    pub const fn with_utilization_target_percent(self, percent: u8) -> Self {
        Self { utilization_target_percent: percent, ..self }
    }

    /// Sets for how long a signal has to stay above its target to be overload: 1 ms to an hour. It
    /// should be longer than a burst that needs no shedding, and than most requests take.
    #[must_use]
    pub const fn with_interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets how long a user has the same place within a class: a second or longer.
    #[must_use]
    pub const fn with_rotation(self, rotation: Duration) -> Self {
        Self { rotation, ..self }
    }

    /// Sets a secret that the places of users depend on, so that no user can choose a name that is
    /// served. All processes that are to serve the same users need the same.
    #[must_use]
    pub const fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Returns the number of classes.
    #[must_use]
    pub const fn classes(&self) -> u8 {
        self.classes
    }

    pub(super) fn reserved_percent(&self, class: Class) -> u8 {
        self.reserved_percent[class.index()]
    }

    pub(super) fn queue_target(&self) -> Duration {
        self.queue_target
    }

    pub(super) fn utilization_target(&self) -> f64 {
        f64::from(self.utilization_target_percent) / 100.0
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    pub(super) fn rotation(&self) -> Rotation {
        Rotation::new(self.rotation, self.seed)
    }

    /// Checks all values, and returns the window over which requests are counted.
    pub(super) fn check(&self) -> Result<Duration, ShedderError> {
        if !(1..=CLASSES_MAX).contains(&usize::from(self.classes)) {
            return Err(ShedderError::Classes(self.classes));
        }
        let (of_classes, others) = self.reserved_percent.split_at(usize::from(self.classes));
        if let Some(index) = others.iter().position(|percent| *percent > 0) {
            let class = Class::new(self.classes + index as u8);
            return Err(ShedderError::UnknownClass { class, classes: self.classes });
        }
        let reserved: u32 = of_classes.iter().map(|percent| u32::from(*percent)).sum();
        if reserved > 100 {
            return Err(ShedderError::Reserved(reserved));
        }
        if !(WINDOW_MIN..=WINDOW_MAX).contains(&self.queue_target) {
            return Err(ShedderError::QueueTarget(self.queue_target));
        }
        if !(1..=99).contains(&self.utilization_target_percent) {
            return Err(ShedderError::UtilizationTarget(self.utilization_target_percent));
        }
        if self.rotation < Duration::from_secs(1) {
            return Err(ShedderError::Rotation(self.rotation));
        }
        let is_valid = (WINDOW_MIN..=Duration::from_secs(3600)).contains(&self.interval);
        let window = is_valid.then(|| checked_window(self.interval * TRAFFIC_INTERVALS)).flatten();
        window.ok_or(ShedderError::Interval(self.interval))
    }
}

impl Default for ShedderConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why a [`ShedderConfig`] is rejected.
///
/// ```
/// use ratekeeper_control::{Class, Shedder, ShedderConfig, ShedderError};
///
/// let config = ShedderConfig::DEFAULT
///     .with_reserved_percent(Class::CRITICAL, 60)
///     .with_reserved_percent(Class::SHEDDABLE, 50);
/// assert_eq!(Shedder::new(config).unwrap_err(), ShedderError::Reserved(110));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShedderError {
    /// There are no classes, or too many.
    #[error("{0} classes cannot be shed in order; use 1 to 16")]
    Classes(u8),
    /// A share is reserved for a class that does not exist.
    #[error("a share is reserved for {class}, but there are only {classes} classes")]
    UnknownClass {
        /// The class.
        class: Class,
        /// The number of classes.
        classes: u8,
    },
    /// More is reserved than there is.
    #[error("{0}% are reserved for all classes together; use at most 100%")]
    Reserved(u32),
    /// The queueing time is too short or too long.
    #[error("{0:?} is no target for the queueing time; use 1 ms to 24 h")]
    QueueTarget(Duration),
    /// The utilization is too low or too high.
    #[error("{0}% is no target for the utilization; use 1% to 99%")]
    UtilizationTarget(u8),
    /// The interval is too short or too long.
    #[error("{0:?} is no interval of a shedder; use 1 ms to 1 h")]
    Interval(Duration),
    /// The rotation is too short.
    #[error("users cannot rotate every {0:?}; use 1 s or longer")]
    Rotation(Duration),
}
