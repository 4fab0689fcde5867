//! A limit: a rate, an algorithm, and what can be computed from them in advance.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use crate::algorithm::{Algorithm, CellEvaluator, Evaluator, SlidingLog};
use crate::rate::{Rate, RateError};

/// A rate limit: a rate and an algorithm.
///
/// The constructors reject what could overflow or lose precision, so every `Limit` is exact. A
/// `Limit` that is parsed from text is a token bucket, the default, or a fixed window if its period is
/// one of the calendar.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{Algorithm, Limit};
///
/// let api: Limit = "100/minute".parse()?;
/// assert_eq!(api.algorithm(), Algorithm::TokenBucket);
///
/// let login = Limit::sliding_log("5/minute")?;
/// assert_eq!(login.to_string(), "sliding_log 5/m");
///
/// let checkout: Limit = "5/s burst 10".parse()?;
/// let checkout = checkout.named("checkout");
/// assert_eq!(checkout.to_string(), "token_bucket 5/s burst 10");
///
/// // A limit that cannot be exact is rejected, with a hint at what would work.
/// let error = Limit::token_bucket("1/day burst 3000000").unwrap_err();
/// assert!(error.to_string().contains("a burst of at most"));
/// # Ok::<(), ratekeeper_core::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limit {
    rate: Rate,
    algorithm: Algorithm,
    evaluator: Evaluator,
    scope: Scope,
    usage_id: u64,
}

impl Limit {
    /// Returns the limit of this rate and algorithm.
    ///
    /// # Errors
    /// If the algorithm cannot count this rate exactly, has no burst and the rate has one, or has no
    /// calendar windows and the period is one of the calendar.
    pub fn new(rate: Rate, algorithm: Algorithm) -> Result<Self, LimitError> {
        let evaluator = algorithm.compile(rate)?;
        let scope = Scope::new(&format!("{algorithm} {rate}"));
        let usage_id = scope.usage_id(algorithm);
        Ok(Self { rate, algorithm, evaluator, scope, usage_id })
    }

    /// Returns a fixed window limit: simple, but admits up to twice the count around a boundary.
    ///
    /// # Errors
    /// If `rate` is not a rate, or has a burst.
    pub fn fixed_window(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::FixedWindow)
    }

    /// Returns a sliding log limit: exact for every window, at a few bytes for every request.
    ///
    /// # Errors
    /// If `rate` is not a rate, has a burst, or has a count that is too large for a log.
    pub fn sliding_log(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::SlidingLog)
    }

    /// Returns a sliding counter limit: a window that slides, at 16 bytes for every key. Once exhausted,
    /// it may deny for up to two periods.
    ///
    /// # Errors
    /// If `rate` is not a rate, has a burst, or has a count that is too large for the counter.
    pub fn sliding_counter(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::SlidingCounter)
    }

    /// Returns a token bucket (GCRA) limit, the default: a burst, then a steady rate.
    ///
    /// # Errors
    /// If `rate` is not a rate, or cannot be counted exactly.
    pub fn token_bucket(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::TokenBucket)
    }

    /// Returns a leaky bucket limit: a queue that requests leave evenly spaced.
    ///
    /// # Errors
    /// If `rate` is not a rate, or cannot be counted exactly.
    pub fn leaky_bucket(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::LeakyBucket)
    }

    /// Counts denied requests too, so that a caller that does not back off stays denied. Sliding
    /// log only.
    ///
    /// # Errors
    /// If the algorithm is not the sliding log.
    pub fn count_rejected(mut self) -> Result<Self, LimitError> {
        match &mut self.evaluator {
            Evaluator::Log(log) => log.count_rejected = true,
            Evaluator::Cell(_) => return Err(LimitError::CountRejected(self.algorithm)),
        }
        Ok(self)
    }

    /// Names the limit. Limits of the same name and algorithm share the usage of their keys, so
    /// that usage carries over when the rate changes. The default name is the algorithm and the
    /// rate.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.in_scope(Scope::new(name))
    }

    /// Counts in this scope.
    pub(crate) fn in_scope(mut self, scope: Scope) -> Self {
        self.usage_id = scope.usage_id(self.algorithm);
        self.scope = scope;
        self
    }

    /// Returns the rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the algorithm.
    #[inline]
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the namespace of the keys.
    #[inline]
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns the [`Scope::usage_id`] of this limit's scope and algorithm.
    #[inline]
    #[must_use]
    pub fn usage_id(&self) -> u64 {
        self.usage_id
    }

    /// Returns the name. Without one, it is the algorithm and the rate.
    #[must_use]
    pub fn name(&self) -> &str {
        self.scope.name()
    }

    /// Returns the largest cost that can be admitted at once.
    #[must_use]
    pub fn quota(&self) -> u64 {
        self.rate.burst().unwrap_or(self.rate.count())
    }

    /// Returns the evaluator of this limit.
    #[inline]
    #[must_use]
    pub fn evaluator(&self) -> &Evaluator {
        &self.evaluator
    }

    /// Returns the evaluator, for all algorithms but the sliding log.
    #[inline]
    #[must_use]
    pub fn cell_evaluator(&self) -> Option<&CellEvaluator> {
        match &self.evaluator {
            Evaluator::Cell(evaluator) => Some(evaluator),
            Evaluator::Log(_) => None,
        }
    }

    /// Returns the evaluator, for the sliding log.
    #[must_use]
    pub fn log_evaluator(&self) -> Option<&SlidingLog> {
        match &self.evaluator {
            Evaluator::Log(evaluator) => Some(evaluator),
            Evaluator::Cell(_) => None,
        }
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let rate = text.parse()?;
        Self::new(rate, Algorithm::default_for(&rate))
    }
}

impl TryFrom<&str> for Limit {
    type Error = LimitError;

    fn try_from(text: &str) -> Result<Self, LimitError> {
        text.parse()
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.algorithm, self.rate)
    }
}

/// The namespace of a limit's keys. Limits of different scopes never share usage.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{Limit, Scope};
///
/// let limit: Limit = "100/minute".parse()?;
/// assert_eq!(limit.named("exports").scope(), &Scope::new("exports"));
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    name: Arc<str>,
    /// The class of a guarantee, whose keys are apart from those of the limit of this name.
    class: Option<Arc<str>>,
    id: u64,
}

impl Scope {
    /// Returns the scope of this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { id: fnv1a(name.bytes()), name: name.into(), class: None }
    }

    /// Returns the scope of the guarantee of a class, under the limit of this scope. No name that a limit
    /// can have is the same scope.
    pub(crate) fn guarantee(&self, class: &str) -> Self {
        // The byte is in no name, because names are UTF-8.
        let bytes = self.name.bytes().chain([0xff]).chain(class.bytes());
        Self { name: self.name.clone(), class: Some(class.into()), id: fnv1a(bytes) }
    }

    /// Returns the class, for the scope of a guarantee ([`Guarantees`](crate::Guarantees)).
    #[must_use]
    pub fn class(&self) -> Option<&str> {
        self.class.as_deref()
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a hash of the name and the algorithm, which stores combine with a key. Algorithms do
    /// not share usage.
    #[must_use]
    pub fn usage_id(&self, algorithm: Algorithm) -> u64 {
        self.id.rotate_left(algorithm as u32)
    }
}

/// Hashes a name. Names come from configuration, not from callers, so the hash has no secret key.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Why a limit is invalid, and what would work instead.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::Limit;
///
/// let error = Limit::sliding_counter("5/s burst 10").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "sliding_counter has no burst; leave it out, or use token_bucket or leaky_bucket"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// The text is not a rate.
    Rate(RateError),
    /// The rate has a burst, but the algorithm has none.
    Burst(Algorithm),
    /// The rate has a burst, but its period is one of the calendar.
    CalendarBurst,
    /// `count_rejected` is set, but the algorithm is not the sliding log.
    CountRejected(Algorithm),
    /// The bucket takes longer to refill than the longest time that can be represented exactly.
    RefillTooLong {
        /// The rate.
        rate: Rate,
        /// The largest burst that this rate can have.
        burst_max: u64,
    },
    /// The count does not fit the counters of a sliding counter.
    CounterTooLarge {
        /// The rate.
        rate: Rate,
        /// The largest count that a sliding counter can have.
        count_max: u64,
    },
    /// In lowest terms, the count of the rate does not fit the fraction of a bucket's TAT.
    RateTooFine {
        /// The rate.
        rate: Rate,
        /// The largest count in lowest terms.
        count_max: u64,
    },
    /// The log would hold too many requests.
    LogTooLong {
        /// The rate.
        rate: Rate,
        /// The largest count that a log can have.
        count_max: u64,
    },
    /// The period is one of the calendar, but the algorithm has no calendar windows.
    Calendar(Algorithm),
    /// No algorithm has this name.
    UnknownAlgorithm(String),
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(error) => error.fmt(f),
            Self::Burst(algorithm) => write!(
                f,
                "{algorithm} has no burst; leave it out, or use token_bucket or leaky_bucket"
            ),
            Self::CalendarBurst => f.write_str(
                "a calendar period has no burst; leave it out, or leave out \"calendar\"",
            ),
            Self::CountRejected(algorithm) => {
                write!(f, "{algorithm} cannot count denied requests; use sliding_log")
            }
            Self::RefillTooLong { rate, burst_max } => write!(
                f,
                "{rate} takes more than 142 years to refill, which cannot be counted exactly; use a burst of at most {burst_max}"
            ),
            Self::CounterTooLarge { rate, count_max } => write!(
                f,
                "{rate} is too much for a sliding_counter; use at most {count_max}, a shorter period, or token_bucket"
            ),
            Self::RateTooFine { rate, count_max } => write!(
                f,
                "{rate} cannot be counted exactly; use at most {count_max}, or a rounder number such as a multiple of 1000"
            ),
            Self::LogTooLong { rate, count_max } => write!(
                f,
                "{rate} is too much for a sliding_log, which stores every request; use at most {count_max}, or sliding_counter"
            ),
            Self::Calendar(algorithm) => write!(
                f,
                "{algorithm} has no calendar windows; use fixed_window, or a period without \"calendar\""
            ),
            Self::UnknownAlgorithm(name) => {
                let names = crate::ALGORITHMS.iter().map(ToString::to_string);
                let names = names.collect::<alloc::vec::Vec<_>>().join(", ");
                write!(f, "unknown algorithm \"{name}\"; use one of {names}")
            }
        }
    }
}

impl core::error::Error for LimitError {}

impl From<RateError> for LimitError {
    fn from(error: RateError) -> Self {
        Self::Rate(error)
    }
}

impl From<core::convert::Infallible> for LimitError {
    fn from(never: core::convert::Infallible) -> Self {
        match never {}
    }
}
