//! Generated arrivals: deterministic for a seed, from a start on.
//!
//! Without a start it is the epoch, to which windows are aligned: 1970-01-01 0:00 in UTC. Floating-point numbers are used for the
//! arrival times only, not for decisions.

use std::ops::Range;
use std::time::Duration;

use ratekeeper_core::{Cost, Micros, Rate};

use crate::arrival::Arrival;
use crate::random::Random;

/// A pattern of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Evenly spaced.
    Steady,
    /// The requests of three periods at once, then none until the next burst.
    Burst,
    /// The whole limit just before a window boundary, and again just after.
    Boundary,
    /// A Poisson process: independent callers, exponential gaps.
    Poisson,
    /// A steady rate and, in the middle third, one more key at forty times that rate.
    FlashSale,
}

/// All patterns.
pub const PATTERNS: &[Pattern] =
    &[Pattern::Steady, Pattern::Burst, Pattern::Boundary, Pattern::Poisson, Pattern::FlashSale];

impl Pattern {
    /// Returns the name, as written on the command line.
    #[must_use]
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

/// The key that causes the spike of a flash sale.
const PARTNER: &str = "partner";
const PARTNER_FACTOR: u64 = 40;
/// The number of periods of the limit from one burst to the next.
const BURST_PERIODS: u64 = 3;

/// A generator of arrivals.
#[derive(Clone, Debug)]
pub struct Traffic {
    pattern: Pattern,
    limit: Rate,
    offered: EvenRate,
    start_us: u64,
    duration_us: u64,
    keys: u64,
    seed: u64,
}

/// A rate of evenly spaced requests. Unlike [`Rate`], it has no upper bound.
#[derive(Clone, Copy, Debug)]
struct EvenRate {
    count: u64,
    period_us: u64,
}

impl EvenRate {
    fn new(rate: Rate) -> Self {
        Self { count: rate.count(), period_us: micros(rate.period()) }
    }

    fn times(self, n: u64) -> Self {
        Self { count: self.count.saturating_mul(n), ..self }
    }

    /// Returns the time of the `n`th request, counted from 0.
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
    /// Returns traffic of one key for a limit: at twice its rate, or at half of it in a flash sale.
    #[must_use]
    pub fn new(pattern: Pattern, limit: Rate, duration: Duration) -> Self {
        let EvenRate { count, period_us } = EvenRate::new(limit);
        let offered = match pattern {
            Pattern::FlashSale => EvenRate { count, period_us: 2 * period_us },
            _ => EvenRate { count: 2 * count, period_us },
        };
        let duration_us = micros(duration);
        Self { pattern, limit, offered, start_us: 0, duration_us, keys: 1, seed: 1 }
    }

    /// Sets the rate of each key. The boundary pattern ignores it and offers the limit.
    #[must_use]
    pub fn with_rate(self, rate: Rate) -> Self {
        Self { offered: EvenRate::new(rate), ..self }
    }

    /// Sets the number of keys, at least 1. Each has the full rate.
    #[must_use]
    pub fn with_keys(self, keys: u32) -> Self {
        Self { keys: u64::from(keys).max(1), ..self }
    }

    /// Sets the seed of the random numbers.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets when the traffic starts, instead of at the epoch.
    #[must_use]
    pub fn with_start(self, start: Micros) -> Self {
        Self { start_us: start.get(), ..self }
    }

    /// Returns from when on the traffic lasts, and until when.
    #[must_use]
    pub fn span(&self) -> Range<Micros> {
        Micros::new(self.start_us)..Micros::new(self.start_us.saturating_add(self.duration_us))
    }

    /// Returns the arrivals, sorted by time.
    #[must_use]
    pub fn arrivals(&self) -> Box<dyn Iterator<Item = Arrival>> {
        let start_us = self.start_us;
        let later = move |arrival: Arrival| {
            let at = Micros::new(start_us.saturating_add(arrival.at.get()));
            Arrival { at, ..arrival }
        };
        match self.pattern {
            Pattern::Steady => Box::new(self.steady().map(later)),
            Pattern::Burst => Box::new(self.burst().map(later)),
            Pattern::Boundary => Box::new(self.boundary().map(later)),
            Pattern::Poisson => Box::new(self.poisson().map(later)),
            Pattern::FlashSale => Box::new(self.flash_sale().map(later)),
        }
    }

    fn steady(&self) -> impl Iterator<Item = Arrival> + use<> {
        let keys = self.keys;
        let rate = self.offered.times(keys);
        rate.arrivals(0, self.duration_us).map(move |(at_us, n)| numbered(at_us, n % keys))
    }

    fn burst(&self) -> impl Iterator<Item = Arrival> + use<> {
        let keys = self.keys;
        let gap_us = BURST_PERIODS * micros(self.limit.period());
        let EvenRate { count, period_us } = self.offered;
        let size = u128::from(count) * u128::from(gap_us) / u128::from(period_us);
        let size = u64::try_from(size).unwrap_or(u64::MAX).max(1);
        let starts = EvenRate { count: 1, period_us: gap_us }.arrivals(0, self.duration_us);
        starts.flat_map(move |(at_us, _)| at_once(at_us, size, keys))
    }

    fn boundary(&self) -> impl Iterator<Item = Arrival> + use<> {
        let (keys, end_us) = (self.keys, self.duration_us);
        let size = self.limit.burst().unwrap_or(self.limit.count());
        let period_us = micros(self.limit.period());
        let margin_us = (period_us / 1_000).max(1);
        // Every second boundary, so that one pair of bursts does not affect the next.
        self.boundaries()
            .step_by(2)
            .take_while(move |at_us| *at_us < end_us)
            .flat_map(move |at_us| [at_us.saturating_sub(margin_us), at_us + margin_us])
            .filter(move |at_us| *at_us < end_us)
            .flat_map(move |at_us| at_once(at_us, size, keys))
    }

    /// Returns when windows end, from the start of the traffic on and without an end.
    fn boundaries(&self) -> impl Iterator<Item = u64> + use<> {
        let (start_us, period_us) = (self.start_us, micros(self.limit.period()));
        let calendar = self.limit.calendar();
        let end_of = move |at_us: u64| match calendar {
            None => (at_us / period_us + 1).saturating_mul(period_us),
            Some(period) => period.window_of(Micros::new(at_us)).end.get(),
        };
        let ends = std::iter::successors(Some(end_of(start_us)), move |at_us| Some(end_of(*at_us)));
        ends.map(move |at_us| at_us - start_us)
    }

    fn poisson(&self) -> impl Iterator<Item = Arrival> + use<> {
        let (keys, end_us) = (self.keys, self.duration_us as f64);
        let EvenRate { count, period_us } = self.offered.times(keys);
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
        let mut steady = self.steady().peekable();
        let spike = self.offered.times(PARTNER_FACTOR).arrivals(third_us, 2 * third_us);
        let mut spike = spike.map(|(at_us, _)| arrival(at_us, PARTNER.to_string())).peekable();
        std::iter::from_fn(move || match (steady.peek(), spike.peek()) {
            (Some(first), Some(other)) if other.at < first.at => spike.next(),
            (None, _) => spike.next(),
            _ => steady.next(),
        })
    }
}

/// Returns `size` arrivals of each key, all at the same time, with the keys interleaved.
fn at_once(at_us: u64, size: u64, keys: u64) -> impl Iterator<Item = Arrival> {
    (0..size).flat_map(move |_| (0..keys).map(move |key| numbered(at_us, key)))
}

fn numbered(at_us: u64, key: u64) -> Arrival {
    arrival(at_us, format!("key-{}", key + 1))
}

fn arrival(at_us: u64, key: String) -> Arrival {
    Arrival { at: Micros::new(at_us), key, cost: Cost::ONE }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(pattern: Pattern, duration_s: u64) -> Traffic {
        Traffic::new(pattern, "10/s".parse().unwrap(), Duration::from_secs(duration_s))
    }

    #[test]
    fn every_pattern_is_sorted_bounded_and_repeatable() {
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
    fn a_seed_changes_only_the_random_pattern() {
        for pattern in PATTERNS {
            let of_seed = |seed| traffic(*pattern, 10).with_seed(seed).arrivals();
            assert_eq!(of_seed(1).eq(of_seed(2)), *pattern != Pattern::Poisson, "{pattern:?}");
        }
    }

    #[test]
    fn each_key_has_the_full_rate() {
        for pattern in [Pattern::Steady, Pattern::Burst, Pattern::Poisson] {
            let traffic = traffic(pattern, 300).with_keys(4).with_rate("7/s".parse().unwrap());
            let count = traffic.arrivals().filter(|arrival| arrival.key == "key-3").count();
            assert!((2_000..2_200).contains(&count), "{pattern:?}: {count}");
        }
    }

    #[test]
    fn a_flash_sale_has_a_spike_in_the_middle_third() {
        let arrivals: Vec<_> = traffic(Pattern::FlashSale, 9).arrivals().collect();
        let (spike, steady): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| arrival.key == PARTNER);
        assert_eq!((spike.len(), steady.len()), (600, 45));
        assert!(spike.iter().all(|arrival| (3_000_000..6_000_000).contains(&arrival.at.get())));
    }

    #[test]
    fn traffic_that_starts_later_is_the_same_and_its_boundaries_are_those_of_its_time() {
        let start = Micros::new(1_700_000_000_400_000);
        for pattern in PATTERNS {
            let early: Vec<_> = traffic(*pattern, 10).arrivals().collect();
            let late = traffic(*pattern, 10).with_start(start);
            assert_eq!(late.span().start, start);
            let late: Vec<_> = late.arrivals().map(|one| one.at.get() - start.get()).collect();
            if *pattern == Pattern::Boundary {
                assert_eq!(late[..20], [[599_000; 10], [601_000; 10]].concat());
            } else {
                assert!(early.iter().map(|one| one.at.get()).eq(late), "{pattern:?}");
            }
        }
    }

    #[test]
    fn the_boundary_pattern_follows_the_calendar() {
        let rate = "1/calendar month in Europe/Berlin".parse().unwrap();
        let day = Duration::from_secs(86_400);
        let traffic = Traffic::new(Pattern::Boundary, rate, 120 * day);
        let hours = traffic.arrivals().map(|arrival| arrival.at.get() as f64 / 3_600e6);
        let hours: Vec<_> = hours.map(|hours| hours.round() as u64).collect();
        // The ends of January and March at midnight in Berlin, 43 minutes before and after.
        let ends = [31 * 24 - 1, (31 + 28 + 31) * 24 - 1];
        assert_eq!(hours, ends.map(|end| [end - 1, end + 1]).concat());
    }

    #[test]
    fn the_boundary_pattern_has_the_limit_on_both_sides() {
        let times: Vec<_> = traffic(Pattern::Boundary, 2).arrivals().map(|a| a.at.get()).collect();
        assert_eq!(times, [[999_000; 10], [1_001_000; 10]].concat());
    }
}
