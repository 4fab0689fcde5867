//! Plans: which rate a service can be offered, from what it has.
//!
//! [`Capacity`] goes from concurrency and latency to a safe rate, each step with its formula. [`Split`] divides
//! it between classes, [`QueueModel`] says what response times are at that rate, and
//! [`Division::to_policy`] writes a policy. Numbers are exact, and rounded down once.
//! [`LimitSearch`] finds the smallest limit for the requests of an access log.
//!
//! ```
//! use ratekeeper_lab::plan::{Capacity, Dependency};
//!
//! let inventory: Dependency = "inventory=300/s,amplification=2".parse()?;
//! let capacity = Capacity::new(10, 40, 800_000, "70%".parse()?)?.with_dependency(inventory);
//! let plan = capacity.plan()?;
//! assert_eq!(plan.weakest().map(|weakest| weakest.name()), Some("inventory"));
//! assert_eq!(plan.rate(), "105/s".parse()?, "70% of 300/s / 2");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod capacity;
mod dependency;
mod latency;
mod log_report;
mod logged;
mod policy;
mod queue;
mod ratio;
mod report;
mod search;
mod split;

use std::fmt::Display;
use std::io;

use ratekeeper_core::{Rate, RateError};
use serde::Serialize;

pub use capacity::{Capacity, CapacityPlan, Share};
pub use dependency::Dependency;
pub use latency::{Latencies, LatencyModel, Percentile, ResponseTimes, Slo, parse_latency};
pub use log_report::LogReport;
pub use logged::LoggedTraffic;
pub use policy::PolicyOptions;
pub use queue::{Load, QueueModel, SloCheck};
use ratio::Ratio;
pub use report::PlanReport;
pub use search::{FoundLimit, HitCaller, LimitSearch, Searched, Tolerance};
pub use split::{Class, Division, Split};

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What is computed.
    pub name: String,
    /// How, with the numbers.
    pub formula: String,
    /// What comes out.
    pub result: String,
}

impl Step {
    fn new(name: &str, formula: String, result: impl Display) -> Self {
        Self { name: name.to_string(), formula, result: result.to_string() }
    }
}

/// Parses a rate without a burst or a calendar period.
///
/// # Errors
/// If it is no rate, or has one of these.
pub fn plain_rate(text: &str) -> Result<Rate, PlanError> {
    let rate: Rate = text.trim().parse()?;
    match rate.calendar().is_none() && rate.burst().is_none() {
        true => Ok(rate),
        false => Err(PlanError::PlainRate(text.to_string())),
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A share is not a percentage above 0 and up to 100.
    #[error("expected a share such as 70%, more than 0% and at most 100%")]
    Share,
    /// A number of pods or a concurrency is out of range.
    #[error("pods and concurrency are from 1 to 1000000")]
    Count,
    /// A latency is out of range.
    #[error("a latency is from 1us to a day")]
    Latency,
    /// A text is no latency.
    #[error("\"{0}\" is no latency; use a number and us, ms, s or m, such as 800ms or 1.5s")]
    LatencyText(String),
    /// A line of a file is no latency.
    #[error("line {number} is no latency; use a number and us, ms, s or m, such as 120ms")]
    LatencyLine {
        /// The number of the line.
        number: u64,
    },
    /// A file has no latencies.
    #[error("there are no latencies")]
    NoLatencies,
    /// A file has too many latencies.
    #[error("there are more than {0} latencies; use a sample of them")]
    TooManyLatencies(usize),
    /// A file cannot be read.
    #[error("cannot read the latencies")]
    Read(#[source] io::Error),
    /// The median is above the 95th percentile.
    #[error("the p50 is above the p95")]
    Median,
    /// A text is no percentile.
    #[error("\"{0}\" is no percentile; use p50, p95, p99 or p99.9")]
    Percentile(String),
    /// A text is no objective.
    #[error("\"{0}\" is no objective; use a percentile and a latency, such as p99=1.5s")]
    Slo(String),
    /// The safe rate is too low or too high to be a limit.
    #[error("the safe rate is less than one request a day, or more than can be counted")]
    Rate,
    /// A text is no dependency.
    #[error("expected a dependency such as inventory=300/s or inventory=300/s,amplification=2")]
    Dependency,
    /// An amplification is no number above 0.
    #[error("the amplification is the calls per request: a number above 0, such as 2 or 0.5")]
    Amplification,
    /// A text is no class.
    #[error(
        "\"{0}\" is no class; use a name and a rate, a share or \"rest\", such as partner=200/s,public=rest"
    )]
    Class(String),
    /// A class is named twice.
    #[error("the class \"{0}\" is there twice")]
    ClassTwice(String),
    /// Two classes have the rest.
    #[error("two classes cannot both have the rest")]
    TwoRests,
    /// There are too many classes.
    #[error("a split has at most {0} classes")]
    Classes(usize),
    /// The classes add up to more than the safe rate.
    #[error("the classes add up to {sum}/s, {over}/s more than the safe rate of {safe}")]
    TooMuch {
        /// The sum per second.
        sum: String,
        /// How much more than the safe rate that is, per second.
        over: String,
        /// The safe rate.
        safe: Rate,
    },
    /// The other classes leave nothing for a class.
    #[error("nothing is left for the class \"{0}\"")]
    NothingLeft(String),
    /// The rate per user does not fit into a class.
    #[error("{per_user} per user does not fit into the {rate} of {class}: {over}/s too much")]
    PerUser {
        /// The rate per user.
        per_user: Rate,
        /// The class.
        class: String,
        /// Its rate.
        rate: Rate,
        /// How much more the rate per user is, per second.
        over: String,
    },
    /// A text does not say what may be refused.
    #[error("expected a share such as 0.1%, \"0.1% of requests\" or \"0.1% of keys\"")]
    Tolerance,
    /// A log has no requests that are counted.
    #[error("the log has no request that is counted")]
    NoRequests,
    /// A log has too many requests to search limits in.
    #[error("the log has more than {0} requests; use a part of it")]
    TooManyRequests(usize),
    /// A rate has a burst or a calendar period.
    #[error("\"{0}\" has a burst or a calendar period; use a rate such as 200/s")]
    PlainRate(String),
    /// A text is no rate.
    #[error("{}", .0.message())]
    RateText(#[from] RateError),
}
