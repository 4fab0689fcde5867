//! Headers as servers send them, and what is read from them.

use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use ratekeeper_control::{Micros, Pushback, QuotaHint, ResponseHints};

/// 2026-10-19 12:00:00 UTC, a Monday.
const NOW_SECS: u64 = 1_792_411_200;
const NOW: Micros = Micros::new_unchecked(NOW_SECS * 1_000_000);
const HOUR: Duration = Duration::from_secs(3_600);

fn read(status: u16, headers: &[(&str, &str)]) -> ResponseHints {
    read_at(NOW, status, headers)
}

fn read_at(now: Micros, status: u16, headers: &[(&str, &str)]) -> ResponseHints {
    let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
    ResponseHints::read(status, headers, now, HOUR)
}

fn secs(secs: u64) -> Option<Duration> {
    Some(Duration::from_secs(secs))
}

fn millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

fn quota(limit: u64, remaining: u64, reset_after: Option<Duration>) -> Option<QuotaHint> {
    let (limit, remaining) = (Some(limit), Some(remaining));
    Some(QuotaHint { limit, window: None, remaining, reset_after })
}

fn quota_in(window: u64, quota: Option<QuotaHint>) -> Option<QuotaHint> {
    quota.map(|quota| QuotaHint { window: secs(window), ..quota })
}

#[test]
fn ratekeeper() {
    let hints = read(
        200,
        &[
            ("content-type", "application/json"),
            ("ratelimit-policy", r#""api";q=100;w=60"#),
            ("ratelimit", r#""api";r=99;t=1"#),
            ("x-ratelimit-limit", "100"),
            ("x-ratelimit-remaining", "99"),
            ("x-ratelimit-reset", "1"),
        ],
    );
    assert_eq!(hints.requests, quota_in(60, quota(100, 99, secs(1))));
    assert_eq!((hints.retry_after, hints.tokens), (None, None));
    assert!(!hints.is_refusal());
}

#[test]
fn github() {
    let reset = (NOW_SECS + 1_800).to_string();
    let headers = [
        ("date", "Mon, 19 Oct 2026 12:00:00 GMT"),
        ("x-github-media-type", "github.v3; format=json"),
        ("x-ratelimit-limit", "5000"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", &reset),
        ("x-ratelimit-used", "5000"),
        ("x-ratelimit-resource", "core"),
    ];
    let hints = read(403, &headers);
    assert_eq!(hints.requests, quota(5_000, 0, secs(1_800)));
    assert!(hints.is_refusal());
    assert_eq!(hints.wait(), secs(1_800));

    let secondary = read(403, &[("retry-after", "60"), ("x-ratelimit-remaining", "4999")]);
    assert_eq!(secondary.retry_after, secs(60));
    assert!(secondary.is_refusal());
    assert!(!read(403, &[("x-ratelimit-remaining", "4999")]).is_refusal(), "a plain 403");
}

#[test]
fn openai() {
    let hints = read(
        429,
        &[
            ("x-ratelimit-limit-requests", "500"),
            ("x-ratelimit-limit-tokens", "30000"),
            ("x-ratelimit-remaining-requests", "499"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-requests", "120ms"),
            ("x-ratelimit-reset-tokens", "6m0s"),
            ("retry-after-ms", "2500"),
            ("retry-after", "3"),
            ("x-should-retry", "true"),
        ],
    );
    assert_eq!(hints.requests, quota(500, 499, millis(120)));
    assert_eq!(hints.tokens, quota(30_000, 0, secs(360)));
    assert_eq!((hints.retry_after, hints.should_retry), (millis(2_500), Some(true)));
    assert!(hints.is_refusal());
}

#[test]
fn anthropic() {
    let hints = read(
        200,
        &[
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2026-10-19T12:00:01Z"),
            ("anthropic-ratelimit-tokens-limit", "48000"),
            ("anthropic-ratelimit-tokens-remaining", "40000"),
            ("anthropic-ratelimit-tokens-reset", "2026-10-19T12:00:10Z"),
            ("anthropic-ratelimit-input-tokens-limit", "40000"),
            ("anthropic-ratelimit-input-tokens-remaining", "38000"),
            ("anthropic-ratelimit-input-tokens-reset", "2026-10-19T12:00:03Z"),
            ("anthropic-ratelimit-output-tokens-limit", "8000"),
            ("anthropic-ratelimit-output-tokens-remaining", "2000"),
            ("anthropic-ratelimit-output-tokens-reset", "2026-10-19T12:00:45Z"),
            ("anthropic-organization-id", "1"),
        ],
    );
    assert_eq!(hints.requests, quota(50, 49, secs(1)));
    assert_eq!(hints.tokens, quota(8_000, 2_000, secs(45)));
}

#[test]
fn discord() {
    let hints = read(
        429,
        &[
            ("retry-after", "65"),
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1792411264.57"),
            ("x-ratelimit-reset-after", "64.57"),
            ("x-ratelimit-bucket", "abcd1234"),
            ("x-ratelimit-scope", "user"),
        ],
    );
    assert_eq!(hints.requests, quota(10, 0, millis(64_570)));
    assert_eq!(hints.retry_after, secs(65));
}

#[test]
fn docker_hub() {
    let headers = [("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", "76;w=21600")];
    assert_eq!(read(200, &headers).requests, quota_in(21_600, quota(100, 76, None)));
}

#[test]
fn a_refusal_with_only_a_status() {
    let hints = read(429, &[("content-type", "application/json"), ("request-id", "req_1")]);
    assert!(hints.is_refusal());
    assert_eq!((hints.retry_after, hints.requests, hints.wait()), (None, None, None));
}

#[test]
fn refusals() {
    for (status, headers, is_refusal) in [
        (200, vec![], false),
        (403, vec![], false),
        (403, vec![("x-ratelimit-remaining", "0")], true),
        (500, vec![("retry-after", "1")], false),
        (503, vec![], false),
        (503, vec![("retry-after", "1")], true),
        (503, vec![("retry-after", "soon")], false),
        (200, vec![("grpc-status", "8")], true),
        (200, vec![("grpc-status", "14")], false),
        (0, vec![], false),
    ] {
        assert_eq!(read(status, &headers).is_refusal(), is_refusal, "{status} {headers:?}");
    }
}

#[test]
fn aws() {
    let address = "ThrottlingException:http://internal.example/coral/";
    for name in ["ThrottlingException", address, "SlowDown"] {
        let hints = read(400, &[("x-amzn-errortype", name)]);
        assert!(hints.is_refusal() && hints.wait().is_none(), "{name}");
        assert!(!read(200, &[("x-amzn-errortype", name)]).is_refusal());
    }
    assert!(!read(400, &[("x-amzn-errortype", "ValidationException")]).is_refusal());
}

#[test]
fn the_pushback_of_a_refusal_is_its_wait() {
    let pushed_back = |status| {
        let headers = [("grpc-status", status), ("grpc-retry-pushback-ms", "1500")];
        read(200, &headers).wait()
    };
    assert_eq!(pushed_back("8"), Some(Duration::from_millis(1_500)));
    assert_eq!(pushed_back("14"), None);
}

#[test]
fn lists_of_limits() {
    for (policies, limits, expected) in [
        (vec![r#""a";q=10;w=2"#], vec![r#""a";r=4;t=1"#], quota_in(2, quota(10, 4, secs(1)))),
        // The least remaining, with the policy of its name.
        (
            vec![r#""a";q=10;w=1, "b";q=100;w=60"#],
            vec![r#""a";r=9;t=1, "b";r=3;t=40"#],
            quota_in(60, quota(100, 3, secs(40))),
        ),
        // Over several lines, in another order.
        (
            vec![r#""b";q=100;w=60"#, r#""a";q=10;w=1"#],
            vec![r#""a";r=0;t=1"#, r#""b";r=0;t=40"#],
            quota_in(60, quota(100, 0, secs(40))),
        ),
        // Names with what separates items and parameters.
        (
            vec![r#""a";q=1;w=1,"x,\"y\";q=7";q=5;w=9"#],
            vec![r#""x,\"y\";q=7";r=2;t=3"#],
            quota_in(9, quota(5, 2, secs(3))),
        ),
        // Other units are no requests.
        (
            vec![r#""a";q=9000;qu="content-bytes";w=1, "b";q=10;qu="requests";w=60"#],
            vec![r#""a";r=1;t=1, "b";r=8;t=2"#],
            quota_in(60, quota(10, 8, secs(2))),
        ),
        (vec![r#""a";q=9;qu="concurrent-requests""#], vec![r#""a";r=1"#], None),
        // Policies alone, and limits alone.
        (
            vec![r#""a";q=10;w=2;pk=:dXNlcg==:"#],
            vec![],
            Some(QuotaHint { limit: Some(10), window: secs(2), ..QuotaHint::default() }),
        ),
        (
            vec![],
            vec![r#""a";r=4;t=1"#],
            Some(QuotaHint { remaining: Some(4), reset_after: secs(1), ..QuotaHint::default() }),
        ),
        (
            vec![r#""other";q=5;w=1"#],
            vec![r#""a";r=4"#],
            Some(QuotaHint { remaining: Some(4), ..QuotaHint::default() }),
        ),
        // Names as tokens.
        (vec!["default;q=10;w=2"], vec!["default;r=4;t=1"], quota_in(2, quota(10, 4, secs(1)))),
        // Older drafts.
        (vec![], vec!["limit=100, remaining=50, reset=5"], quota(100, 50, secs(5))),
        (
            vec!["10;w=1, 100;w=60"],
            vec!["limit=100, remaining=50, reset=5"],
            quota_in(60, quota(100, 50, secs(5))),
        ),
        // Not readable.
        (vec![r#""a";q=10;w=0"#], vec![r#""a";r=x;t=1"#], limit_only(10)),
        (vec![r#"("a" "b");q=10"#], vec![r#""a"#], None),
        (vec![""], vec![""], None),
    ] {
        let policies = policies.iter().map(|value| ("ratelimit-policy", *value));
        let limits = limits.iter().map(|value| ("ratelimit", *value));
        let headers: Vec<_> = limits.chain(policies).collect();
        assert_eq!(read(200, &headers).requests, expected, "{headers:?}");
    }
}

fn limit_only(limit: u64) -> Option<QuotaHint> {
    Some(QuotaHint { limit: Some(limit), ..QuotaHint::default() })
}

#[test]
fn families_of_quota_headers() {
    for (headers, expected) in [
        (
            [
                ("ratelimit-limit", "100, 100;w=60"),
                ("ratelimit-remaining", "5"),
                ("ratelimit-reset", "7"),
            ],
            quota_in(60, quota(100, 5, secs(7))),
        ),
        (
            [
                ("x-rate-limit-limit", "900"),
                ("x-rate-limit-remaining", "5"),
                ("x-rate-limit-reset", "1792411207"),
            ],
            quota(900, 5, secs(7)),
        ),
        (
            [
                ("x-ratelimit-limit", " 9 "),
                ("x-ratelimit-remaining", "\t5"),
                ("x-ratelimit-reset", "7 "),
            ],
            quota(9, 5, secs(7)),
        ),
        // Names in upper case are not recognized.
        ([("X-RateLimit-Limit", "9"), ("X-RateLimit-Remaining", "5"), ("Retry-After", "7")], None),
        // What says what remains wins.
        (
            [("ratelimit-limit", "1"), ("x-ratelimit-remaining", "5"), ("x-ratelimit-limit", "9")],
            quota(9, 5, None),
        ),
        (
            [
                ("x-ratelimit-limit", "-1"),
                ("x-ratelimit-remaining", "many"),
                ("x-ratelimit-reset", ""),
            ],
            None,
        ),
    ] {
        assert_eq!(read(200, &headers).requests, expected, "{headers:?}");
    }
}

#[test]
fn resets() {
    for (reset, expected) in [
        ("0", secs(0)),
        ("30", secs(30)),
        ("1.5", millis(1_500)),
        ("86400", Some(HOUR)),
        ("99999999", Some(HOUR)),
        ("1792411230", secs(30)),
        ("1792411230.25", millis(30_250)),
        ("1792411230250", millis(30_250)),
        ("1792411100", secs(0)),
        ("1792499999", Some(HOUR)),
        ("9999999999", None),
        ("1792411230250000", None),
        ("999999999999999999999999999999", None),
        ("-5", None),
        ("NaN", None),
        ("soon", None),
        ("6m0s", secs(360)),
        ("1h2m3.5s", Some(HOUR)),
        ("2026-10-19T12:00:30Z", secs(30)),
        ("2026-10-19T14:00:30.5+02:00", millis(30_500)),
        ("2020-01-01T00:00:00Z", secs(0)),
        ("Mon, 19 Oct 2026 12:00:30 GMT", secs(30)),
    ] {
        let requests = read(200, &[("x-ratelimit-reset", reset)]).requests;
        assert_eq!(requests.and_then(|quota| quota.reset_after), expected, "{reset}");
    }
}

#[test]
fn a_clock_that_does_not_count_from_the_epoch_reads_seconds_left() {
    for now in [0, 1, 10_000_000] {
        let hints = read_at(Micros::new(now), 200, &[("x-ratelimit-reset", "30")]);
        assert_eq!(hints.requests.unwrap().reset_after, secs(30));
    }
}

#[test]
fn retry_after() {
    for (headers, expected) in [
        (vec![("retry-after", "0")], secs(0)),
        (vec![("retry-after", " 7 ")], secs(7)),
        (vec![("retry-after", "0.5")], millis(500)),
        (vec![("retry-after", "Mon, 19 Oct 2026 12:00:30 GMT")], secs(30)),
        (vec![("retry-after", "Monday, 19-Oct-26 12:00:30 GMT")], secs(30)),
        (vec![("retry-after", "Mon Oct 19 12:00:30 2026")], secs(30)),
        (vec![("retry-after", "Mon, 19 Oct 2026 11:59:30 GMT")], secs(0)),
        (vec![("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")], Some(HOUR)),
        (vec![("retry-after", "Mon, 30 Feb 2026 12:00:00 GMT")], None),
        (vec![("retry-after", "99999999")], Some(HOUR)),
        (vec![("retry-after", "999999999999999999999999999999")], Some(HOUR)),
        (vec![("retry-after", "-1")], None),
        (vec![("retry-after", "")], None),
        (vec![("retry-after", "demain à midi")], None),
        (vec![("retry-after-ms", "1500"), ("retry-after", "9")], millis(1_500)),
        (vec![("retry-after", "9"), ("retry-after-ms", "0.5")], Some(Duration::from_micros(500))),
        (vec![("retry-after", "9"), ("retry-after-ms", "never")], secs(9)),
        // The first of several lines.
        (vec![("retry-after", "9"), ("retry-after", "2")], secs(9)),
    ] {
        assert_eq!(read(429, &headers).retry_after, expected, "{headers:?}");
    }
}

#[test]
fn times_are_compared_with_the_date_of_the_response() {
    let date = ("date", "Mon, 19 Oct 2026 09:00:00 GMT");
    let hints = read(503, &[("retry-after", "Mon, 19 Oct 2026 09:00:20 GMT"), date]);
    assert_eq!(hints.retry_after, secs(20));
    let invalid = ("date", "yesterday");
    let hints = read(503, &[invalid, ("retry-after", "Mon, 19 Oct 2026 12:00:20 GMT")]);
    assert_eq!(hints.retry_after, secs(20));
}

#[test]
fn grpc() {
    for (value, expected) in [
        ("0", Pushback::After(Duration::ZERO)),
        ("1500", Pushback::After(Duration::from_millis(1_500))),
        ("999999999999", Pushback::After(HOUR)),
        ("-1", Pushback::DoNotRetry),
        ("", Pushback::DoNotRetry),
        ("soon", Pushback::DoNotRetry),
        ("1.5", Pushback::DoNotRetry),
        ("999999999999999999999999999999", Pushback::DoNotRetry),
    ] {
        let hints = read(200, &[("grpc-status", "14"), ("grpc-retry-pushback-ms", value)]);
        assert_eq!((hints.pushback, hints.grpc_status), (Some(expected), Some(14)), "{value}");
    }
    assert_eq!(read(200, &[("grpc-status", "99999")]).grpc_status, None);
}

#[test]
fn should_retry() {
    for (value, expected) in
        [("true", Some(true)), ("False", Some(false)), ("1", None), ("", None), ("maybe", None)]
    {
        assert_eq!(read(500, &[("x-should-retry", value)]).should_retry, expected, "{value}");
    }
}

#[test]
fn lists_without_end_are_read_up_to_a_maximum() {
    let list = r#""a";r=4;t=1,"#.repeat(20_000);
    let policies = r#""b";q=4;w=1,"#.repeat(20_000);
    let lines = [("ratelimit", list.as_str()), ("ratelimit-policy", policies.as_str())];
    let hints = read(200, &lines.repeat(50));
    assert_eq!(hints.requests.unwrap().remaining, Some(4));
}

const NAMES: [&str; 26] = [
    "",
    "age",
    "date",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "grpc-status",
    "grpc-retry-pushback-ms",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "ratelimit-",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-rate-limit-reset",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-tokens",
    "x-ratelimit-",
    "anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-input-tokens-reset",
    "anthropic-ratelimit-",
    "é",
];

/// Bytes that are no text, and text that is nearly valid.
fn any_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[-+0-9.]{0,40}".prop_map(String::into_bytes),
        "[-0-9hmsnuµT:.Z+ ]{0,30}".prop_map(String::into_bytes),
        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{0,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
            .prop_map(String::into_bytes),
        r#"("[abc,;\\"]{0,4}"|[a-z0-9]{1,3})(;[rtqwu]{1,2}=[0-9":\\]{0,12}){0,3}[, ]{0,2}"#
            .prop_map(String::into_bytes),
    ]
}

fn any_headers() -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    prop::collection::vec((prop::sample::select(&NAMES[..]), any_value()), 0..12)
}

fn waits(hints: &ResponseHints) -> impl Iterator<Item = Duration> {
    let pushback = hints.pushback.and_then(|pushback| match pushback {
        Pushback::After(wait) => Some(wait),
        Pushback::DoNotRetry => None,
    });
    let resets =
        [hints.requests, hints.tokens].map(|quota| quota.and_then(|quota| quota.reset_after));
    [hints.retry_after, pushback, hints.wait(), resets[0], resets[1]].into_iter().flatten()
}

fn http_date(secs: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(secs))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn each_wait_is_bounded_whatever_the_bytes(
        status: u16, headers in any_headers(), now: u64, max_wait_ms in 0..100_000u64,
    ) {
        let max_wait = Duration::from_millis(max_wait_ms);
        let headers = headers.iter().map(|(name, value)| (*name, value.as_slice()));
        let hints = ResponseHints::read(status, headers, Micros::new(now), max_wait);
        for wait in waits(&hints) {
            prop_assert!(wait <= max_wait, "{hints:?}");
        }
    }

    #[test]
    fn a_time_ahead_is_the_wait(now in 1_000_000_000..4_000_000_000u64, ahead in 0..3_600u64) {
        let at = now + ahead;
        let (date, seconds, millis) = (http_date(at), at.to_string(), format!("{at}000"));
        let now = Micros::new(now * 1_000_000);
        for reset in [&date, &seconds, &millis] {
            let hints = read_at(now, 429, &[("x-ratelimit-reset", reset)]);
            prop_assert_eq!(hints.requests.unwrap().reset_after, secs(ahead), "{}", reset);
        }
        let hints = read_at(now, 429, &[("retry-after", &date)]);
        prop_assert_eq!(hints.retry_after, secs(ahead));
    }

    #[test]
    fn with_a_date_the_local_clock_does_not_matter(
        status: u16, headers in any_headers(), server in 0..4_000_000_000u64, ahead in 0..10_000u64,
        one: u64, other: u64,
    ) {
        let at = server + ahead;
        let (date, until, reset) = (http_date(server), http_date(at), at.to_string());
        let times = [("date", &date), ("retry-after", &until), ("x-ratelimit-reset", &reset)];
        let read = |now| {
            let times = times.iter().map(|(name, value)| (*name, value.as_bytes()));
            let headers = headers.iter().map(|(name, value)| (*name, value.as_slice()));
            ResponseHints::read(status, times.chain(headers), Micros::new(now), HOUR)
        };
        prop_assert_eq!(read(one), read(other));
    }
}
