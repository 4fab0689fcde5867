//! Load shedding: under overload, requests are rejected by class and by user.

mod class;
mod config;
mod level;
mod overload;
mod rotation;

use std::fmt;
use std::time::Duration;

use ratekeeper_core::Micros;

pub use class::Class;
pub use config::{ShedderConfig, ShedderError};
pub use overload::Overload;
pub use rotation::user_hash;

use crate::window_counter::WindowCounter;
use config::{CLASSES_MAX, HOLD_INTERVALS};
use level::{Level, SPEED_MAX, STEP_MAX, Traffic, WHOLE};
use overload::IntervalSignal;

/// Sheds requests under overload: the lowest class first, and within a class the same users for a
/// while.
///
/// [`Shedder::observe`] takes the signal of [`Overload`]. After each interval in which the signal
/// stayed above its target, the shed level rises; when it has been below the target for ten
/// intervals, the level falls. The level moves by bounded steps, so that shedding is gradual.
///
/// The level goes through the classes from the lowest to the highest. So a request of a class is
/// shed only if all requests of lower classes are, except for their reserved shares
/// ([`ShedderConfig::with_reserved_percent`]).
///
/// Within a class, the level decides by user. Each user has a place between 0 and 1, which is the
/// same in all processes, and is admitted while it is below the share of the class that is
/// admitted. So a user who was served goes on being served, instead of every user being shed now
/// and then. The place changes with each rotation, an hour by default, for one user after another.
/// If a share `q` of a class is admitted, every user is served in at least one of any `3 / q`
/// consecutive rotations.
///
/// Its time never goes backwards: what comes with an earlier time counts at the latest time so
/// far.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{Class, Micros, Overload, Shedder, ShedderConfig, user_hash};
///
/// let mut now = Micros::new(1_790_000_000_000_000);
/// let mut shedder = Shedder::new(ShedderConfig::DEFAULT)?;
/// let user = user_hash(b"ann");
/// assert!(shedder.admit(Class::SHEDDABLE, user, now).is_admitted());
///
/// // Requests wait for 100 ms instead of 20 ms, for a second and a half.
/// for _response in 0..15 {
///     shedder.observe(Overload::QueueTime(Duration::from_millis(100)), now);
///     now = now.after(Duration::from_millis(100));
/// }
/// assert!(!shedder.admit(Class::SHEDDABLE, user, now).is_admitted());
/// assert!(shedder.admit(Class::CRITICAL_PLUS, user, now).is_admitted());
/// # Ok::<(), ratekeeper_control::ShedderError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Shedder {
    config: ShedderConfig,
    level: Level,
    /// The latest time.
    now: Micros,
    /// When the current interval began.
    interval_start: Micros,
    signal: IntervalSignal,
    /// How far the last interval was above its target.
    last_excess: f64,
    /// Intervals since the last one above the target.
    calm_intervals: u64,
    classes: [ClassTraffic; CLASSES_MAX],
    admitted: WindowCounter,
}

impl Shedder {
    /// Returns a shedder that sheds nothing until it observes overload.
    ///
    /// # Errors
    /// If a value of the config is out of its range, or the reserved shares are over 100% together.
    pub fn new(config: ShedderConfig) -> Result<Self, ShedderError> {
        let counter = WindowCounter::new(config.check()?);
        let class = ClassTraffic { offered: counter.clone(), admitted: counter.clone() };
        Ok(Self {
            level: Level::new(config.classes()),
            now: Micros::new(0),
            interval_start: Micros::new(0),
            signal: IntervalSignal::default(),
            last_excess: -1.0,
            calm_intervals: 0,
            classes: std::array::from_fn(|_| class.clone()),
            admitted: counter,
            config,
        })
    }

    /// Takes a signal of overload, or of its absence.
    pub fn observe(&mut self, signal: Overload, now: Micros) {
        self.advance(now);
        self.signal.add(signal, &self.config);
    }

    /// Decides about a request of a class, from a user.
    ///
    /// `user_hash` is the same for all requests of one user: see [`user_hash`]. For requests without
    /// a user, use random bits. A class below the lowest is the lowest.
    pub fn admit(&mut self, class: Class, user_hash: u64, now: Micros) -> ShedDecision {
        self.advance(now);
        let class = class.at_most(self.config.classes());
        let admitted_share = WHOLE - self.level.shed_of(class);
        let place = self.config.rotation().place(user_hash, self.now);
        let is_admitted = place < admitted_share || self.is_within_reserve(class);
        let of_class = &mut self.classes[class.index()];
        of_class.offered.add(1, self.now);
        if is_admitted {
            of_class.admitted.add(1, self.now);
            self.admitted.add(1, self.now);
            return ShedDecision::Admit;
        }
        let intervals_calm = HOLD_INTERVALS.saturating_sub(self.calm_intervals) as u32;
        let missing = f64::from(place + 1 - admitted_share) / f64::from(WHOLE);
        let intervals_falling = (missing / STEP_MAX).ceil() as u32;
        let retry_after = self.config.interval() * (intervals_calm + intervals_falling);
        ShedDecision::Shed(Shed { class, retry_after })
    }

    /// Returns whether nothing is shed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.level.is_zero()
    }

    /// Returns the share of a class that the level sheds, from 0 to 1: the users who are shed, if
    /// the class has no reserved share.
    #[must_use]
    pub fn shed_share(&self, class: Class) -> f64 {
        let class = class.at_most(self.config.classes());
        f64::from(self.level.shed_of(class)) / f64::from(WHOLE)
    }

    /// Returns the shed level: 0 if nothing is shed, and the number of classes if all are. Below
    /// 1, a part of the lowest class is shed.
    #[must_use]
    pub fn level(&self) -> f64 {
        f64::from(self.level.get()) / f64::from(WHOLE)
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &ShedderConfig {
        &self.config
    }

    /// Ends the intervals that are over.
    fn advance(&mut self, now: Micros) {
        self.now = self.now.max(now);
        let interval = self.config.interval();
        let elapsed = self.now.since(self.interval_start);
        if elapsed < interval {
            return;
        }
        let intervals = (elapsed.as_micros() / interval.as_micros()) as u64;
        let signal = std::mem::take(&mut self.signal);
        self.end_interval(&signal);
        // After this many intervals without a signal, the level is 0.
        let most = HOLD_INTERVALS + self.level.fall_intervals_max();
        for _ in 1..intervals.min(most) {
            self.end_interval(&IntervalSignal::default());
        }
        let begun = self.interval_start.get() + intervals * interval.as_micros() as u64;
        self.interval_start = Micros::new(begun);
    }

    /// Moves the level after an interval: up if the signal stayed above its target and does not
    /// recede by itself, down if it has been below for [`HOLD_INTERVALS`].
    fn end_interval(&mut self, signal: &IntervalSignal) {
        /// Below the target by less than this, the level stays.
        const DEAD_BAND: f64 = 0.1;
        /// A pressure that decreases to this share in an interval recedes by itself, for example
        /// because a queue drains.
        const RECEDING: f64 = 0.95;
        /// Above the target by this many times the target, overload is full.
        const FULL_OVERLOAD: f64 = 4.0;

        // Without a signal, nothing is known to be overloaded.
        let excess = signal.excess().unwrap_or(-1.0);
        if excess > 0.0 {
            self.calm_intervals = 0;
            if 1.0 + excess > (1.0 + self.last_excess) * RECEDING {
                let traffic = self.traffic(self.level.rising_class());
                self.level.rise((excess / FULL_OVERLOAD).min(1.0), traffic);
            }
        } else {
            self.calm_intervals = self.calm_intervals.saturating_add(1);
            if excess < -DEAD_BAND && self.calm_intervals > HOLD_INTERVALS {
                let traffic = self.traffic(self.level.falling_class());
                self.level.fall(-excess, self.fall_speed(), traffic);
            }
        }
        self.last_excess = excess;
    }

    /// Returns 1 after the hold, and twice as much with every hold that follows.
    fn fall_speed(&self) -> u32 {
        let holds = (self.calm_intervals - 1) / HOLD_INTERVALS;
        1u32.checked_shl(holds.saturating_sub(1) as u32).unwrap_or(SPEED_MAX).min(SPEED_MAX)
    }

    fn traffic(&self, class: Class) -> Traffic {
        let of_class = self.classes[class.index()].offered.at_most_window(self.now);
        Traffic { admitted: self.admitted.at_most_window(self.now), of_class }
    }

    /// Returns whether the class would have at most its reserved share of what was admitted with
    /// one more request.
    fn is_within_reserve(&self, class: Class) -> bool {
        let percent = self.config.reserved_percent(class);
        if percent == 0 {
            return false;
        }
        let of_class = self.classes[class.index()].admitted.at_most_window(self.now);
        let total = self.admitted.at_most_window(self.now);
        (of_class + 1) * 100 <= (total + 1) * u64::from(percent)
    }
}

/// The requests of a class in the last intervals.
#[derive(Clone, Debug)]
struct ClassTraffic {
    offered: WindowCounter,
    admitted: WindowCounter,
}

/// Whether a request is admitted or shed.
///
/// ```
/// use ratekeeper_control::{Class, Micros, ShedDecision, Shedder, ShedderConfig};
///
/// let mut shedder = Shedder::new(ShedderConfig::DEFAULT)?;
/// match shedder.admit(Class::SHEDDABLE, 42, Micros::new(0)) {
///     ShedDecision::Admit => {} // serve it
///     ShedDecision::Shed(shed) => println!("retry in {:?}", shed.retry_after),
/// }
/// # Ok::<(), ratekeeper_control::ShedderError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request that is shed must not be served"]
pub enum ShedDecision {
    /// The request is served.
    Admit,
    /// The request is rejected.
    Shed(Shed),
}

impl ShedDecision {
    /// Returns whether the request is admitted.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        matches!(self, Self::Admit)
    }
}

/// A request that was shed.
///
/// It is an error, so that it can be returned as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shed {
    /// The class of the request.
    pub class: Class,
    /// The time before which the level does not admit this user, if the overload ends now.
    pub retry_after: Duration,
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, retry_after } = self;
        write!(f, "shed under overload ({class}); retry in {retry_after:?}")
    }
}

impl std::error::Error for Shed {}
