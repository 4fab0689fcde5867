//! The limits of recent commands, so that a command does not build its limit again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper::{Algorithm, Limit, Rate};

use super::commands::CommandError;
use crate::serve::caller_limit::{
    CACHED_MAX, CallerLimitError, DEFAULT_NAME, LimitCache, LimitSpec,
};

/// The three numbers of `CL.THROTTLE`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct ThrottleSpec {
    pub(super) max_burst: u64,
    pub(super) count: u64,
    pub(super) period_s: u64,
}

/// The limits of recent commands of one worker.
#[derive(Default)]
pub(super) struct CommandLimits {
    /// Most clients use one limit only.
    last: Option<(ThrottleSpec, Arc<Limit>)>,
    throttles: HashMap<ThrottleSpec, Arc<Limit>>,
    rates: LimitCache,
}

impl CommandLimits {
    /// Returns the limit of `CL.THROTTLE`.
    #[inline]
    pub(super) fn throttle(&mut self, spec: ThrottleSpec) -> Result<&Arc<Limit>, CommandError> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != spec) {
            self.last = Some((spec, self.throttle_slow(spec)?));
        }
        Ok(&self.last.as_ref().expect("set above").1)
    }

    fn throttle_slow(&mut self, spec: ThrottleSpec) -> Result<Arc<Limit>, CommandError> {
        if let Some(limit) = self.throttles.get(&spec) {
            return Ok(Arc::clone(limit));
        }
        let limit = Arc::new(spec.build()?);
        if self.throttles.len() >= CACHED_MAX {
            self.throttles.clear();
        }
        self.throttles.insert(spec, Arc::clone(&limit));
        Ok(limit)
    }

    /// Returns the limit of the options of a command.
    pub(super) fn rate(
        &mut self,
        rate: &[u8],
        algorithm: Option<Algorithm>,
        name: Option<&[u8]>,
    ) -> Result<&Arc<Limit>, CommandError> {
        let rate = std::str::from_utf8(rate).map_err(|_| CommandError::RateNotText)?;
        // The empty name is invalid too.
        let name = name.map(|name| std::str::from_utf8(name).unwrap_or_default());
        Ok(self.rates.get_or_build(LimitSpec { rate, algorithm, name })?)
    }
}

impl ThrottleSpec {
    fn build(self) -> Result<Limit, CommandError> {
        let burst = self.max_burst.saturating_add(1);
        let limit = Rate::new(self.count, Duration::from_secs(self.period_s))
            .and_then(|rate| rate.with_burst(burst))
            .map_err(Into::into)
            .and_then(|rate| Limit::new(rate, Algorithm::TokenBucket));
        let limit = limit.map_err(|error| CommandError::from(CallerLimitError::from(error)))?;
        Ok(limit.named(DEFAULT_NAME))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_built_once() {
        let mut limits = CommandLimits::default();
        let five = ThrottleSpec { max_burst: 4, count: 5, period_s: 1 };
        let first = Arc::clone(limits.throttle(five).unwrap());
        limits.throttle(ThrottleSpec { max_burst: 0, ..five }).unwrap();
        assert!(Arc::ptr_eq(&first, limits.throttle(five).unwrap()));
    }

    #[test]
    fn a_name_or_rate_that_is_not_text_is_invalid() {
        let mut limits = CommandLimits::default();
        assert_eq!(limits.rate(b"5/s", None, Some(b"exports")).unwrap().name(), "exports");
        for name in [&b""[..], b"a b", b"\xff"] {
            let error = limits.rate(b"5/s", None, Some(name)).unwrap_err();
            assert!(error.to_string().contains("a name is letters"), "{error}");
        }
        assert!(limits.rate(b"5/\xff", None, None).is_err());
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut limits = CommandLimits::default();
        for count in 1..=3 * CACHED_MAX as u64 {
            limits.throttle(ThrottleSpec { max_burst: 1, count, period_s: 60 }).unwrap();
        }
        assert!(limits.throttles.len() <= CACHED_MAX);
    }

    #[test]
    fn invalid_limits_are_not_cached() {
        let mut limits = CommandLimits::default();
        assert!(limits.throttle(ThrottleSpec::default()).is_err());
        assert!(limits.throttles.is_empty());
    }
}
