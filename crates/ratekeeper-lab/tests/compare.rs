//! Comparisons of the algorithms.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_core::{ALGORITHMS, Algorithm, Limit, Rate};
use ratekeeper_lab::{AllAlgorithms, PATTERNS, Pattern, Report, Summary, Traffic, compare};

fn run(rate: &str, pattern: Pattern, keys: u32) -> Report {
    let rate: Rate = rate.parse().unwrap();
    let traffic = Traffic::new(pattern, rate, rate.period() * 10).with_keys(keys);
    let limits = AllAlgorithms::new(rate).unwrap().limits;
    compare(&limits, traffic.arrivals().map(Ok), Some(traffic.duration()), 1_000).unwrap()
}

fn of(report: &Report, algorithm: Algorithm) -> &Summary {
    let mut runs = report.runs().iter();
    runs.find(|run| run.limit().algorithm() == algorithm).unwrap().summary()
}

#[test]
fn only_the_fixed_window_admits_twice_the_limit_at_a_boundary() {
    for (rate, limit) in [("10/s", 10), ("100/minute", 100), ("3/ms", 3), ("1/day", 1)] {
        let report = run(rate, Pattern::Boundary, 2);
        for algorithm in ALGORITHMS {
            let expected = if *algorithm == Algorithm::FixedWindow { 2 * limit } else { limit };
            assert_eq!(of(&report, *algorithm).most_in_a_period(), Some(expected), "{algorithm}");
        }
    }
}

#[test]
fn windows_run_without_the_burst_and_a_note_says_so() {
    let all = AllAlgorithms::new("5/s burst 10".parse().unwrap()).unwrap();
    let rates = all.limits.iter().map(|limit| limit.rate().to_string());
    assert!(rates.eq(["5/s", "5/s", "5/s", "5/s burst 10", "5/s burst 10"]));
    assert_eq!(all.notes, ["window algorithms use 5/s: only buckets have a burst"]);
}

#[test]
fn an_algorithm_that_does_not_support_the_rate_is_omitted_and_a_note_says_so() {
    let all = AllAlgorithms::new("4000000000/s".parse().unwrap()).unwrap();
    let omitted = ALGORITHMS.len() - all.limits.len();
    assert_eq!(omitted, all.notes.len());
    assert!(all.notes.iter().all(|note| note.contains("is omitted: ")));
}

#[test]
fn a_leaky_bucket_admits_like_a_token_bucket_with_delays() {
    let report = run("10/s", Pattern::Burst, 1);
    let (token, leaky) = (of(&report, Algorithm::TokenBucket), of(&report, Algorithm::LeakyBucket));
    assert_eq!(token.admitted(), leaky.admitted());
    assert_eq!((token.delay_max_us(), leaky.delay_max_us()), (0, 900_000));
    assert_eq!(leaky.delay_quantile_us(50), 400_000);
}

#[test]
fn a_spike_of_one_key_does_not_affect_others() {
    let rate: Rate = "10/s".parse().unwrap();
    let traffic = Traffic::new(Pattern::FlashSale, rate, Duration::from_secs(9));
    let calm = traffic.arrivals().filter(|arrival| arrival.key != "partner").map(Ok);
    let limits = [Limit::new(rate, Algorithm::TokenBucket).unwrap()];
    let alone = compare(&limits, calm, None, 10).unwrap();
    assert_eq!(alone.runs()[0].summary().denied(), 0);
    let with_partner = run("10/s", Pattern::FlashSale, 1);
    assert!(of(&with_partner, Algorithm::TokenBucket).denied() > 100);
}

#[test]
fn a_report_without_requests_is_valid() {
    let limits = ["5/s".parse().unwrap()];
    let report = compare(&limits, std::iter::empty(), None, 10).unwrap();
    assert_eq!(report.runs()[0].summary().offered(), 0);
    assert!(report.to_text().contains("offered"));
    assert!(report.to_json().starts_with("{\"start_us\":0,"));
}

#[test]
fn evictions_are_counted() {
    let rate: Rate = "5/s".parse().unwrap();
    let traffic = Traffic::new(Pattern::Steady, rate, Duration::from_secs(1)).with_keys(5_000);
    let limits = [Limit::new(rate, Algorithm::TokenBucket).unwrap()];
    let evictions = |keys_max| {
        compare(&limits, traffic.arrivals().map(Ok), None, keys_max).unwrap().evictions()
    };
    assert!(evictions(10) > 0);
    assert_eq!(evictions(5_000), 0);
}

proptest! {
    #[test]
    fn totals_and_columns_agree(count in 1..50u64, keys in 1..4u32, pattern in 0..PATTERNS.len()) {
        let report = run(&format!("{count}/s"), PATTERNS[pattern], keys);
        for run in report.runs() {
            let (summary, columns) = (run.summary(), report.columns(run));
            prop_assert_eq!(columns.admitted.iter().sum::<u64>(), summary.admitted());
            prop_assert_eq!(columns.denied.iter().sum::<u64>(), summary.denied());
            prop_assert_eq!(columns.offered(), report.columns(&report.runs()[0]).offered());
        }
    }

    #[test]
    fn a_sliding_log_never_exceeds_its_limit(count in 1..50u64, pattern in 0..PATTERNS.len()) {
        let report = run(&format!("{count}/s"), PATTERNS[pattern], 2);
        let most = of(&report, Algorithm::SlidingLog).most_in_a_period();
        prop_assert!(most <= Some(count), "{most:?} of {count}");
    }
}
