//! Parsing rates: valid forms, and the messages of errors.

use ratekeeper_core::{Algorithm, Limit, Rate};

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
    rejects("100/fortnight", "fortnight", "periods are ms, s, sec, second, seconds, m,");
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
    rejects("5/s bust 10", "bust", "expected \"burst <n>\"");
    rejects("5/s burst 10 please", "please", "nothing may follow");
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
