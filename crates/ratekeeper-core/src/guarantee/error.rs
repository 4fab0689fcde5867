//! Why guarantees are invalid, and what would work instead.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::GUARANTEES_MAX;
use crate::algorithm::Algorithm;
use crate::limit::LimitError;
use crate::rate::Rate;

/// Why a total cannot have these guarantees, and what would work instead.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{Guarantees, Limit};
///
/// let total = Limit::token_bucket("350/s burst 1000")?;
/// let rates = [("partner", "200/s".parse()?), ("internal", "200/s".parse()?)];
/// let error = Guarantees::new(total, rates).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "the guarantees exceed the total of 350/s burst 1000 by a count of 50; lower one of them, or raise the total"
/// );
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuaranteesError {
    /// The total is not a token bucket.
    Algorithm(Algorithm),
    /// There are no guarantees, or more than [`GUARANTEES_MAX`].
    Count(usize),
    /// A guarantee is not a valid token bucket.
    Guarantee {
        /// The class of the guarantee.
        class: String,
        /// Why.
        source: LimitError,
    },
    /// A class has two guarantees.
    Duplicate(String),
    /// The rates of the guarantees exceed that of the total.
    Rates {
        /// The rate of the total.
        total: Rate,
        /// By how much, in the period of the total; rounded up.
        excess: u128,
    },
    /// The bursts of the guarantees exceed that of the total.
    Bursts {
        /// The rate of the total.
        total: Rate,
        /// The burst of the total.
        burst: u64,
        /// The sum of the bursts of the guarantees.
        bursts: u64,
    },
    /// The rates have no common unit in which they can be counted exactly.
    NotExact {
        /// The rate of the total.
        total: Rate,
        /// The rates of the guarantees.
        guarantees: Vec<Rate>,
    },
}

impl fmt::Display for GuaranteesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Algorithm(algorithm) => {
                write!(f, "{algorithm} has no guarantees; use token_bucket")
            }
            Self::Count(count) => {
                write!(f, "a limit can have 1 to {GUARANTEES_MAX} guarantees, not {count}")
            }
            Self::Guarantee { class, source } => {
                write!(f, "the guarantee of \"{class}\" is invalid: {source}")
            }
            Self::Duplicate(class) => {
                write!(f, "there are two guarantees for \"{class}\"; leave one out")
            }
            Self::Rates { total, excess } => write!(
                f,
                "the guarantees exceed the total of {total} by a count of {excess}; lower one of them, or raise the total"
            ),
            Self::Bursts { total, burst, bursts } => write!(
                f,
                "the bursts of the guarantees sum up to {bursts}, {} more than the burst {burst} of the total {total}; lower one of them, or raise the burst of the total",
                bursts - burst
            ),
            Self::NotExact { total, guarantees } => {
                let guarantees: Vec<_> = guarantees.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "{} of {total} cannot be counted exactly together; use rounder numbers such as multiples of 10, or a smaller burst",
                    guarantees.join(" and ")
                )
            }
        }
    }
}

impl core::error::Error for GuaranteesError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Guarantee { source, .. } => Some(source),
            _ => None,
        }
    }
}
