//! Worked examples as data: a limit, a trace, and the expected decisions.
//!
//! A trace is a list of `time[*repeats][xcost]`. An expectation is a list of `allow`, `deny` or
//! `never`, each with an optional detail in brackets (`allow[left 19]`, `allow[hold 500ms]`,
//! `deny[5s]`) and an optional `*repeats`.

mod support;

use ratekeeper_core::{Algorithm, Decision, Limit};
use support::Key;

const FIXED: Algorithm = Algorithm::FixedWindow;
const LOG: Algorithm = Algorithm::SlidingLog;
const COUNTER: Algorithm = Algorithm::SlidingCounter;
const TOKEN: Algorithm = Algorithm::TokenBucket;
const LEAKY: Algorithm = Algorithm::LeakyBucket;

#[track_caller]
fn check(algorithm: Algorithm, rate: &str, trace: &str, expected: &str) {
    check_limit(&Limit::new(rate.parse().unwrap(), algorithm).unwrap(), trace, expected);
}

#[track_caller]
fn check_limit(limit: &Limit, trace: &str, expected: &str) {
    let mut key = Key::new(limit);
    let decisions = parse_trace(trace).into_iter().map(|(at, cost)| (at, key.check(cost, at)));
    let decisions: Vec<_> = decisions.collect();
    let expected = parse_expected(expected);
    assert_eq!(decisions.len(), expected.len(), "{limit}: as many expectations as requests");
    for (i, ((at, decision), expected)) in decisions.iter().zip(&expected).enumerate() {
        assert!(
            meets(decision, expected),
            "{limit}: request {i} at {at} µs: expected {expected:?}, got {decision:?}"
        );
    }
}

fn parse_trace(trace: &str) -> Vec<(u64, u64)> {
    let mut requests = Vec::new();
    for word in trace.split_whitespace() {
        let (word, cost) = word.split_once('x').map_or((word, 1), |(w, n)| (w, n.parse().unwrap()));
        let (at, times) = word.split_once('*').map_or((word, 1), |(w, n)| (w, n.parse().unwrap()));
        requests.extend(std::iter::repeat_n((micros(at), cost), times));
    }
    requests
}

/// Parses to `(verdict, detail)`, where the detail is the text in brackets.
fn parse_expected(expected: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for item in expected.split(',').map(str::trim) {
        let (item, times) =
            item.split_once('*').map_or((item, 1), |(w, n)| (w, n.parse().unwrap()));
        let (verdict, detail) = item.split_once('[').unwrap_or((item, "]"));
        let one = (verdict.to_string(), detail.trim_end_matches(']').to_string());
        all.extend(std::iter::repeat_n(one, times));
    }
    all
}

fn meets(decision: &Decision, (verdict, detail): &(String, String)) -> bool {
    let verdict_met = match verdict.as_str() {
        "allow" => decision.allowed(),
        "deny" => decision.retry_after().is_some(),
        "never" => decision.exceeds_capacity(),
        other => panic!("no such verdict: {other}"),
    };
    let us = |duration: std::time::Duration| duration.as_micros() as u64;
    verdict_met
        && match detail.split_once(' ') {
            Some(("left", n)) => decision.remaining() == n.parse::<u64>().unwrap(),
            Some(("hold", span)) => us(decision.delay()) == micros(span),
            Some((other, _)) => panic!("no such detail: {other}"),
            None if detail.is_empty() => true,
            None => decision.retry_after().is_some_and(|wait| us(wait) == micros(detail)),
        }
}

/// `1:06` (minutes and seconds), `2s`, `500ms`, `7us`, `1d`.
fn micros(text: &str) -> u64 {
    if let Some((minutes, seconds)) = text.split_once(':') {
        return (minutes.parse::<u64>().unwrap() * 60 + seconds.parse::<u64>().unwrap())
            * 1_000_000;
    }
    let split = text.find(|c: char| c.is_alphabetic()).unwrap_or_else(|| panic!("no unit: {text}"));
    let unit = match &text[split..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "d" => 86_400e6,
        other => panic!("no such unit: {other}"),
    };
    (text[..split].parse::<f64>().unwrap() * unit).round() as u64
}

#[test]
fn fixed_window() {
    check(FIXED, "5/minute", "3s*6", "allow*5, deny[57s]");
    check(FIXED, "100/minute", "0:42*100 0:55 1:00", "allow*100, deny[5s], allow[left 99]");
    check(FIXED, "100/minute", "59s*100 60s*50 61s*50", "allow*200");
    check(FIXED, "10/s", "0sx4 0sx7 0sx6 0sx11", "allow[left 6], deny[1s], allow[left 0], never");
}

#[test]
fn sliding_log() {
    check(
        LOG,
        "5/minute",
        "0:05 0:10 0:20 0:40 0:50 0:55 1:06",
        "allow, allow, allow, allow, allow, deny[10s], allow",
    );
    check(LOG, "5/10s", "2s 6s 8s 11s 14s 15s", "allow*6");
    check(LOG, "2/minute", "0:01 0:30 0:50 1:40", "allow, allow, deny[11s], allow");
    let strict = Limit::sliding_log("2/minute").unwrap().count_rejected().unwrap();
    check_limit(&strict, "0:01 0:30 0:50 1:40", "allow, allow, deny, allow");
    // The first request expires after exactly one minute.
    check(LOG, "1/minute", "0s 59.999999s 60s", "allow, deny[1us], allow");
}

#[test]
fn a_caller_that_does_not_back_off_stays_denied_if_denied_requests_count() {
    let strict = Limit::sliding_log("2/10s").unwrap().count_rejected().unwrap();
    check_limit(
        &strict,
        "0s 1s 8s 9s 11s 18s",
        "allow, allow, deny[3s], deny[9s], deny[8s], deny[3s]",
    );
    check_limit(&strict, "0s*2 1s*1000 10.999999s 11s", "allow*2, deny*1000, deny, allow");
}

#[test]
fn sliding_counter() {
    // Requests in the previous and the current window, then one more, and what it leaves.
    check(COUNTER, "100/minute", "0sx80 70sx30 70s", "allow, allow, allow[left 2]");
    check(COUNTER, "100/minute", "0sx80 60sx20 90sx20 90s", "allow, allow, allow, allow[left 19]");
    check(COUNTER, "100/50s", "0sx60 70sx40 70s", "allow, allow, allow[left 23]");
    check(COUNTER, "5/minute", "0sx4 90sx2 90s", "allow, allow, allow[left 0]");
    check(
        COUNTER,
        "100/minute",
        "0sx100 60s 60.6s 60.6s",
        "allow, deny[600ms], allow[left 0], deny[600ms]",
    );
    check(COUNTER, "100/minute", "0sx101", "never");
    check(COUNTER, "10/minute", "0sx10 60s 66s", "allow, deny[6s], allow");
    check(COUNTER, "1/day", "0s 1d 2d", "allow, deny[1d], allow");
}

#[test]
fn token_bucket() {
    check(TOKEN, "5/s burst 10", "0s*10 1s*20", "allow*10, allow*5, deny[200ms]*15");
    check(TOKEN, "100/minute", "10sx50 20s", "allow[left 50], allow[left 65]");
    check(TOKEN, "10/10s", "0s*11 1s 2s", "allow*10, deny[1s], allow, allow");
    check(TOKEN, "10/s", "0sx11 0sx10", "never, allow[left 0]");
    check(TOKEN, "1/s", "0.5s 1.4s 1.5s", "allow, deny[100ms], allow");
}

#[test]
fn leaky_bucket() {
    let delays = (0..10).map(|i| format!("allow[hold {}ms]", i * 500)).collect::<Vec<_>>();
    check(LEAKY, "2/s burst 10", "0s*12", &format!("{}, deny[500ms]*2", delays.join(", ")));
    check(LEAKY, "100/s burst 500", "0s*1000", "allow*499, allow[hold 4990ms], deny[10ms]*500");
    check(LEAKY, "2/s burst 10", "0s 0.2s 3s", "allow[hold 0s], allow[hold 300ms], allow[hold 0s]");
}

/// Known bugs of other rate limiters.
mod bugs_of_other_limiters {
    use super::*;

    #[test]
    fn an_idle_key_admits_its_burst_and_no_more() {
        check(TOKEN, "10/s", "0s 3600s*17", "allow, allow*10, deny[100ms]*7");
    }

    #[test]
    fn a_burst_of_one_still_limits() {
        check(TOKEN, "1000/s burst 1", "1s*3 1.001s", "allow, deny[1ms]*2, allow");
    }

    #[test]
    fn idling_refills_at_the_rate_whatever_the_burst() {
        check(TOKEN, "1/s burst 100", "0s*100 3s*5", "allow*100, allow*3, deny[1s]*2");
        assert!(expires_at("1/s burst 100", "0s*100") >= 100_000_000);
    }

    fn expires_at(rate: &str, trace: &str) -> u64 {
        let mut key = Key::new(&Limit::token_bucket(rate).unwrap());
        for (at, cost) in parse_trace(trace) {
            let _ = key.check(cost, at);
        }
        key.expires_at()
    }

    #[test]
    fn intervals_below_a_nanosecond_are_exact() {
        // 600 million a second is 600 a microsecond, neither 599 nor 1000.
        check(
            TOKEN,
            "600000000/s burst 600",
            "1sx600 1s 1.000001sx600 1.000001s",
            "allow, deny[1us], allow, deny[1us]",
        );
    }

    #[test]
    fn a_large_burst_with_a_long_period_is_rejected_instead_of_overflowing() {
        let error = Limit::token_bucket("1/day burst 3000000").unwrap_err();
        assert!(error.to_string().contains("at most 52124"), "{error}");
        check(TOKEN, "1/day burst 52124", "1dx52124 1d 2d", "allow, deny[1d], allow");
    }

    #[test]
    fn polling_often_loses_no_refill() {
        // 1/hour, checked every second for ten hours: ten more are admitted, not five.
        let mut key = Key::new(&Limit::token_bucket("1/hour").unwrap());
        let allowed = (0..=36_000).filter(|s| key.check(1, s * 1_000_000).allowed()).count();
        assert_eq!(allowed, 11);
    }

    #[test]
    fn a_denied_request_adds_no_debt() {
        check(TOKEN, "1/s", "0s*100 1s", "allow, deny[1s]*99, allow");
        check(FIXED, "1/s", "0s*100 1s", "allow, deny[1s]*99, allow");
        check(COUNTER, "2/s", "0s*100 1.5s", "allow*2, deny*98, allow");
        check(LEAKY, "1/s burst 1", "0s*100 1s", "allow, deny[1s]*99, allow");
    }

    #[test]
    fn retry_after_secs_is_at_least_1() {
        let mut key = Key::new(&Limit::token_bucket("1000/s burst 1").unwrap());
        let _ = key.check(1, 0);
        assert_eq!(key.check(1, 0).retry_after_secs(), Some(1));
    }

    #[test]
    fn a_cost_above_the_quota_exceeds_the_capacity() {
        for algorithm in ratekeeper_core::ALGORITHMS {
            check(*algorithm, "5/s", "0sx6 0sx18446744073709551615", "never, never");
        }
    }
}

/// Past bugs of this crate.
mod regressions {
    use super::*;

    fn key(algorithm: Algorithm, rate: &str) -> Key {
        Key::new(&Limit::new(rate.parse().unwrap(), algorithm).unwrap())
    }

    #[test]
    fn a_debt_of_any_size_is_counted_in_full() {
        let mut key = key(TOKEN, "1000000000/s");
        let after = key.charge(100_000_000_000, 0);
        assert_eq!(after.reset_after(), std::time::Duration::from_secs(100));
    }

    #[test]
    fn a_charge_that_is_already_replenished_is_not_refunded() {
        for algorithm in [TOKEN, LEAKY] {
            let mut key = key(algorithm, "1/s burst 10");
            assert!(key.check(10, 0).allowed());
            assert!(key.check(10, micros("10s")).allowed());
            let _ = key.refund(10, 0, micros("10s"));
            assert!(!key.check(1, micros("10s")).allowed(), "{algorithm}: 20 at once");
        }
    }

    #[test]
    fn a_log_keeps_what_remains_of_a_debt_after_its_refund() {
        let mut key = key(LOG, "10/minute");
        let _ = key.check(5, 0);
        let _ = key.charge(10, 0);
        assert_eq!(key.refund(10, 0, 0).remaining(), 5);
        let _ = key.charge(30, 0);
        assert_eq!(key.refund(25, 0, 0).remaining(), 0);
    }

    #[test]
    fn a_log_refunds_a_charge_that_was_logged_at_a_later_time() {
        // Two threads read the clock and then update the log in the opposite order.
        let mut key = key(LOG, "10/minute");
        let _ = key.check(1, 1_000_003);
        let _ = key.check(5, 1_000_000);
        assert_eq!(key.refund(5, 1_000_000, 1_000_010).remaining(), 9);
        let _ = key.check(1, 2_000_000);
        assert_eq!(
            key.refund(1, 500_000, 62_000_000).remaining(),
            10,
            "an expired charge is not refunded"
        );
    }
}
