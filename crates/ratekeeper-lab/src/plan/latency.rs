//! Latencies: parsed, measured or assumed.

use std::io::{self, BufRead};
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::{PlanError, Ratio};
use crate::random::Random;
use crate::service::ServiceTime;
use crate::text::short_span_text;

/// The most latencies that are kept, of 8 bytes each.
const SAMPLES_MAX: usize = 50_000_000;
/// Longer lines are no latencies.
const LINE_MAX: usize = 64;
/// The longest latency: a day.
const LATENCY_MAX_US: u64 = 86_400_000_000;

/// Parses a latency such as `800ms`, `1.5s` or `250us`, in microseconds.
///
/// # Errors
/// If the text is not a number and a unit, is 0, or is more than a day.
///
/// ```
/// assert_eq!(ratekeeper_lab::plan::parse_latency("1.5s")?, 1_500_000);
/// # Ok::<(), ratekeeper_lab::plan::PlanError>(())
/// ```
pub fn parse_latency(text: &str) -> Result<u64, PlanError> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_us = match unit.trim() {
        "us" | "µs" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        _ => return Err(PlanError::LatencyText(text.to_string())),
    };
    let number = Ratio::decimal(number);
    let number = number.ok_or_else(|| PlanError::LatencyText(text.to_string()))?;
    let us = number.times(Ratio::whole(unit_us)).floor();
    if (1..=LATENCY_MAX_US).contains(&us) { Ok(us) } else { Err(PlanError::Latency) }
}

/// A percentile such as `p95` or `p99.9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentile {
    /// In hundredths of a percent.
    hundredths: u32,
}

impl Percentile {
    /// The median.
    pub const P50: Self = Self { hundredths: 5_000 };
    /// The 95th percentile.
    pub const P95: Self = Self { hundredths: 9_500 };
    /// The 99th percentile.
    pub const P99: Self = Self { hundredths: 9_900 };

    /// Returns the value in a sorted list that this share of the values does not exceed; 0 of an empty list.
    pub(super) fn of(self, sorted: &[u64]) -> u64 {
        let rank = (sorted.len() as u128 * u128::from(self.hundredths)).div_ceil(10_000);
        sorted.get((rank as usize).saturating_sub(1)).copied().unwrap_or(0)
    }
}

impl FromStr for Percentile {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let percent = text.strip_prefix('p').and_then(Ratio::decimal);
        let hundredths = percent.map(|percent| percent.times(Ratio::whole(100)).floor());
        let in_range = hundredths.filter(|hundredths| (1..10_000).contains(hundredths));
        match in_range {
            Some(hundredths) => Ok(Self { hundredths: hundredths as u32 }),
            None => Err(PlanError::Percentile(text.to_string())),
        }
    }
}

impl std::fmt::Display for Percentile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p{}", Ratio::new(u128::from(self.hundredths), 100))
    }
}

/// What latencies are to be kept, such as `p99=1.5s`.
///
/// ```
/// use ratekeeper_lab::plan::Slo;
///
/// let slo: Slo = "p99=1.5s".parse()?;
/// assert_eq!(slo.to_string(), "p99 ≤ 1.5s");
/// # Ok::<(), ratekeeper_lab::plan::PlanError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slo {
    pub(super) percentile: Percentile,
    pub(super) us: u64,
}

impl FromStr for Slo {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let (percentile, latency) =
            text.split_once('=').ok_or_else(|| PlanError::Slo(text.to_string()))?;
        Ok(Self { percentile: percentile.parse()?, us: parse_latency(latency)? })
    }
}

impl std::fmt::Display for Slo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ≤ {}", self.percentile, short_span_text(self.us))
    }
}

/// Measured latencies, sorted.
///
/// ```
/// use ratekeeper_lab::plan::{Latencies, Percentile};
///
/// let latencies = Latencies::read("120ms\n80ms\n0.3s\n".as_bytes())?;
/// assert_eq!(latencies.percentile_us(Percentile::P50), 120_000);
/// # Ok::<(), ratekeeper_lab::plan::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    sorted: Vec<u64>,
}

impl Latencies {
    /// Creates latencies from microseconds.
    ///
    /// # Errors
    /// If there are none, or more than 50 million.
    pub fn new(mut us: Vec<u64>) -> Result<Self, PlanError> {
        us.sort_unstable();
        match us.len() {
            0 => Err(PlanError::NoLatencies),
            n if n > SAMPLES_MAX => Err(PlanError::TooManyLatencies(SAMPLES_MAX)),
            _ => Ok(Self { sorted: us }),
        }
    }

    /// Reads a latency from each line, such as `120ms` or `0.12s`. Empty lines and those that begin with # are
    /// skipped.
    ///
    /// # Errors
    /// If a line is no latency, or reading fails.
    pub fn read(mut reader: impl BufRead) -> Result<Self, PlanError> {
        let mut found = Vec::new();
        let mut line = String::new();
        for number in 1.. {
            line.clear();
            let mut bounded = io::Read::take(&mut reader, LINE_MAX as u64 + 1);
            let length = bounded.read_line(&mut line).map_err(PlanError::Read)?;
            let text = line.trim();
            match length {
                0 => break,
                length if length > LINE_MAX => return Err(PlanError::LatencyLine { number }),
                _ if text.is_empty() || text.starts_with('#') => continue,
                _ => {}
            }
            let us = parse_latency(text).map_err(|_| PlanError::LatencyLine { number })?;
            if found.len() == SAMPLES_MAX {
                return Err(PlanError::TooManyLatencies(SAMPLES_MAX));
            }
            found.push(us);
        }
        Self::new(found)
    }

    /// Returns how many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the latency that this share of them does not exceed: one that was measured.
    #[must_use]
    pub fn percentile_us(&self, percentile: Percentile) -> u64 {
        percentile.of(&self.sorted)
    }

    fn mean_us(&self) -> f64 {
        let sum: u128 = self.sorted.iter().map(|us| u128::from(*us)).sum();
        sum as f64 / self.sorted.len() as f64
    }
}

/// How long requests take without load.
#[derive(Clone, Debug)]
pub enum LatencyModel {
    /// As measured: each request takes one of these latencies.
    Measured(Latencies),
    /// As assumed from percentiles.
    Assumed(ServiceTime),
}

impl LatencyModel {
    /// Assumes the exponential distribution that has this 95th percentile.
    #[must_use]
    pub fn of_p95(p95_us: u64) -> Self {
        let mean = Duration::from_micros(p95_us).div_f64(20f64.ln());
        Self::Assumed(ServiceTime::Exponential(mean))
    }

    /// Assumes the lognormal distribution that has this median and 95th percentile.
    ///
    /// # Errors
    /// If the median is above the percentile.
    pub fn of_p50_and_p95(p50_us: u64, p95_us: u64) -> Result<Self, PlanError> {
        /// The 95% quantile of a standard normal distribution.
        const Z_95: f64 = 1.645;
        if p50_us > p95_us {
            return Err(PlanError::Median);
        }
        let sigma = (p95_us as f64 / p50_us as f64).ln() / Z_95;
        Ok(Self::Assumed(ServiceTime::LogNormal { median: Duration::from_micros(p50_us), sigma }))
    }

    pub(super) fn mean_us(&self) -> f64 {
        match self {
            Self::Measured(latencies) => latencies.mean_us(),
            Self::Assumed(time) => time.mean().as_secs_f64() * 1e6,
        }
    }

    pub(super) fn draw_us(&self, random: &mut Random) -> f64 {
        match self {
            Self::Measured(Latencies { sorted }) => {
                sorted[random.below(sorted.len() as u64) as usize] as f64
            }
            Self::Assumed(time) => time.draw_us(random),
        }
    }

    /// Returns what is assumed, in words.
    pub(super) fn assumption(&self) -> String {
        match self {
            Self::Measured(latencies) => format!(
                "each request takes one of the {} measured latencies, drawn at random",
                latencies.count()
            ),
            Self::Assumed(ServiceTime::LogNormal { .. }) => {
                "latencies are lognormal with this median and p95".to_string()
            }
            Self::Assumed(_) => {
                "latencies are exponential with this p95; state --p50 too, or measure them (--latencies)"
                    .to_string()
            }
        }
    }
}

/// Percentiles of response times, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResponseTimes {
    /// The median in microseconds.
    pub p50_us: u64,
    /// The 95th percentile.
    pub p95_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
}
