//! Comparisons of the algorithms.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_core::{ALGORITHMS, Algorithm, Cost, Limit, Micros, Rate};
use ratekeeper_lab::{
    AllAlgorithms, Arrival, PATTERNS, Pattern, Report, Run, Summary, TextOptions, Traffic, compare,
};

fn run(rate: &str, pattern: Pattern, keys: u32) -> Report {
    let rate: Rate = rate.parse().unwrap();
    let traffic = Traffic::new(pattern, rate, rate.period() * 10).with_keys(keys);
    let limits = AllAlgorithms::new(rate).unwrap().limits;
    compare(&limits, traffic.arrivals().map(Ok), Some(traffic.span()), 1_000).unwrap()
}

fn of(report: &Report, algorithm: Algorithm) -> &Summary {
    let mut runs = report.runs().iter();
    runs.find(|run| run.limit().algorithm() == algorithm).unwrap().summary()
}

#[test]
fn only_the_fixed_window_is_compared_in_calendar_windows() {
    let all = AllAlgorithms::new("5/calendar month from day 31".parse().unwrap()).unwrap();
    let limits: Vec<_> = all.limits.iter().map(ToString::to_string).collect();
    assert_eq!(limits, ["fixed_window 5/calendar month from day 31"]);
    let note = "sliding_log, sliding_counter, token_bucket and leaky_bucket have no calendar windows and are omitted";
    assert_eq!(all.notes, [note]);
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
    let note = "fixed_window, sliding_log and sliding_counter have no burst and use 5/s";
    assert_eq!(all.notes, [note]);
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
    assert!(report.to_text(TextOptions::default()).contains("offered"));
    assert!(report.to_json().starts_with("{\"start_us\":0,"));
}

fn names_of_groups(report: &Report) -> Vec<Vec<&'static str>> {
    let name = |run: &&Run| run.limit().algorithm().name();
    report.same_decisions().iter().map(|group| group.iter().map(name).collect()).collect()
}

#[test]
fn algorithms_that_admit_the_same_requests_are_drawn_once() {
    let report = run("10/s", Pattern::Boundary, 1);
    let others = vec!["sliding_log", "sliding_counter", "token_bucket", "leaky_bucket"];
    assert_eq!(names_of_groups(&report), [vec!["fixed_window"], others]);
    let text = report.to_text(TextOptions { width: 100, color: false });
    let heading =
        "\nsliding_log, sliding_counter, token_bucket and leaky_bucket admit the same requests\n";
    assert!(text.contains(heading), "{text}");
    assert_eq!(text.matches(" └").count(), 3, "two groups and the releases of the leaky bucket");
}

#[test]
fn the_same_totals_are_not_the_same_decisions() {
    let arrival =
        |at_us| Ok(Arrival { at: Micros::new(at_us), key: "a".to_string(), cost: Cost::ONE });
    // The window denies the third request, the log the second.
    let arrivals = [900_000, 1_100_000, 1_950_000].map(arrival);
    let rate = "1/s".parse().unwrap();
    let limits = [Algorithm::FixedWindow, Algorithm::SlidingLog];
    let limits = limits.map(|algorithm| Limit::new(rate, algorithm).unwrap());
    let report = compare(&limits, arrivals.into_iter(), None, 10).unwrap();
    let admitted = |algorithm| of(&report, algorithm).admitted();
    assert_eq!((admitted(Algorithm::FixedWindow), admitted(Algorithm::SlidingLog)), (2, 2));
    assert_eq!(names_of_groups(&report), [["fixed_window"], ["sliding_log"]]);
}

#[test]
fn traffic_below_the_limit_is_said_to_be_admitted_by_all() {
    let rate: Rate = "10/s".parse().unwrap();
    let traffic = Traffic::new(Pattern::Steady, rate, Duration::from_secs(10))
        .with_rate("5/s".parse().unwrap());
    let limits = AllAlgorithms::new(rate).unwrap().limits;
    let report = compare(&limits, traffic.arrivals().map(Ok), Some(traffic.span()), 10).unwrap();
    let text = report.to_text(TextOptions::default());
    assert!(text.contains("\nall algorithms admit every request in this traffic\n"), "{text}");
    assert_eq!(text.matches(" └").count(), 1, "{text}");
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
            let (summary, columns) = (run.summary(), report.columns(run, 60));
            prop_assert_eq!(columns.admitted.iter().sum::<u64>(), summary.admitted());
            prop_assert_eq!(columns.denied.iter().sum::<u64>(), summary.denied());
            prop_assert_eq!(columns.offered(), report.columns(&report.runs()[0], 60).offered());
        }
    }

    #[test]
    fn no_line_of_a_report_is_longer_than_the_width(
        count in 1..50u64, width in 40..200usize, pattern in 0..PATTERNS.len(),
    ) {
        let text = run(&format!("{count}/s"), PATTERNS[pattern], 1).to_text(TextOptions { width, color: false });
        let longest = text.lines().map(|line| line.chars().count()).max();
        prop_assert!(longest <= Some(width), "{}", text);
    }

    #[test]
    fn a_sliding_log_never_exceeds_its_limit(count in 1..50u64, pattern in 0..PATTERNS.len()) {
        let report = run(&format!("{count}/s"), PATTERNS[pattern], 2);
        let most = of(&report, Algorithm::SlidingLog).most_in_a_period();
        prop_assert!(most <= Some(count), "{most:?} of {count}");
    }
}
