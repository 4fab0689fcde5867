//! Limits that callers define in their requests, over HTTP or the Redis protocol.
//!
//! The same rate, algorithm and name is the same limit whatever the protocol, and its usage is counted once.

use ratekeeper::{Algorithm, Limit, LimitError, Rate, RateError};
use thiserror::Error;

/// The longest text of a rate, in bytes.
const RATE_MAX: usize = 128;
const NAME_MAX: usize = 64;

/// The name of limits without one. Usage is counted under a limit's name, its algorithm and the key; it
/// carries over when the rate changes.
pub(crate) const DEFAULT_NAME: &str = "api";

/// Why a caller's limit is invalid, in one line: a response cannot mark characters of the request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum CallerLimitError {
    #[error("a rate has at most {RATE_MAX} characters, such as \"100/minute\"")]
    RateTooLong,
    #[error("{}", .0.message())]
    Rate(#[source] RateError),
    #[error("{0}")]
    Limit(#[source] LimitError),
    #[error("a name is letters, digits, - _ . / : and at most {NAME_MAX} of them")]
    Name,
}

impl From<LimitError> for CallerLimitError {
    fn from(error: LimitError) -> Self {
        match error {
            LimitError::Rate(error) => Self::Rate(error),
            error => Self::Limit(error),
        }
    }
}

impl From<RateError> for CallerLimitError {
    fn from(error: RateError) -> Self {
        Self::Rate(error)
    }
}

/// Builds a limit from a rate such as `100/minute`. Without an algorithm, a rate with a burst is a token
/// bucket, and any other uses the default algorithm.
///
/// # Errors
///
/// If the rate or the name is invalid, or the algorithm cannot enforce the rate.
pub(crate) fn build(
    rate: &str,
    algorithm: Option<Algorithm>,
    name: Option<&str>,
) -> Result<Limit, CallerLimitError> {
    if rate.len() > RATE_MAX {
        return Err(CallerLimitError::RateTooLong);
    }
    let rate: Rate = rate.parse()?;
    let algorithm = algorithm.unwrap_or_else(|| match rate.burst() {
        Some(_) => Algorithm::TokenBucket,
        None => Algorithm::default(),
    });
    let limit = Limit::new(rate, algorithm)?;
    Ok(limit.named(checked_name(name.unwrap_or(DEFAULT_NAME))?))
}

/// Returns the name if it is valid. Names are sent in response headers, so few characters are allowed.
pub(crate) fn checked_name(name: &str) -> Result<&str, CallerLimitError> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':');
    match !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(is_valid) {
        true => Ok(name),
        false => Err(CallerLimitError::Name),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn errors_are_one_line_and_keep_their_source() {
        let long = " ".repeat(RATE_MAX + 1);
        for (rate, algorithm, name) in [
            ("5/fortnight", None, None),
            ("5/s burst 2", Some(Algorithm::FixedWindow), None),
            ("5/s", None, Some("a b")),
            (long.as_str(), None, None),
        ] {
            let error = build(rate, algorithm, name).unwrap_err();
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            let has_source =
                matches!(error, CallerLimitError::Rate(_) | CallerLimitError::Limit(_));
            assert_eq!(error.source().is_some(), has_source, "{error}");
        }
    }
}
