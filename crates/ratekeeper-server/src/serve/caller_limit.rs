//! Limits that callers bring along, whatever the protocol: the same rate, algorithm and name is the same
//! limit, and counts once.

use ratekeeper::{Algorithm, Limit, LimitError, Rate, RateError};

/// The longest text that can be a rate.
const RATE_MAX: usize = 128;

/// The name of limits that are given none. Usage is counted under a limit's name, its algorithm and the key;
/// it carries over when the numbers change.
pub(crate) const DEFAULT_NAME: &str = "api";

/// Builds a limit of a rate such as `100/minute`. Without an algorithm, a rate with a burst is a token
/// bucket, and others are the default.
///
/// # Errors
///
/// Says in one line what is wrong and what would do.
pub(crate) fn build(
    rate: &str,
    algorithm: Option<Algorithm>,
    name: Option<&str>,
) -> Result<Limit, String> {
    if rate.len() > RATE_MAX {
        return Err(format!("a rate has at most {RATE_MAX} characters, such as \"100/minute\""));
    }
    let rate: Rate = rate.parse().map_err(|error: RateError| error.message().to_string())?;
    let algorithm = algorithm.unwrap_or_else(|| match rate.burst() {
        Some(_) => Algorithm::TokenBucket,
        None => Algorithm::default(),
    });
    let limit = Limit::new(rate, algorithm).map_err(|error| explain(&error))?;
    Ok(limit.named(checked_name(name.unwrap_or(DEFAULT_NAME))?))
}

/// In one line: an error cannot point at anything here.
pub(crate) fn explain(error: &LimitError) -> String {
    match error {
        LimitError::Rate(error) => error.message().to_string(),
        error => error.to_string(),
    }
}

/// Names are answered in headers.
pub(crate) fn checked_name(name: &str) -> Result<&str, String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':');
    match !name.is_empty() && name.len() <= 64 && name.chars().all(is_fine) {
        true => Ok(name),
        false => Err("a name is letters, digits, - _ . / : and at most 64 of them".into()),
    }
}
