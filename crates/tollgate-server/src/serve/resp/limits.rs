//! Limits that have been asked for lately, so that a command need not make its own again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{ALGORITHMS, Algorithm, Limit, LimitError, Rate};

/// The most limits that are kept of either kind. Beyond that, all are forgotten and made again: whoever
/// has so many does not ask for the same ones twice.
const LIMITS_MAX: usize = 1024;
/// The longest text that can be a rate.
const RATE_MAX: usize = 128;

/// The names under which usage is counted. Usage carries over when the numbers of a key change.
const THROTTLE: &str = "cl.throttle";
const RATE: &str = "tg";

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
    /// By algorithm, in the order of the list.
    rates: [HashMap<Box<[u8]>, Arc<Limit>>; ALGORITHMS.len()],
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

    pub(super) fn rate(
        &mut self,
        text: &[u8],
        algorithm: Algorithm,
    ) -> Result<&Arc<Limit>, String> {
        let known = ALGORITHMS.iter().position(|known| *known == algorithm);
        let rates = &mut self.rates[known.unwrap_or_default()];
        if !rates.contains_key(text) {
            let limit = Arc::new(parse(text, algorithm)?);
            if rates.len() >= LIMITS_MAX {
                rates.clear();
            }
            rates.insert(text.into(), limit);
        }
        Ok(&rates[text])
    }
}

impl Throttle {
    fn limit(self) -> Result<Limit, String> {
        let burst = self.max_burst.saturating_add(1);
        let rate = Rate::new(self.count, Duration::from_secs(self.period_s))
            .and_then(|rate| rate.with_burst(burst))
            .map_err(|error| tell(&error.into()))?;
        let limit = Limit::new(rate, Algorithm::TokenBucket).map_err(|error| tell(&error))?;
        Ok(limit.named(THROTTLE))
    }
}

fn parse(text: &[u8], algorithm: Algorithm) -> Result<Limit, String> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= RATE_MAX);
    let text = text.ok_or("the rate is not one such as 100/minute or 5/s burst 10")?;
    let rate = text.parse::<Rate>().map_err(|error| tell(&error.into()))?;
    let limit = Limit::new(rate, algorithm).map_err(|error| tell(&error))?;
    Ok(limit.named(RATE))
}

/// In one line: an error cannot point at anything here.
fn tell(error: &LimitError) -> String {
    match error {
        LimitError::Rate(error) => error.message().to_string(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_made_once() {
        let mut limits = Limits::default();
        let five = Throttle { max_burst: 4, count: 5, period_s: 1 };
        let first = Arc::clone(limits.throttle(five).unwrap());
        limits.throttle(Throttle { max_burst: 0, ..five }).unwrap();
        assert!(Arc::ptr_eq(&first, limits.throttle(five).unwrap()));
        let first = Arc::clone(limits.rate(b"5/s", Algorithm::FixedWindow).unwrap());
        assert!(Arc::ptr_eq(&first, limits.rate(b"5/s", Algorithm::FixedWindow).unwrap()));
        assert!(!Arc::ptr_eq(&first, limits.rate(b"5/s", Algorithm::SlidingLog).unwrap()));
    }

    #[test]
    fn no_more_are_kept_than_the_bound() {
        let mut limits = Limits::default();
        for count in 1..=3 * LIMITS_MAX as u64 {
            limits.throttle(Throttle { max_burst: 1, count, period_s: 60 }).unwrap();
            limits.rate(format!("{count}/day").as_bytes(), Algorithm::default()).unwrap();
        }
        assert!(limits.throttles.len() <= LIMITS_MAX);
        assert!(limits.rates.iter().all(|rates| rates.len() <= LIMITS_MAX));
    }

    #[test]
    fn what_is_no_limit_is_not_kept() {
        let mut limits = Limits::default();
        assert!(limits.rate(b"5/fortnight", Algorithm::default()).is_err());
        assert!(limits.rate(&[b'1'; RATE_MAX + 1], Algorithm::default()).is_err());
        assert!(limits.throttle(Throttle::default()).is_err());
        assert!(limits.throttles.is_empty() && limits.rates.iter().all(HashMap::is_empty));
    }
}
