//! Load shedding with a clock, shared between threads.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ratekeeper_control::{
    Class, Overload, Shed, ShedDecision, Shedder as Controller, ShedderConfig, ShedderError,
    user_hash,
};
use ratekeeper_core::Key;

use crate::clock::{Clock, SystemClock};

/// Sheds requests under overload: the lowest class first, and within a class the same users for a while.
///
/// It is [`ratekeeper_control::Shedder`], which describes how it decides, with a clock. It needs no runtime. Clones
/// share the state. While nothing is shed, a decision takes no lock.
///
/// ```
/// use ratekeeper::{Class, Overload, Shedder, ShedderConfig};
///
/// let shedder = Shedder::new(ShedderConfig::DEFAULT)?;
/// // Now and then, or for each request:
/// shedder.observe(Overload::Utilization(0.65));
/// // Before a request is served:
/// match shedder.admit(Class::SHEDDABLE, "user:42") {
///     Ok(()) => {} // serve it
///     Err(shed) => println!("503, Retry-After: {}", shed.retry_after.as_secs().max(1)),
/// }
/// # Ok::<(), ratekeeper::ShedderError>(())
/// ```
///
/// A [`Bulkhead`](crate::Bulkhead) can report how busy it is:
/// [`Bulkhead::with_shedder`](crate::Bulkhead::with_shedder).
pub struct Shedder<C = SystemClock> {
    shared: Arc<Shared<C>>,
}

struct Shared<C> {
    clock: C,
    controller: Mutex<Controller>,
    /// Whether the level is above 0. Only a signal raises it.
    is_shedding: AtomicBool,
    anonymous: AtomicU64,
    classes: Box<[ClassCounters]>,
}

#[derive(Debug, Default)]
struct ClassCounters {
    admitted: AtomicU64,
    shed: AtomicU64,
}

impl Shedder {
    /// Returns a shedder that sheds nothing until it observes overload.
    ///
    /// # Errors
    ///
    /// If a value of the config is out of its range, or the reserved shares are over 100% together.
    pub fn new(config: ShedderConfig) -> Result<Self, ShedderError> {
        Self::with_clock(config, SystemClock)
    }
}

impl<C: Clock> Shedder<C> {
    /// Returns a shedder with another clock.
    ///
    /// # Errors
    ///
    /// As [`Shedder::new`].
    pub fn with_clock(config: ShedderConfig, clock: C) -> Result<Self, ShedderError> {
        let controller = Mutex::new(Controller::new(config)?);
        let classes = (0..config.classes()).map(|_| ClassCounters::default()).collect();
        let (is_shedding, anonymous) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self { shared: Arc::new(Shared { clock, controller, is_shedding, anonymous, classes }) })
    }

    /// Takes a signal of overload, or of its absence. Without signals for ten intervals, the level falls.
    pub fn observe(&self, signal: Overload) {
        let now = self.shared.clock.now();
        let mut controller = self.shared.controller();
        controller.observe(signal, now);
        self.shared.publish(&controller);
    }

    /// Decides about a request of a class, from a user: a name that is the same for all requests of that user.
    ///
    /// # Errors
    ///
    /// If the request is shed.
    pub fn admit<K: Key + ?Sized>(&self, class: Class, user: &K) -> Result<(), Shed> {
        self.decide(class, || user_hash(user.key_bytes()))
    }

    /// Decides about a request of a class whose user is not known. Each request counts as another user.
    ///
    /// # Errors
    ///
    /// If the request is shed.
    pub fn admit_anonymous(&self, class: Class) -> Result<(), Shed> {
        self.decide(class, || self.shared.anonymous.fetch_add(1, Ordering::Relaxed))
    }

    /// Decides about a request of a class, from the user of this hash, if it is known.
    #[cfg(feature = "policy")]
    pub(crate) fn admit_hashed(&self, class: Class, user_hash: Option<u64>) -> Result<(), Shed> {
        match user_hash {
            Some(hash) => self.decide(class, || hash),
            None => self.admit_anonymous(class),
        }
    }

    fn decide(&self, class: Class, user_hash: impl FnOnce() -> u64) -> Result<(), Shed> {
        let shared = &*self.shared;
        let counters = shared.class(class);
        let decision = match shared.is_shedding.load(Ordering::Relaxed) {
            false => ShedDecision::Admit,
            true => {
                let now = shared.clock.now();
                let mut controller = shared.controller();
                let decision = controller.admit(class, user_hash(), now);
                shared.publish(&controller);
                decision
            }
        };
        match decision {
            ShedDecision::Admit => {
                counters.admitted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            ShedDecision::Shed(shed) => {
                counters.shed.fetch_add(1, Ordering::Relaxed);
                Err(shed)
            }
        }
    }

    /// Returns the shed level: 0 if nothing is shed, and the number of classes if all are.
    #[must_use]
    pub fn level(&self) -> f64 {
        self.shared.controller().level()
    }

    /// Returns what was admitted and shed so far of each class, the most important one first.
    #[must_use]
    pub fn stats(&self) -> Vec<ClassStats> {
        let controller = self.shared.controller();
        let of_class = |(rank, counters): (usize, &ClassCounters)| {
            let class = Class::new(rank as u8);
            ClassStats {
                class,
                admitted: counters.admitted.load(Ordering::Relaxed),
                shed: counters.shed.load(Ordering::Relaxed),
                shed_share: controller.shed_share(class),
            }
        };
        self.shared.classes.iter().enumerate().map(of_class).collect()
    }
}

impl<C> Shared<C> {
    fn controller(&self) -> MutexGuard<'_, Controller> {
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, controller: &Controller) {
        let is_shedding = !controller.is_idle();
        // Read first: mostly it is the same, and then no cache line is written.
        if self.is_shedding.load(Ordering::Relaxed) != is_shedding {
            self.is_shedding.store(is_shedding, Ordering::Relaxed);
        }
    }

    fn class(&self, class: Class) -> &ClassCounters {
        &self.classes[usize::from(class.rank()).min(self.classes.len() - 1)]
    }
}

impl<C> Clone for Shedder<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<C> fmt::Debug for Shedder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = self.shared.controller().level();
        f.debug_struct("Shedder").field("level", &level).finish_non_exhaustive()
    }
}

/// What a [`Shedder`] admitted and shed of a class, for metrics.
///
/// ```
/// use ratekeeper::{Class, Shedder, ShedderConfig};
///
/// let shedder = Shedder::new(ShedderConfig::DEFAULT)?;
/// shedder.admit(Class::CRITICAL, "ann")?;
/// let critical = &shedder.stats()[1];
/// assert_eq!((critical.class, critical.admitted, critical.shed), (Class::CRITICAL, 1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClassStats {
    /// The class.
    pub class: Class,
    /// The requests that were admitted.
    pub admitted: u64,
    /// The requests that were shed.
    pub shed: u64,
    /// The share of the class that the level sheds now, from 0 to 1.
    pub shed_share: f64,
}
