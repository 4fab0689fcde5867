//! Builds rates, queues and shares of priority classes.

use std::time::Duration;

use ratekeeper_core::{Algorithm, Limit, LimitError, Rate, RateError};

use super::values::boolean;
use crate::problems::Problems;
use crate::protection::{ConcurrencyRule, Permits};
use crate::rule::Amount;
use crate::yaml::Node;

pub(super) fn rate(
    node: &Node,
    limit: &Node,
    queue: Option<Duration>,
    problems: &mut Problems,
) -> Option<Limit> {
    let text = node.text()?;
    let mut rate: Rate = match text.parse() {
        Ok(rate) => rate,
        Err(error) => {
            let error: RateError = error;
            problems.report(problems.span_of(node, error.span()), error.message());
            return None;
        }
    };
    let algorithm = algorithm(rate, limit, queue.is_some(), problems)?;
    if let Some(queue) = queue {
        rate = match queue_of(rate, queue) {
            Ok(rate) => rate,
            Err(error) => {
                problems.report(node.span, error.to_string());
                return None;
            }
        };
    }
    let counts_rejected = limit.get("count_rejected").and_then(boolean) == Some(true);
    let made = Limit::new(rate, algorithm);
    let made =
        made.and_then(|limit| if counts_rejected { limit.count_rejected() } else { Ok(limit) });
    made.map_err(|error| problems.report(node.span, error.to_string())).ok()
}

fn algorithm(
    rate: Rate,
    limit: &Node,
    is_queue: bool,
    problems: &mut Problems,
) -> Option<Algorithm> {
    let node = limit.get("algorithm");
    let named = node.and_then(Node::text).map(str::parse::<Algorithm>);
    let algorithm = match named {
        Some(Ok(algorithm)) => algorithm,
        Some(Err(_)) => return None,
        None if is_queue => Algorithm::LeakyBucket,
        None => Algorithm::default_for(&rate),
    };
    if let Some(node) = node
        && is_queue
        && algorithm != Algorithm::LeakyBucket
    {
        problems.report(node.span, format!("{algorithm} has no queue; use leaky_bucket"));
        return None;
    }
    Some(algorithm)
}

/// Why a rate cannot have a queue.
#[derive(Debug, thiserror::Error)]
enum QueueError {
    #[error(
        "a queue of {burst} takes longer than {up_to:?} to drain; use a burst of at most {max}, or omit it"
    )]
    TooLong { burst: u64, up_to: Duration, max: u64 },
    #[error("{}", .0.message())]
    Rate(#[from] RateError),
}

/// Returns the rate with a queue as long as what drains in `up_to`.
fn queue_of(rate: Rate, up_to: Duration) -> Result<Rate, QueueError> {
    let (count, period) = (u128::from(rate.count()), rate.period().as_micros());
    let max = up_to.as_micros() * count / period;
    let max = u64::try_from(max).unwrap_or(u64::MAX).min(u64::from(u32::MAX));
    match rate.burst() {
        Some(burst) if burst <= max => Ok(rate),
        Some(burst) => Err(QueueError::TooLong { burst, up_to, max }),
        None => Ok(rate.with_burst(max.max(1))?),
    }
}

/// Why a class cannot have a share of an amount.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShareError {
    #[error(
        "an adaptive limit has no shares; use \"shedding\", which rejects by class, or a fixed \"max\""
    )]
    Adaptive,
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Returns the share of a class in an amount, at least one.
pub(super) fn share(amount: &Amount, class: &str, parts: u16) -> Result<Amount, ShareError> {
    let part = |n: u64| (u128::from(n) * u128::from(parts) / 10_000).try_into().unwrap_or(u64::MAX);
    match amount {
        Amount::Concurrency { name, rule } => {
            let Permits::Fixed(max) = rule.permits else { return Err(ShareError::Adaptive) };
            let name = format!("{name}~{class}").into();
            let rule = ConcurrencyRule { permits: Permits::Fixed(part(max).max(1)), ..*rule };
            Ok(Amount::Concurrency { name, rule })
        }
        Amount::Rate(limit) => {
            let made = Limit::new(share_rate(limit, parts)?, limit.algorithm())?;
            Ok(Amount::Rate(made.named(&format!("{}~{class}", limit.name()))))
        }
    }
}

fn share_rate(limit: &Limit, parts: u16) -> Result<Rate, LimitError> {
    let (rate, parts) = (limit.rate(), u64::from(parts.max(1)));
    let part = |n: u64| (n.saturating_mul(parts) / 10_000).max(1);
    if !limit.algorithm().has_burst() {
        return Ok(rate.with_count(part(rate.count()))?);
    }
    // A longer period represents the share exactly; it is rounded down only if that overflows.
    let common = gcd(parts, 10_000);
    let period = rate.period().checked_mul(u32::try_from(10_000 / common).unwrap_or(1));
    let exact = period.and_then(|period| Rate::new(rate.count() * (parts / common), period).ok());
    let slower = exact.map_or_else(|| Rate::new(part(rate.count()), rate.period()), Ok)?;
    Ok(slower.with_burst(part(limit.quota()))?)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
