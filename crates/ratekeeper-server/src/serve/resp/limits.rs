//! Limits that have been asked for lately, so that a command need not make its own again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{ALGORITHMS, Algorithm, Limit, Rate};

use crate::serve::caller_limit::{self, CallerLimitError, DEFAULT_NAME};

/// The most limits that are kept of either kind. Beyond that, all are forgotten and made again: whoever
/// has so many does not ask for the same ones twice.
const LIMITS_MAX: usize = 1024;

/// The three numbers of `CL.THROTTLE`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Throttle {
    pub(super) max_burst: u64,
    pub(super) count: u64,
    pub(super) period_s: u64,
}

/// What a worker remembers.
#[derive(Default)]
pub(super) struct Limits {
    /// Most clients ask for one limit again and again.
    last: Option<(Throttle, Arc<Limit>)>,
    throttles: HashMap<Throttle, Arc<Limit>>,
    /// By algorithm, in the order of the list; the last are those whose rate decides on it.
    rates: [HashMap<Box<[u8]>, Arc<Limit>>; ALGORITHMS.len() + 1],
}

/// A limit as a client writes it.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) rate: &'a [u8],
    pub(super) algorithm: Option<Algorithm>,
    pub(super) name: Option<&'a [u8]>,
}

impl Limits {
    #[inline]
    pub(super) fn throttle(&mut self, numbers: Throttle) -> Result<&Arc<Limit>, String> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != numbers) {
            self.last = Some((numbers, self.throttle_anew(numbers)?));
        }
        Ok(&self.last.as_ref().expect("it has just been set").1)
    }

    fn throttle_anew(&mut self, numbers: Throttle) -> Result<Arc<Limit>, String> {
        if let Some(limit) = self.throttles.get(&numbers) {
            return Ok(Arc::clone(limit));
        }
        let limit = Arc::new(numbers.limit()?);
        if self.throttles.len() >= LIMITS_MAX {
            self.throttles.clear();
        }
        self.throttles.insert(numbers, Arc::clone(&limit));
        Ok(limit)
    }

    pub(super) fn rate(&mut self, asked: Asked<'_>) -> Result<&Arc<Limit>, String> {
        let is_known = |known: &Algorithm| asked.algorithm == Some(*known);
        let rates = ALGORITHMS.iter().position(is_known).unwrap_or(ALGORITHMS.len());
        let rates = &mut self.rates[rates];
        // No rate has a zero byte in it.
        let wanted = match asked.name {
            None => Cow::Borrowed(asked.rate),
            Some(name) => Cow::Owned([asked.rate, b"\0", name].concat()),
        };
        if !rates.contains_key(&*wanted) {
            let limit = Arc::new(asked.limit()?);
            if rates.len() >= LIMITS_MAX {
                rates.clear();
            }
            rates.insert((*wanted).into(), limit);
        }
        Ok(&rates[&*wanted])
    }
}

impl Asked<'_> {
    fn limit(self) -> Result<Limit, String> {
        let rate = std::str::from_utf8(self.rate)
            .map_err(|_| "the rate is not one such as 100/minute or 5/s burst 10")?;
        // What is no text is no name either.
        let name = self.name.map(|name| std::str::from_utf8(name).unwrap_or_default());
        caller_limit::build(rate, self.algorithm, name).map_err(|error| error.to_string())
    }
}

impl Throttle {
    fn limit(self) -> Result<Limit, String> {
        let burst = self.max_burst.saturating_add(1);
        let rate = Rate::new(self.count, Duration::from_secs(self.period_s))
            .and_then(|rate| rate.with_burst(burst))
            .map_err(|error| CallerLimitError::from(error).to_string())?;
        let limit = Limit::new(rate, Algorithm::TokenBucket)
            .map_err(|error| CallerLimitError::from(error).to_string())?;
        Ok(limit.named(DEFAULT_NAME))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(rate: &[u8], algorithm: Algorithm) -> Asked<'_> {
        Asked { rate, algorithm: Some(algorithm), name: None }
    }

    #[test]
    fn a_limit_is_made_once() {
        let mut limits = Limits::default();
        let five = Throttle { max_burst: 4, count: 5, period_s: 1 };
        let first = Arc::clone(limits.throttle(five).unwrap());
        limits.throttle(Throttle { max_burst: 0, ..five }).unwrap();
        assert!(Arc::ptr_eq(&first, limits.throttle(five).unwrap()));
        let first = Arc::clone(limits.rate(asked(b"5/s", Algorithm::FixedWindow)).unwrap());
        assert!(Arc::ptr_eq(&first, limits.rate(asked(b"5/s", Algorithm::FixedWindow)).unwrap()));
        assert!(!Arc::ptr_eq(&first, limits.rate(asked(b"5/s", Algorithm::SlidingLog)).unwrap()));
    }

    #[test]
    fn names_and_algorithms_are_told_apart_and_have_the_defaults_of_http() {
        let mut limits = Limits::default();
        let plain = Asked { rate: b"5/s", algorithm: None, name: None };
        let named = Asked { name: Some(b"exports"), ..plain };
        assert_eq!(limits.rate(named).unwrap().name(), "exports");
        assert_eq!(limits.rate(plain).unwrap().name(), DEFAULT_NAME);
        assert_eq!(limits.rate(plain).unwrap().algorithm(), Algorithm::default());
        let burst = Asked { rate: b"5/s burst 10", ..plain };
        assert_eq!(limits.rate(burst).unwrap().algorithm(), Algorithm::TokenBucket);
        for name in [&b""[..], b"a b", b"\xff"] {
            let wrong = limits.rate(Asked { name: Some(name), ..plain }).unwrap_err();
            assert!(wrong.contains("a name is letters"), "{wrong}");
        }
    }

    #[test]
    fn no_more_are_kept_than_the_bound() {
        let mut limits = Limits::default();
        for count in 1..=3 * LIMITS_MAX as u64 {
            limits.throttle(Throttle { max_burst: 1, count, period_s: 60 }).unwrap();
            limits.rate(asked(format!("{count}/day").as_bytes(), Algorithm::default())).unwrap();
        }
        assert!(limits.throttles.len() <= LIMITS_MAX);
        assert!(limits.rates.iter().all(|rates| rates.len() <= LIMITS_MAX));
    }

    #[test]
    fn what_is_no_limit_is_not_kept() {
        let mut limits = Limits::default();
        assert!(limits.rate(asked(b"5/fortnight", Algorithm::default())).is_err());
        assert!(limits.rate(asked(&[b'1'; 129], Algorithm::default())).is_err());
        assert!(limits.throttle(Throttle::default()).is_err());
        assert!(limits.throttles.is_empty() && limits.rates.iter().all(HashMap::is_empty));
    }
}
