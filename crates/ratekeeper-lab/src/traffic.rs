//! Made-up arrivals: the same for the same seed, from time 0 on.
//!
//! Time 0 is the epoch, to which windows are aligned. Floats shape the traffic; they never decide.

use std::time::Duration;

use ratekeeper_core::{Cost, Micros, Rate};

use crate::arrival::Arrival;
use crate::random::Random;

/// The shape of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Evenly spaced.
    Steady,
    /// Everything of three periods at once, then quiet.
    Burst,
    /// The whole limit just before a window turns, and again just after.
    Boundary,
    /// Independent callers: exponential gaps.
    Poisson,
    /// A calm rate, and in the middle third one partner at forty times that.
    FlashSale,
}

/// Every pattern, for help and tests to walk.
pub const PATTERNS: &[Pattern] =
    &[Pattern::Steady, Pattern::Burst, Pattern::Boundary, Pattern::Poisson, Pattern::FlashSale];

impl Pattern {
    /// The name, as written on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Burst => "burst",
            Self::Boundary => "boundary",
            Self::Poisson => "poisson",
            Self::FlashSale => "flash-sale",
        }
    }
}

/// The key of the caller that goes wild in a flash sale.
const PARTNER: &str = "partner";
const PARTNER_TIMES: u64 = 40;
/// A burst comes once in so many periods of the limit.
const BURST_PERIODS: u64 = 3;

/// A plan for arrivals.
#[derive(Clone, Debug)]
pub struct Traffic {
    pattern: Pattern,
    limit: Rate,
    offered: Step,
    duration_us: u64,
    keys: u64,
    seed: u64,
}

/// So many per so many microseconds, evenly spaced.
#[derive(Clone, Copy, Debug)]
struct Step {
    count: u64,
    period_us: u64,
}

impl Step {
    fn new(rate: Rate) -> Self {
        Self { count: rate.count(), period_us: micros(rate.period()) }
    }

    fn times(self, n: u64) -> Self {
        Self { count: self.count.saturating_mul(n), ..self }
    }

    /// When the `n`th comes, counted from 0.
    fn at(self, n: u64) -> u64 {
        let us = u128::from(n) * u128::from(self.period_us) / u128::from(self.count);
        u64::try_from(us).unwrap_or(u64::MAX)
    }

    fn arrivals(self, start_us: u64, end_us: u64) -> impl Iterator<Item = (u64, u64)> {
        (0..)
            .map(move |n| (start_us.saturating_add(self.at(n)), n))
            .take_while(move |(at_us, _)| *at_us < end_us)
    }
}

impl Traffic {
    /// Traffic for one key under `limit`: at twice its rate, or half of it in a flash sale.
    pub fn new(pattern: Pattern, limit: Rate, duration: Duration) -> Self {
        let Step { count, period_us } = Step::new(limit);
        let offered = match pattern {
            Pattern::FlashSale => Step { count, period_us: 2 * period_us },
            _ => Step { count: 2 * count, period_us },
        };
        let duration_us = micros(duration);
        Self { pattern, limit, offered, duration_us, keys: 1, seed: 1 }
    }

    /// The same at another rate for each key. A boundary pattern has no rate: it offers the limit.
    #[must_use]
    pub fn with_rate(self, rate: Rate) -> Self {
        Self { offered: Step::new(rate), ..self }
    }

    /// The same for so many keys, each with the full rate. At least 1.
    #[must_use]
    pub fn with_keys(self, keys: u32) -> Self {
        Self { keys: u64::from(keys).max(1), ..self }
    }

    /// The same with other random numbers.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// How long it goes on.
    pub fn duration(&self) -> Duration {
        Duration::from_micros(self.duration_us)
    }

    /// The arrivals, in the order of time.
    pub fn arrivals(&self) -> Box<dyn Iterator<Item = Arrival>> {
        match self.pattern {
            Pattern::Steady => Box::new(self.steady()),
            Pattern::Burst => Box::new(self.burst()),
            Pattern::Boundary => Box::new(self.boundary()),
            Pattern::Poisson => Box::new(self.poisson()),
            Pattern::FlashSale => Box::new(self.flash_sale()),
        }
    }

    fn steady(&self) -> impl Iterator<Item = Arrival> + use<> {
        let keys = self.keys;
        let step = self.offered.times(keys);
        step.arrivals(0, self.duration_us).map(move |(at_us, n)| numbered(at_us, n % keys))
    }

    fn burst(&self) -> impl Iterator<Item = Arrival> + use<> {
        let keys = self.keys;
        let gap_us = BURST_PERIODS * micros(self.limit.period());
        let Step { count, period_us } = self.offered;
        let size = u128::from(count) * u128::from(gap_us) / u128::from(period_us);
        let size = u64::try_from(size).unwrap_or(u64::MAX).max(1);
        let starts = Step { count: 1, period_us: gap_us }.arrivals(0, self.duration_us);
        starts.flat_map(move |(at_us, _)| at_once(at_us, size, keys))
    }

    fn boundary(&self) -> impl Iterator<Item = Arrival> + use<> {
        let (keys, end_us) = (self.keys, self.duration_us);
        let size = self.limit.burst().unwrap_or(self.limit.count());
        let period_us = micros(self.limit.period());
        let margin_us = (period_us / 1_000).max(1);
        // Every second boundary, so that one pair is over before the next begins.
        let boundaries = Step { count: 1, period_us: 2 * period_us }.arrivals(period_us, end_us);
        boundaries
            .flat_map(move |(at_us, _)| [at_us - margin_us, at_us + margin_us])
            .filter(move |at_us| *at_us < end_us)
            .flat_map(move |at_us| at_once(at_us, size, keys))
    }

    fn poisson(&self) -> impl Iterator<Item = Arrival> + use<> {
        let (keys, end_us) = (self.keys, self.duration_us as f64);
        let Step { count, period_us } = self.offered.times(keys);
        let mean_us = period_us as f64 / count as f64;
        let mut random = Random::new(self.seed);
        let mut at_us = 0.0;
        std::iter::from_fn(move || {
            at_us += random.gap() * mean_us;
            (at_us < end_us).then(|| numbered(at_us as u64, random.below(keys)))
        })
    }

    fn flash_sale(&self) -> impl Iterator<Item = Arrival> + use<> {
        let third_us = self.duration_us / 3;
        let mut calm = self.steady().peekable();
        let wild = self.offered.times(PARTNER_TIMES).arrivals(third_us, 2 * third_us);
        let mut wild = wild.map(|(at_us, _)| arrival(at_us, PARTNER.to_string())).peekable();
        std::iter::from_fn(move || match (calm.peek(), wild.peek()) {
            (Some(first), Some(other)) if other.at < first.at => wild.next(),
            (None, _) => wild.next(),
            _ => calm.next(),
        })
    }
}

/// `size` for each of `keys`, all at one moment, key by turns.
fn at_once(at_us: u64, size: u64, keys: u64) -> impl Iterator<Item = Arrival> {
    (0..size).flat_map(move |_| (0..keys).map(move |key| numbered(at_us, key)))
}

fn numbered(at_us: u64, key: u64) -> Arrival {
    arrival(at_us, format!("key-{}", key + 1))
}

fn arrival(at_us: u64, key: String) -> Arrival {
    Arrival { at: Micros::new(at_us), key, cost: Cost::ONE }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(pattern: Pattern, duration_s: u64) -> Traffic {
        Traffic::new(pattern, "10/s".parse().unwrap(), Duration::from_secs(duration_s))
    }

    #[test]
    fn every_pattern_is_in_order_in_bounds_and_repeatable() {
        for pattern in PATTERNS {
            let traffic = traffic(*pattern, 10).with_keys(3).with_seed(7);
            let arrivals: Vec<_> = traffic.arrivals().collect();
            assert!(arrivals.is_sorted_by_key(|arrival| arrival.at), "{pattern:?}");
            assert!(arrivals.iter().all(|arrival| arrival.at.get() < 10_000_000), "{pattern:?}");
            assert!(arrivals.len() > 100, "{pattern:?}");
            assert!(traffic.arrivals().eq(arrivals), "{pattern:?}");
        }
    }

    #[test]
    fn a_seed_changes_what_is_random_and_nothing_else() {
        for pattern in PATTERNS {
            let of_seed = |seed| traffic(*pattern, 10).with_seed(seed).arrivals();
            assert_eq!(of_seed(1).eq(of_seed(2)), *pattern != Pattern::Poisson, "{pattern:?}");
        }
    }

    #[test]
    fn the_rate_is_kept_by_each_key() {
        for pattern in [Pattern::Steady, Pattern::Burst, Pattern::Poisson] {
            let traffic = traffic(pattern, 300).with_keys(4).with_rate("7/s".parse().unwrap());
            let mine = traffic.arrivals().filter(|arrival| arrival.key == "key-3").count();
            assert!((2_000..2_200).contains(&mine), "{pattern:?}: {mine}");
        }
    }

    #[test]
    fn a_partner_goes_wild_in_the_middle_third() {
        let arrivals: Vec<_> = traffic(Pattern::FlashSale, 9).arrivals().collect();
        let (wild, calm): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| arrival.key == PARTNER);
        assert_eq!((wild.len(), calm.len()), (600, 45));
        assert!(wild.iter().all(|arrival| (3_000_000..6_000_000).contains(&arrival.at.get())));
    }

    #[test]
    fn a_boundary_has_the_limit_on_both_sides() {
        let times: Vec<_> = traffic(Pattern::Boundary, 2).arrivals().map(|a| a.at.get()).collect();
        assert_eq!(times, [[999_000; 10], [1_001_000; 10]].concat());
    }
}
