//! Limits that callers define in their requests, over HTTP or the Redis protocol.
//!
//! The same rate, algorithm and name is the same limit whatever the protocol, and its usage is counted once.

use std::collections::HashMap;
use std::sync::Arc;

use ratekeeper::{ALGORITHMS, Algorithm, Limit, LimitError, Rate, RateError};
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

/// A limit as a caller writes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitSpec<'a> {
    /// A rate such as `100/minute`.
    pub(crate) rate: &'a str,
    /// The one of the rate if `None`.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) name: Option<&'a str>,
}

impl LimitSpec<'_> {
    /// # Errors
    ///
    /// If the rate or the name is invalid, or the algorithm cannot enforce the rate.
    fn build(self) -> Result<Limit, CallerLimitError> {
        if self.rate.len() > RATE_MAX {
            return Err(CallerLimitError::RateTooLong);
        }
        let rate: Rate = self.rate.parse()?;
        let algorithm = self.algorithm.unwrap_or_else(|| Algorithm::default_for(&rate));
        let limit = Limit::new(rate, algorithm)?;
        Ok(limit.named(checked_name(self.name.unwrap_or(DEFAULT_NAME))?))
    }
}

/// The limits that callers used recently, so that few requests have to build one. Each thread has its own.
#[derive(Default)]
pub(crate) struct LimitCache {
    /// By the index of the algorithm; last, those without a named one.
    limits: [HashMap<Box<str>, Arc<Limit>>; ALGORITHMS.len() + 1],
    /// Reused to look up a limit with a name without allocating.
    lookup_key: String,
}

/// The most limits of each map. A full map is cleared: clients use few limits, unless they make them up, and
/// then nothing would be found again. So no eviction order has to be kept on each hit.
pub(crate) const CACHED_MAX: usize = 1_024;

impl LimitCache {
    /// Returns the limit, from the cache if it is there.
    ///
    /// # Errors
    ///
    /// If the rate or the name is invalid, or the algorithm cannot enforce the rate.
    pub(crate) fn get_or_build(
        &mut self,
        spec: LimitSpec<'_>,
    ) -> Result<&Arc<Limit>, CallerLimitError> {
        let Self { limits, lookup_key } = self;
        let index = spec.algorithm.map_or(ALGORITHMS.len(), |algorithm| algorithm as usize);
        let limits = &mut limits[index];
        let key = match spec.name {
            None => spec.rate,
            Some(name) => {
                lookup_key.clear();
                // A valid rate contains no zero byte, so that keys are unambiguous.
                lookup_key.extend([spec.rate, "\0", name]);
                lookup_key.as_str()
            }
        };
        if !limits.contains_key(key) {
            let limit = Arc::new(spec.build()?);
            if limits.len() >= CACHED_MAX {
                limits.clear();
            }
            limits.insert(key.into(), limit);
        }
        Ok(&limits[key])
    }
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
            ("5/calendar day in Europe/Berln", None, None),
            ("5/s burst 2", Some(Algorithm::FixedWindow), None),
            ("5/calendar day", Some(Algorithm::TokenBucket), None),
            ("5/s", None, Some("a b")),
            (long.as_str(), None, None),
        ] {
            let error = LimitSpec { rate, algorithm, name }.build().unwrap_err();
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            let has_source =
                matches!(error, CallerLimitError::Rate(_) | CallerLimitError::Limit(_));
            assert_eq!(error.source().is_some(), has_source, "{error}");
        }
    }

    fn spec(rate: &str) -> LimitSpec<'_> {
        LimitSpec { rate, algorithm: None, name: None }
    }

    #[test]
    fn a_limit_is_built_once_and_different_ones_are_distinct() {
        let mut cache = LimitCache::default();
        let first = Arc::clone(cache.get_or_build(spec("5/s")).unwrap());
        assert!(Arc::ptr_eq(&first, cache.get_or_build(spec("5/s")).unwrap()));
        let other = LimitSpec { algorithm: Some(Algorithm::FixedWindow), ..spec("5/s") };
        assert_eq!(cache.get_or_build(other).unwrap().to_string(), "fixed_window 5/s");
        let named = LimitSpec { name: Some("fixed_window"), ..spec("5/s") };
        assert_eq!(cache.get_or_build(named).unwrap().name(), "fixed_window");
        assert_eq!(cache.get_or_build(spec("5/s")).unwrap().name(), DEFAULT_NAME);
        let burst = cache.get_or_build(spec("5/s burst 10")).unwrap();
        assert_eq!(burst.algorithm(), Algorithm::TokenBucket);
        let calendar = cache.get_or_build(spec("5/Calendar Day")).unwrap();
        assert_eq!(calendar.to_string(), "fixed_window 5/calendar day");
        for name in ["", "a b"] {
            assert!(cache.get_or_build(LimitSpec { name: Some(name), ..spec("5/s") }).is_err());
        }
    }

    #[test]
    fn the_cache_is_bounded_and_holds_only_valid_limits() {
        let mut cache = LimitCache::default();
        let cached = |cache: &LimitCache| cache.limits[ALGORITHMS.len()].len();
        for count in 1..=3 * CACHED_MAX {
            cache.get_or_build(spec(&format!("{count}/day"))).unwrap();
            assert!(cached(&cache) <= CACHED_MAX);
        }
        let before = cached(&cache);
        assert!(cache.get_or_build(spec("5/fortnight")).is_err());
        assert!(cache.get_or_build(spec(&(" ".repeat(128) + "5/s"))).is_err());
        assert_eq!(cached(&cache), before);
    }
}
