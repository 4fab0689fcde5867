//! A cache of the limits that callers define, so that few requests have to build one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use ratekeeper::{Algorithm, Limit};

use crate::serve::caller_limit::{self, CallerLimitError};

/// The most limits that a thread caches. When the cache is full it is cleared: a caller with so many limits
/// rarely uses one twice.
const CACHED_MAX: usize = 1_024;

/// A limit as a caller writes it.
#[derive(Clone, Copy)]
pub(super) struct LimitSpec<'a> {
    pub(super) rate: &'a str,
    pub(super) algorithm: Option<&'a str>,
    pub(super) name: Option<&'a str>,
}

#[derive(Default)]
struct LimitCache {
    limits: HashMap<Box<str>, Arc<Limit>>,
    /// Reused to build the cache key of each lookup without allocating.
    lookup_key: String,
}

thread_local! {
    static CACHE: RefCell<LimitCache> = RefCell::default();
}

impl LimitSpec<'_> {
    /// Returns the limit, from this thread's cache if it is there.
    pub(super) fn limit(self) -> Result<Arc<Limit>, CallerLimitError> {
        CACHE.with_borrow_mut(|cache| cache.get_or_build(self))
    }

    fn build(self) -> Result<Limit, CallerLimitError> {
        let algorithm = self.algorithm.map(str::parse::<Algorithm>).transpose()?;
        caller_limit::build(self.rate, algorithm, self.name)
    }
}

impl LimitCache {
    fn get_or_build(&mut self, spec: LimitSpec<'_>) -> Result<Arc<Limit>, CallerLimitError> {
        let Self { limits, lookup_key } = self;
        lookup_key.clear();
        // No part of a valid limit contains a zero byte, so that keys are unambiguous.
        for part in [Some(spec.rate), spec.algorithm, spec.name] {
            lookup_key.push_str(part.unwrap_or("\0"));
            lookup_key.push('\0');
        }
        if let Some(limit) = limits.get(lookup_key.as_str()) {
            return Ok(Arc::clone(limit));
        }
        let limit = Arc::new(spec.build()?);
        if limits.len() >= CACHED_MAX {
            limits.clear();
        }
        limits.insert(lookup_key.as_str().into(), Arc::clone(&limit));
        Ok(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(rate: &str) -> LimitSpec<'_> {
        LimitSpec { rate, algorithm: None, name: None }
    }

    #[test]
    fn a_limit_is_built_once_and_different_ones_are_distinct() {
        let cache = &mut LimitCache::default();
        let first = cache.get_or_build(spec("5/s")).unwrap();
        assert!(Arc::ptr_eq(&first, &cache.get_or_build(spec("5/s")).unwrap()));
        let other = LimitSpec { algorithm: Some("fixed_window"), ..spec("5/s") };
        assert_eq!(cache.get_or_build(other).unwrap().to_string(), "fixed_window 5/s");
        let named = LimitSpec { name: Some("fixed_window"), ..spec("5/s") };
        assert_eq!(cache.get_or_build(named).unwrap().name(), "fixed_window");
        assert!(cache.get_or_build(LimitSpec { name: Some(""), ..spec("5/s") }).is_err());
    }

    #[test]
    fn the_cache_is_bounded_and_holds_only_valid_limits() {
        let cache = &mut LimitCache::default();
        for count in 1..=3 * CACHED_MAX {
            cache.get_or_build(spec(&format!("{count}/day"))).unwrap();
            assert!(cache.limits.len() <= CACHED_MAX);
        }
        let before = cache.limits.len();
        assert!(cache.get_or_build(spec("5/fortnight")).is_err());
        assert!(cache.get_or_build(spec(&(" ".repeat(128) + "5/s"))).is_err());
        assert_eq!(cache.limits.len(), before);
    }
}
