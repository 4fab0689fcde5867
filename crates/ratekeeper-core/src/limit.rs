//! A limit: a rate, an algorithm, and everything that can be worked out once.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use crate::algorithm::{Algorithm, CellRule, LogRule, Rule};
use crate::rate::{Rate, RateError};

/// A limit, ready to decide.
///
/// Everything that could overflow or lose precision is settled here: a `Limit` that exists is
/// exact. Parsing a `Limit` from text gives the default algorithm, the sliding counter.
///
/// ```
/// use ratekeeper_core::{Algorithm, Limit};
///
/// let api: Limit = "100/minute".parse()?;
/// assert_eq!(api.algorithm(), Algorithm::SlidingCounter);
///
/// let checkout = Limit::token_bucket("5/s burst 10")?.named("checkout");
/// assert_eq!(checkout.to_string(), "token_bucket 5/s burst 10");
///
/// // What cannot be exact is refused, with what would work.
/// let refused = Limit::token_bucket("1/day burst 3000000").unwrap_err();
/// assert!(refused.to_string().contains("a burst of at most"));
/// # Ok::<(), ratekeeper_core::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limit {
    rate: Rate,
    algorithm: Algorithm,
    rule: Rule,
    scope: Scope,
    usage_id: u64,
}

impl Limit {
    /// The limit that `algorithm` makes of `rate`.
    pub fn new(rate: Rate, algorithm: Algorithm) -> Result<Self, LimitError> {
        let rule = algorithm.compile(rate)?;
        let scope = Scope::new(&format!("{algorithm} {rate}"));
        let usage_id = scope.usage_id(algorithm);
        Ok(Self { rate, algorithm, rule, scope, usage_id })
    }

    /// A fixed window: simple, and up to twice the count around a boundary.
    pub fn fixed_window(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::FixedWindow)
    }

    /// A sliding log: exact about the past, at a few bytes for every request.
    pub fn sliding_log(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::SlidingLog)
    }

    /// A sliding counter, the default: smooth, and 16 bytes a key.
    pub fn sliding_counter(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::SlidingCounter)
    }

    /// A token bucket (also known as GCRA): a burst, then a steady rate.
    pub fn token_bucket(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::TokenBucket)
    }

    /// A leaky bucket: a queue that lets requests out evenly spaced.
    pub fn leaky_bucket(rate: &str) -> Result<Self, LimitError> {
        Self::new(rate.parse()?, Algorithm::LeakyBucket)
    }

    /// Logs denied attempts too, so that hammering keeps a caller out. For a sliding log only.
    pub fn count_rejected(mut self) -> Result<Self, LimitError> {
        match &mut self.rule {
            Rule::Log(log) => log.count_rejected = true,
            Rule::Cell(_) => return Err(LimitError::CountRejected(self.algorithm)),
        }
        Ok(self)
    }

    /// Gives the limit a name. Limits of one name and algorithm share their keys' usage, so that
    /// usage carries over when the numbers change. Without a name, the numbers are the name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.scope = Scope::new(name);
        self.usage_id = self.scope.usage_id(self.algorithm);
        self
    }

    /// The rate as given.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The algorithm.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The name space of this limit's keys.
    #[inline]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// [`Scope::usage_id`] of this limit's scope and algorithm.
    #[inline]
    pub fn usage_id(&self) -> u64 {
        self.usage_id
    }

    /// The name, or the numbers that stand for it.
    pub fn name(&self) -> &str {
        self.scope.name()
    }

    /// The most that can pass at once.
    pub fn quota(&self) -> u64 {
        self.rate.burst().unwrap_or(self.rate.count())
    }

    /// What decides.
    #[inline]
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// What decides, for all algorithms but the log.
    #[inline]
    pub fn cell_rule(&self) -> Option<&CellRule> {
        match &self.rule {
            Rule::Cell(rule) => Some(rule),
            Rule::Log(_) => None,
        }
    }

    /// What decides, for the log.
    pub fn log_rule(&self) -> Option<&LogRule> {
        match &self.rule {
            Rule::Log(rule) => Some(rule),
            Rule::Cell(_) => None,
        }
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        Self::new(text.parse()?, Algorithm::default())
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

/// The name space of a limit's keys: two limits of different scope never share usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    name: Arc<str>,
    id: u64,
}

impl Scope {
    /// The scope of that name.
    pub fn new(name: &str) -> Self {
        Self { id: fnv1a(name.as_bytes()), name: name.into() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A number that stands for the name and an algorithm, whose usage is kept apart from that of
    /// others: cheap to hash with a key.
    pub fn usage_id(&self, algorithm: Algorithm) -> u64 {
        self.id.rotate_left(algorithm as u32)
    }
}

/// Names come from configuration, not from callers, so this hash need not be keyed.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Why a limit was refused, and what would work instead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// The rate is not one.
    Rate(RateError),
    /// `burst` was given to an algorithm that has none.
    Burst(Algorithm),
    /// `count_rejected` was asked of an algorithm that keeps no log.
    CountRejected(Algorithm),
    /// The bucket takes longer to refill than time can be counted exactly.
    RefillTooLong {
        /// The rate as given.
        rate: Rate,
        /// The largest burst that this rate can have.
        burst_max: u64,
    },
    /// The count is more than the two counters of a sliding counter hold.
    CounterTooLarge {
        /// The rate as given.
        rate: Rate,
        /// The largest count that a sliding counter can have.
        count_max: u64,
    },
    /// In lowest terms, the rate has more parts a microsecond than a bucket can keep.
    RateTooFine {
        /// The rate as given.
        rate: Rate,
        /// The largest count in lowest terms.
        count_max: u64,
    },
    /// The log would have to remember too many requests.
    LogTooLong {
        /// The rate as given.
        rate: Rate,
        /// The largest count that a log can have.
        count_max: u64,
    },
    /// No algorithm has that name.
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
            Self::CountRejected(algorithm) => {
                write!(f, "{algorithm} keeps no log to count rejected attempts in; use sliding_log")
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
                "{rate} is too much for a sliding_log, which remembers every request; use at most {count_max}, or sliding_counter"
            ),
            Self::UnknownAlgorithm(name) => {
                let names = crate::ALGORITHMS.iter().map(ToString::to_string);
                let names = names.collect::<alloc::vec::Vec<_>>().join(", ");
                write!(f, "unknown algorithm \"{name}\"; there are {names}")
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
