//! The smallest limit that refuses no more than a share of the requests or callers of a log.

use std::collections::BTreeMap;
use std::str::FromStr;

use ratekeeper_core::{Algorithm, Limit, Rate};
use serde::Serialize;

use super::logged::{LoggedTraffic, Refusals};
use super::{PlanError, Ratio, Share};
use crate::random::Random;

/// Samples for the band, if there are too few days.
const SAMPLES: usize = 100;
const SAMPLE_SEED: u64 = 1;
/// With fewer days than this, the band is of samples.
const DAYS_MIN: usize = 3;
/// The most callers that are listed.
const LISTED: usize = 10;
/// The largest count or burst that is tried.
const COUNT_MAX: u64 = u32::MAX as u64;

/// What may be refused, such as `0.1%` of the requests or `0.1% of keys`.
///
/// ```
/// use ratekeeper_lab::plan::Tolerance;
///
/// assert_eq!("0.1% of keys".parse::<Tolerance>()?.to_string(), "0.1% of keys");
/// assert_eq!("0.1%".parse::<Tolerance>()?.to_string(), "0.1% of requests");
/// # Ok::<(), ratekeeper_lab::plan::PlanError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// `None` if nothing may be refused.
    share: Option<Share>,
    of_keys: bool,
}

impl FromStr for Tolerance {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let (share, of) = text.split_once(" of ").unwrap_or((text, "requests"));
        let of_keys = match of.trim() {
            "keys" => true,
            "requests" => false,
            _ => return Err(PlanError::Tolerance),
        };
        let share = match share.trim() {
            "0%" => None,
            share => Some(share.parse().map_err(|_| PlanError::Tolerance)?),
        };
        Ok(Self { share, of_keys })
    }
}

impl std::fmt::Display for Tolerance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let share = self.share.map_or("0%".to_string(), |share| share.to_string());
        write!(f, "{share} of {}", if self.of_keys { "keys" } else { "requests" })
    }
}

impl Tolerance {
    /// Returns whether so much may be refused; each key counts as often as it is in the sample.
    fn allows(self, refusals: &Refusals, requests: &[u32], weights: Option<&[u32]>) -> bool {
        let weight = |key: usize| weights.map_or(1, |weights| u64::from(weights[key]));
        let (mut part, mut whole) = (0, 0);
        for (key, refused) in refusals.by_key.iter().enumerate() {
            let (of_part, of_whole) = match self.of_keys {
                true => (u64::from(*refused > 0), 1),
                false => (u64::from(*refused), u64::from(requests[key])),
            };
            part += of_part * weight(key);
            whole += of_whole * weight(key);
        }
        let allowed = self.share.map_or(Ratio::ZERO, |share| share.of(Ratio::whole(whole)));
        Ratio::whole(part) <= allowed
    }
}

/// Which number is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Searched {
    /// The count per period. The burst of a bucket is as stated, or the count.
    Count {
        /// The rate whose period is meant.
        period: Rate,
        /// The burst.
        burst: Option<u64>,
    },
    /// The burst of a bucket with this rate.
    Burst {
        /// The rate.
        rate: Rate,
    },
}

impl Searched {
    fn limit(self, algorithm: Algorithm, n: u64) -> Option<Limit> {
        let rate = match self {
            Self::Count { period, burst } => {
                let rate = period.with_count(n).ok()?;
                match burst.filter(|_| algorithm.has_burst()) {
                    Some(burst) => rate.with_burst(burst).ok()?,
                    None => rate,
                }
            }
            Self::Burst { rate } => rate.with_burst(n).ok()?,
        };
        Limit::new(rate, algorithm).ok()
    }
}

/// The smallest limit of one algorithm.
#[derive(Clone, Debug, Serialize)]
pub struct FoundLimit {
    /// The algorithm.
    pub algorithm: &'static str,
    /// The smallest rate that refuses no more than allowed.
    pub rate: String,
    /// The number that was searched.
    pub smallest: u64,
    /// The band in which it is for single days, or for 90% of samples of the callers.
    pub band: (u64, u64),
    /// The rate with headroom.
    pub recommended: String,
    /// How many requests the smallest one refuses.
    pub requests_refused: u64,
    /// How many callers have at least one of them.
    pub callers_refused: u64,
    /// The callers with the most.
    pub hit: Vec<HitCaller>,
    #[serde(skip)]
    limit: Limit,
}

impl FoundLimit {
    /// Returns the limit with headroom.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }
}

/// A caller whose requests would be refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HitCaller {
    /// The key.
    pub key: String,
    /// How many of its requests.
    pub refused: u32,
    /// Of how many.
    pub requests: u32,
}

/// Searches limits for the requests of a log.
#[derive(Debug)]
pub struct LimitSearch<'t> {
    traffic: &'t LoggedTraffic,
    requests: Vec<u32>,
    tolerance: Tolerance,
    searched: Searched,
    headroom: Ratio,
    days: Vec<LoggedTraffic>,
}

impl<'t> LimitSearch<'t> {
    /// Creates a search. `headroom_percent` is added to what is found.
    #[must_use]
    pub fn new(
        traffic: &'t LoggedTraffic,
        tolerance: Tolerance,
        searched: Searched,
        headroom_percent: u32,
    ) -> Self {
        let days = traffic.days();
        let days = if days.len() >= DAYS_MIN { days } else { Vec::new() };
        let headroom = Ratio::new(100 + u128::from(headroom_percent), 100);
        let requests = traffic.requests_by_key();
        Self { traffic, requests, tolerance, searched, headroom, days }
    }

    /// Returns what the band is of.
    #[must_use]
    pub fn band_text(&self) -> String {
        match self.days.len() {
            0 => format!("90% of {SAMPLES} samples of the callers"),
            days => format!("single days, of {days}"),
        }
    }

    /// Finds the smallest limit of an algorithm; `None` if it has none that fits.
    #[must_use]
    pub fn find(&self, algorithm: Algorithm) -> Option<FoundLimit> {
        let mut replays = Replays::new(self.traffic, self.searched, algorithm);
        let smallest =
            replays.smallest(|refusals| self.tolerance.allows(refusals, &self.requests, None))?;
        let refusals = replays.refusals(smallest)?.clone();
        let band = match self.days.is_empty() {
            true => self.band_of_samples(&mut replays),
            false => self.band_of_days(algorithm),
        };
        let recommended = self.headroom.times(Ratio::whole(smallest));
        let recommended = recommended.plus(Ratio::new(99, 100)).floor().min(COUNT_MAX);
        let limit = self.searched.limit(algorithm, recommended);
        let limit = limit.or_else(|| self.searched.limit(algorithm, smallest))?;
        Some(FoundLimit {
            algorithm: algorithm.name(),
            rate: self.searched.limit(algorithm, smallest)?.rate().to_string(),
            smallest,
            band: band.unwrap_or((smallest, smallest)),
            recommended: limit.rate().to_string(),
            requests_refused: refusals.by_key.iter().map(|n| u64::from(*n)).sum(),
            callers_refused: refusals.by_key.iter().filter(|n| **n > 0).count() as u64,
            hit: self.hit(&refusals),
            limit,
        })
    }

    fn hit(&self, refusals: &Refusals) -> Vec<HitCaller> {
        let refused = |key: &usize| refusals.by_key[*key];
        let mut keys: Vec<_> = (0..refusals.by_key.len()).filter(|key| refused(key) > 0).collect();
        keys.sort_by_key(|key| (std::cmp::Reverse(refused(key)), *key));
        let caller = |key: &usize| HitCaller {
            key: self.traffic.name(*key),
            refused: refused(key),
            requests: self.requests[*key],
        };
        keys.iter().take(LISTED).map(caller).collect()
    }

    fn band_of_days(&self, algorithm: Algorithm) -> Option<(u64, u64)> {
        let smallest = |day: &LoggedTraffic| {
            let requests = day.requests_by_key();
            let mut replays = Replays::new(day, self.searched, algorithm);
            replays.smallest(|refusals| self.tolerance.allows(refusals, &requests, None))
        };
        let found: Vec<_> = self.days.iter().filter_map(smallest).collect();
        Some((*found.iter().min()?, *found.iter().max()?))
    }

    /// The 5th and the 95th percentile over samples of as many callers, drawn with replacement.
    fn band_of_samples(&self, replays: &mut Replays<'_>) -> Option<(u64, u64)> {
        let mut random = Random::new(SAMPLE_SEED);
        let callers = self.requests.len();
        let mut found = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            let mut weights = vec![0u32; callers];
            (0..callers).for_each(|_| weights[random.below(callers as u64) as usize] += 1);
            let allows = |refusals: &Refusals| {
                self.tolerance.allows(refusals, &self.requests, Some(&weights))
            };
            found.extend(replays.smallest(allows));
        }
        found.sort_unstable();
        Some((*found.get(found.len() / 20)?, *found.get(found.len() * 19 / 20)?))
    }
}

/// Replays of the same requests with different numbers, each made once.
struct Replays<'t> {
    traffic: &'t LoggedTraffic,
    searched: Searched,
    algorithm: Algorithm,
    done: BTreeMap<u64, Refusals>,
}

impl<'t> Replays<'t> {
    fn new(traffic: &'t LoggedTraffic, searched: Searched, algorithm: Algorithm) -> Self {
        Self { traffic, searched, algorithm, done: BTreeMap::new() }
    }

    fn refusals(&mut self, n: u64) -> Option<&Refusals> {
        if !self.done.contains_key(&n) {
            let limit = self.searched.limit(self.algorithm, n)?;
            self.done.insert(n, self.traffic.replay(&limit));
        }
        self.done.get(&n)
    }

    /// Returns the smallest number for which `allows` holds, by bisection: the number below it does not hold.
    fn smallest(&mut self, allows: impl Fn(&Refusals) -> bool) -> Option<u64> {
        // With as much as the busiest key asks in total, nothing is refused.
        let (mut failing, mut holding) = (0, self.traffic.total_max().min(COUNT_MAX));
        if !allows(self.refusals(holding)?) {
            return None;
        }
        while holding - failing > 1 {
            let middle = failing.midpoint(holding);
            // A number that the algorithm cannot have counts as too small.
            let holds = self.refusals(middle).is_some_and(&allows);
            *(if holds { &mut holding } else { &mut failing }) = middle;
        }
        Some(holding)
    }
}
