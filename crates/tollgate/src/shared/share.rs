//! A node's fair share of a limit: the limit divided by the number of nodes.

use std::time::Duration;

use tollgate_core::{Cost, LimitError};
use tollgate_core::{Limit, Rate, Terms};

/// What one of `nodes` may admit by itself, so that all of them together stay within the limit.
///
/// A bucket fills as many times more slowly, and holds as much less, but at least one. A window
/// admits its part of the count, or if that is less than one, one in so many periods more.
pub(super) fn share_of(limit: &Limit, nodes: u32) -> Limit {
    if nodes <= 1 {
        return limit.clone();
    }
    rate_share(limit, u64::from(nodes))
        .and_then(|rate| Limit::new(rate, limit.algorithm()))
        .and_then(|share| match limit.terms(Cost::ONE) {
            Terms::SlidingLog { count_rejected: true, .. } => share.count_rejected(),
            _ => Ok(share),
        })
        .map_or_else(|_| limit.clone(), |share| share.named(limit.name()))
}

fn rate_share(limit: &Limit, nodes: u64) -> Result<Rate, LimitError> {
    let (rate, count) = (limit.rate(), limit.rate().count());
    let stretched = |by: u64| rate.period().saturating_mul(u32::try_from(by).unwrap_or(u32::MAX));
    if limit.algorithm().has_burst() {
        let burst = (limit.quota() / nodes).max(1);
        let slower = Rate::new(count, stretched(nodes));
        // A period may be too long to be told; then the count is smaller instead.
        let slower = slower.or_else(|_| Rate::new((count / nodes).max(1), rate.period()))?;
        return Ok(slower.with_burst(burst)?);
    }
    match count / nodes {
        0 => Ok(Rate::new(1, stretched(nodes.div_ceil(count)))
            .or_else(|_| Rate::new(1, Duration::from_secs(10 * 365 * 86_400)))?),
        part => Ok(Rate::new(part, rate.period())?),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::ALGORITHMS;

    use super::*;

    fn share(algorithm_and_rate: (&str, &str), nodes: u32) -> String {
        let (algorithm, rate) = algorithm_and_rate;
        let limit = Limit::new(rate.parse().unwrap(), algorithm.parse().unwrap()).unwrap();
        share_of(&limit, nodes).rate().to_string()
    }

    #[test]
    fn a_share_is_the_limit_over_the_nodes() {
        assert_eq!(share(("token_bucket", "100/s burst 300"), 3), "100/3s burst 100");
        assert_eq!(share(("token_bucket", "5/s burst 2"), 4), "5/4s burst 1");
        assert_eq!(share(("sliding_counter", "100/minute"), 3), "33/m");
        assert_eq!(share(("fixed_window", "2/minute"), 5), "1/3m");
        assert_eq!(share(("sliding_log", "10/s"), 1), "10/s");
    }

    #[test]
    fn shares_sum_up_to_no_more_than_the_limit_over_time() {
        for algorithm in ALGORITHMS {
            for (count, nodes) in [(1u64, 7u32), (10, 3), (1_000, 64), (5, 5), (1_000_000, 1_000)] {
                let limit = Limit::new(format!("{count}/s").parse().unwrap(), *algorithm).unwrap();
                let rate = share_of(&limit, nodes).rate();
                // In an hour, all nodes together.
                let hour = Duration::from_secs(3_600).as_micros();
                let passed = u128::from(rate.count()) * hour / rate.period().as_micros();
                assert!(
                    passed * u128::from(nodes) <= u128::from(count) * 3_600,
                    "{algorithm} {rate}"
                );
            }
        }
    }

    #[test]
    fn a_share_keeps_the_name_and_what_is_counted() {
        let limit = Limit::sliding_log("10/s").unwrap().count_rejected().unwrap().named("login");
        let share = share_of(&limit, 2);
        assert_eq!(share.name(), "login");
        assert!(matches!(
            share.terms(Cost::ONE),
            Terms::SlidingLog { count_rejected: true, limit: 5, .. }
        ));
    }
}
