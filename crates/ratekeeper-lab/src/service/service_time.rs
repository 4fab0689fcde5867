//! How long the work for one request takes.

use std::time::Duration;

use crate::random::Random;

/// The distribution of service times.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_lab::service::ServiceTime;
///
/// let fast = Duration::from_millis(10);
/// let bimodal = ServiceTime::Bimodal { fast, slow: 10 * fast, slow_share: 0.5 };
/// assert_eq!(bimodal.mean(), Duration::from_millis(55));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ServiceTime {
    /// All the same.
    Constant(Duration),
    /// Exponential with this mean.
    Exponential(Duration),
    /// Lognormal with this median; `sigma` is the deviation of the logarithm.
    LogNormal {
        /// The median.
        median: Duration,
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
    /// Two kinds of requests, such as hits and misses of a cache. Each is spread by 20% around its
    /// duration.
    Bimodal {
        /// The duration of fast requests.
        fast: Duration,
        /// The duration of slow requests.
        slow: Duration,
        /// The share of slow requests, 0 to 1.
        slow_share: f64,
    },
}

impl ServiceTime {
    /// Returns the mean.
    #[must_use]
    pub fn mean(&self) -> Duration {
        match *self {
            Self::Constant(duration) | Self::Exponential(duration) => duration,
            Self::LogNormal { median, sigma } => median.mul_f64((sigma * sigma / 2.0).exp()),
            Self::Bimodal { fast, slow, slow_share } => {
                fast.mul_f64(1.0 - slow_share) + slow.mul_f64(slow_share)
            }
        }
    }

    /// Returns the duration that 99% of the requests do not exceed: their latency without load.
    #[must_use]
    pub fn p99(&self) -> Duration {
        /// The 99% quantile of a standard normal distribution.
        const Z_99: f64 = 2.326;
        match *self {
            Self::Constant(duration) => duration,
            Self::Exponential(mean) => mean.mul_f64(100f64.ln()),
            Self::LogNormal { median, sigma } => median.mul_f64((sigma * Z_99).exp()),
            // Uniform from 80% to 120%.
            Self::Bimodal { slow, slow_share, .. } if slow_share > 0.01 => {
                slow.mul_f64(0.8 + 0.4 * (1.0 - 0.01 / slow_share))
            }
            Self::Bimodal { fast, slow_share, .. } => {
                fast.mul_f64(0.8 + 0.4 * 0.99 / (1.0 - slow_share))
            }
        }
    }

    pub(crate) fn draw_us(&self, random: &mut Random) -> f64 {
        let us = |duration: Duration| duration.as_secs_f64() * 1e6;
        match *self {
            Self::Constant(duration) => us(duration),
            Self::Exponential(mean) => us(mean) * random.gap(),
            Self::LogNormal { median, sigma } => us(median) * (sigma * normal(random)).exp(),
            Self::Bimodal { fast, slow, slow_share } => {
                let mode = if fraction(random) < slow_share { slow } else { fast };
                us(mode) * (0.8 + 0.4 * fraction(random))
            }
        }
    }
}

/// Returns a number in `0.0..1.0`.
pub(crate) fn fraction(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns a number of the standard normal distribution (Box–Muller).
fn normal(random: &mut Random) -> f64 {
    (2.0 * random.gap()).sqrt() * (std::f64::consts::TAU * fraction(random)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_and_the_quantile() {
        let ms = Duration::from_millis;
        let times = [
            ServiceTime::Constant(ms(20)),
            ServiceTime::Exponential(ms(20)),
            ServiceTime::LogNormal { median: ms(20), sigma: 0.8 },
            ServiceTime::Bimodal { fast: ms(10), slow: ms(100), slow_share: 0.1 },
            ServiceTime::Bimodal { fast: ms(10), slow: ms(100), slow_share: 0.001 },
        ];
        for time in times {
            let mut random = Random::new(7);
            let mut draws: Vec<_> = (0..200_000).map(|_| time.draw_us(&mut random)).collect();
            draws.sort_by(f64::total_cmp);
            let mean = draws.iter().sum::<f64>() / draws.len() as f64 / 1e6;
            let p99 = draws[draws.len() * 99 / 100] / 1e6;
            assert!((mean / time.mean().as_secs_f64() - 1.0).abs() < 0.02, "{time:?}: {mean}");
            assert!((p99 / time.p99().as_secs_f64() - 1.0).abs() < 0.03, "{time:?}: {p99}");
        }
    }
}
