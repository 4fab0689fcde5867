//! The limits of recent commands, so that a command does not build its limit again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{ALGORITHMS, Algorithm, Limit, Rate};

use super::commands::CommandError;
use crate::serve::caller_limit::{self, CallerLimitError, DEFAULT_NAME};

/// The most limits of each map. A full map is cleared: clients use few limits, unless they make them up, and
/// then nothing would be found again. So no eviction order has to be kept on each hit.
const LIMITS_MAX: usize = 1024;

/// The three numbers of `CL.THROTTLE`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct ThrottleSpec {
    pub(super) max_burst: u64,
    pub(super) count: u64,
    pub(super) period_s: u64,
}

/// A limit as the options of a command describe it.
#[derive(Clone, Copy)]
pub(super) struct LimitSpec<'a> {
    pub(super) rate: &'a [u8],
    pub(super) algorithm: Option<Algorithm>,
    pub(super) name: Option<&'a [u8]>,
}

/// The limits of recent commands of one worker.
#[derive(Default)]
pub(super) struct LimitCache {
    /// Most clients use one limit only.
    last: Option<(ThrottleSpec, Arc<Limit>)>,
    throttles: HashMap<ThrottleSpec, Arc<Limit>>,
    /// By the index of the algorithm; the last map is for limits whose rate determines it.
    rates: [HashMap<Box<[u8]>, Arc<Limit>>; ALGORITHMS.len() + 1],
}

impl LimitCache {
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
        if self.throttles.len() >= LIMITS_MAX {
            self.throttles.clear();
        }
        self.throttles.insert(spec, Arc::clone(&limit));
        Ok(limit)
    }

    /// Returns the limit of a rate.
    pub(super) fn rate(&mut self, spec: LimitSpec<'_>) -> Result<&Arc<Limit>, CommandError> {
        let is_algorithm = |known: &Algorithm| spec.algorithm == Some(*known);
        let index = ALGORITHMS.iter().position(is_algorithm).unwrap_or(ALGORITHMS.len());
        let rates = &mut self.rates[index];
        // A valid rate contains no zero byte.
        let key = match spec.name {
            None => Cow::Borrowed(spec.rate),
            Some(name) => Cow::Owned([spec.rate, b"\0", name].concat()),
        };
        if !rates.contains_key(&*key) {
            let limit = Arc::new(spec.build()?);
            if rates.len() >= LIMITS_MAX {
                rates.clear();
            }
            rates.insert((*key).into(), limit);
        }
        Ok(&rates[&*key])
    }
}

impl LimitSpec<'_> {
    fn build(self) -> Result<Limit, CommandError> {
        let rate = std::str::from_utf8(self.rate).map_err(|_| CommandError::RateNotText)?;
        // The empty name is invalid too.
        let name = self.name.map(|name| std::str::from_utf8(name).unwrap_or_default());
        caller_limit::build(rate, self.algorithm, name).map_err(CommandError::from)
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

    fn spec_of(rate: &[u8], algorithm: Algorithm) -> LimitSpec<'_> {
        LimitSpec { rate, algorithm: Some(algorithm), name: None }
    }

    #[test]
    fn a_limit_is_built_once() {
        let mut limits = LimitCache::default();
        let five = ThrottleSpec { max_burst: 4, count: 5, period_s: 1 };
        let first = Arc::clone(limits.throttle(five).unwrap());
        limits.throttle(ThrottleSpec { max_burst: 0, ..five }).unwrap();
        assert!(Arc::ptr_eq(&first, limits.throttle(five).unwrap()));
        let first = Arc::clone(limits.rate(spec_of(b"5/s", Algorithm::FixedWindow)).unwrap());
        assert!(Arc::ptr_eq(&first, limits.rate(spec_of(b"5/s", Algorithm::FixedWindow)).unwrap()));
        assert!(!Arc::ptr_eq(&first, limits.rate(spec_of(b"5/s", Algorithm::SlidingLog)).unwrap()));
    }

    #[test]
    fn names_and_algorithms_are_separate_and_have_the_defaults_of_http() {
        let mut limits = LimitCache::default();
        let plain = LimitSpec { rate: b"5/s", algorithm: None, name: None };
        let named = LimitSpec { name: Some(b"exports"), ..plain };
        assert_eq!(limits.rate(named).unwrap().name(), "exports");
        assert_eq!(limits.rate(plain).unwrap().name(), DEFAULT_NAME);
        assert_eq!(limits.rate(plain).unwrap().algorithm(), Algorithm::default());
        let burst = LimitSpec { rate: b"5/s burst 10", ..plain };
        assert_eq!(limits.rate(burst).unwrap().algorithm(), Algorithm::TokenBucket);
        for name in [&b""[..], b"a b", b"\xff"] {
            let error = limits.rate(LimitSpec { name: Some(name), ..plain }).unwrap_err();
            assert!(error.to_string().contains("a name is letters"), "{error}");
        }
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut limits = LimitCache::default();
        for count in 1..=3 * LIMITS_MAX as u64 {
            limits.throttle(ThrottleSpec { max_burst: 1, count, period_s: 60 }).unwrap();
            limits.rate(spec_of(format!("{count}/day").as_bytes(), Algorithm::default())).unwrap();
        }
        assert!(limits.throttles.len() <= LIMITS_MAX);
        assert!(limits.rates.iter().all(|rates| rates.len() <= LIMITS_MAX));
    }

    #[test]
    fn invalid_limits_are_not_cached() {
        let mut limits = LimitCache::default();
        assert!(limits.rate(spec_of(b"5/fortnight", Algorithm::default())).is_err());
        assert!(limits.rate(spec_of(&[b'1'; 129], Algorithm::default())).is_err());
        assert!(limits.throttle(ThrottleSpec::default()).is_err());
        assert!(limits.throttles.is_empty() && limits.rates.iter().all(HashMap::is_empty));
    }
}
