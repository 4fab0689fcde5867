//! Parsing rates: valid forms, and the messages of errors.

use proptest::prelude::*;
use ratekeeper_core::{Algorithm, Limit, Rate, parse_duration};

#[test]
fn every_form_of_a_rate_parses() {
    for (text, canonical) in [
        ("100/minute", "100/m"),
        ("5/s burst 10", "5/s burst 10"),
        ("1000/2h", "1000/2h"),
        ("100/10s", "100/10s"),
        ("100 per minute", "100/m"),
        ("100 per 2 minutes", "100/2m"),
        (" 3 / day  burst  7 ", "3/d burst 7"),
        ("1/year", "1/year"),
        ("1/365d", "1/year"),
        ("1/month", "1/month"),
        ("1/week", "1/week"),
        ("7/24h", "7/d"),
        ("1/1500ms", "1/1500ms"),
        ("4294967295/sec", "4294967295/s"),
        ("100 PER Minute Burst 5", "100/m burst 5"),
        ("5/MS", "5/ms"),
    ] {
        let rate: Rate = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(rate.to_string(), canonical);
        assert_eq!(canonical.parse::<Rate>().unwrap(), rate, "{canonical} round-trips");
    }
}

#[track_caller]
fn rejects(text: &str, marked: &str, message: &str) {
    let error = text.parse::<Rate>().unwrap_err();
    assert_eq!(&text[error.span()], marked, "{error}");
    assert!(error.message().contains(message), "{error}");
}

#[test]
fn errors_mark_the_invalid_part() {
    rejects("100/fortnight", "fortnight", "use ms, s, m, h, d, week, month or year");
    rejects("0/s", "0", "the count is 0; it must be at least 1");
    rejects("-5/s", "-5", "the count is negative");
    rejects("0.5/s", "0.5", "0.5/s is 1/2s");
    rejects("ten/s", "ten", "the count is not a whole number");
    rejects("99999999999/s", "99999999999", "the count is too large; at most 4294967295");
    rejects("99999999999999999999999/s", "99999999999999999999999", "too large");
    rejects("5/0s", "0s", "the period is 0");
    rejects("5/-1s", "-1", "the period is negative");
    rejects("5/11years", "11years", "the period is too long; at most 10years");
    rejects("5/99999999999999999999s", "99999999999999999999", "too large");
    rejects("5/", "", "the period is missing");
    rejects("5", "", "expected \"/\" or \"per\"");
    rejects("5 every s", "every", "expected \"/\" or \"per\"");
    rejects("", "", "a rate is <count>/<period>");
    rejects("5/s burst", "", "a burst needs a number");
    rejects("5/s burst 0", "0", "the burst is 0");
    rejects("5/s burst -1", "-1", "the burst is negative");
    rejects("5/s bust 10", "bust", "did you mean \"burst\"?");
    rejects("5/s bursting 10", "bursting", "expected \"burst <n>\"");
    rejects("5/s burst 10 please", "please", "nothing may follow");
}

#[test]
fn a_misspelled_period_gets_a_suggestion() {
    for (text, marked, meant) in [
        ("100/minut", "minut", "minute"),
        ("100/mintue", "mintue", "minute"),
        ("100/Minut", "Minut", "minute"),
        ("100/secs", "secs", "sec"),
        ("100/2hoursx", "hoursx", "hours"),
        ("100/wek", "wek", "week"),
        ("100 per mounth", "mounth", "month"),
    ] {
        let message = format!("unknown period \"{marked}\"; did you mean \"{meant}\"?");
        rejects(text, marked, &message);
    }
}

#[track_caller]
fn rejects_duration(text: &str, marked: &str, message: &str) {
    let error = parse_duration(text).unwrap_err();
    assert_eq!(&text[error.span()], marked, "{error}");
    assert_eq!(error.message(), message);
}

#[test]
fn errors_of_a_duration_do_not_mention_a_period() {
    let expected = "expected a duration such as 5s or 250ms";
    rejects_duration("5", "", &format!("the unit is missing; {expected}"));
    rejects_duration("soon", "soon", expected);
    rejects_duration("", "", expected);
    rejects_duration("10s burst 3", "burst 3", expected);
    rejects_duration("10x", "x", "unknown unit \"x\"; use ms, s, m, h, d, week, month or year");
    rejects_duration("5secnds", "secnds", "unknown unit \"secnds\"; did you mean \"seconds\"?");
    rejects_duration("0s", "0s", "the duration is 0; it must be at least 1ms");
    rejects_duration("-1s", "-1", "the duration is negative; it must be at least 1");
    let remedy = "use a smaller unit: 1.5s is 1500ms";
    rejects_duration("1.5s", "1.5", &format!("the duration is not a whole number; {remedy}"));
    rejects_duration("11years", "11years", "the duration is too long; at most 10years");
}

const UNITS: [&str; 12] = [
    "sec", "second", "seconds", "min", "minute", "minutes", "hour", "hours", "day", "days", "week",
    "month",
];

proptest! {
    #[test]
    fn one_wrong_letter_in_a_unit_gets_a_suggestion(
        unit in proptest::sample::select(&UNITS[..]), at in 0..7usize, letter in "[a-z]",
    ) {
        let at = at % unit.len();
        let typo = [&unit[..at], &letter, &unit[at + 1..]].concat();
        if let Err(error) = format!("1/{typo}").parse::<Rate>() {
            prop_assert!(error.message().contains("; did you mean \""), "{}", error);
        }
    }

    #[test]
    fn a_word_that_is_near_no_unit_gets_no_suggestion(word in "[x-zX-Z]{1,12}") {
        let error = format!("1/{word}").parse::<Rate>().unwrap_err();
        prop_assert!(error.message().ends_with("; use ms, s, m, h, d, week, month or year"));
    }
}

#[test]
fn the_mark_is_printed_under_the_invalid_part() {
    let error = "100/fortnight".parse::<Rate>().unwrap_err().to_string();
    assert!(error.ends_with("\n  100/fortnight\n      ^^^^^^^^^"), "{error}");
}

#[test]
fn the_parser_never_panics() {
    let pieces =
        ["5", "/", "s", " ", "burst", "-", "é", "per", "0", "99999999999999999999", "µ", "\n"];
    for a in pieces {
        for b in pieces {
            for c in pieces {
                for d in pieces {
                    if let Err(error) = format!("{a}{b}{c}{d}").parse::<Rate>() {
                        let _ = error.to_string();
                    }
                }
            }
        }
    }
}

#[test]
fn only_buckets_accept_a_burst() {
    for algorithm in ratekeeper_core::ALGORITHMS {
        let limit = Limit::new("5/s burst 10".parse().unwrap(), *algorithm);
        assert_eq!(limit.is_ok(), algorithm.has_burst(), "{algorithm}");
    }
    let error = Limit::fixed_window("5/s burst 10").unwrap_err().to_string();
    assert!(error.contains("fixed_window has no burst"), "{error}");
}

#[test]
fn algorithms_parse_by_name() {
    for algorithm in ratekeeper_core::ALGORITHMS {
        assert_eq!(algorithm.name().parse::<Algorithm>().unwrap(), *algorithm);
    }
    assert_eq!("gcra".parse::<Algorithm>().unwrap(), Algorithm::TokenBucket);
    let error = "lottery".parse::<Algorithm>().unwrap_err().to_string();
    assert!(error.contains("use one of fixed_window, sliding_log, sliding_counter"), "{error}");
}

#[test]
fn a_log_of_too_many_requests_is_rejected() {
    let error = Limit::sliding_log("10000000/s").unwrap_err().to_string();
    assert!(error.contains("use at most 1000000, or sliding_counter"), "{error}");
}

#[cfg(not(feature = "calendar"))]
#[test]
fn a_calendar_period_needs_its_feature() {
    for text in ["1000/calendar day", "1000/calendar day in Europe/Berlin"] {
        let error = text.parse::<Rate>().unwrap_err();
        assert!(error.message().contains("need the feature \"calendar\""), "{error}");
    }
}
