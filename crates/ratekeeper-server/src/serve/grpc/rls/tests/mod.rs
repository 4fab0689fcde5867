//! Responses of the service, on a manual clock.

mod peer;

use std::time::Duration;

use ratekeeper::policy::NoSources;
use ratekeeper::policy::envoy::EnvoyConfig;
use ratekeeper::{ALGORITHMS, ManualClock, Micros, Policy, PolicyLimiter};
use serde_json::{Value as Json, json};

use super::{ConfigFolder, GlobalModes, RateLimitService, RateLimitSettings};
use crate::metrics::Page;
use crate::reload::{Reload, ReloadTrigger, load};

const FILE: &str = "
domain: d
descriptors:
  - { key: two, rate_limit: { name: pair, unit: minute, requests_per_unit: 2 } }
  - { key: five, rate_limit: { unit: hour, requests_per_unit: 5 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: closed, rate_limit: { unit: day, requests_per_unit: 0 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: both, rate_limits: [{ rate: 3/s }, { rate: 4/minute, name: slow }] }
";

struct Fixture {
    service: RateLimitService,
    clock: ManualClock,
}

fn config(text: &str) -> EnvoyConfig {
    let parsed = EnvoyConfig::parse(&[("limits.yaml".into(), text.into())]);
    parsed.unwrap_or_else(|errors| panic!("{errors}"))
}

fn fixture_of(text: &str, settings: RateLimitSettings) -> Fixture {
    let policy = Policy::parse("policy", "version: 1\nlimits: []", &NoSources).unwrap();
    // Half a minute into a window.
    let clock = ManualClock::at(Micros::new(1_800_000_030_000_000));
    let limiter = PolicyLimiter::with_clock(policy, clock.clone()).unwrap();
    Fixture { service: RateLimitService::new(limiter, config(text), settings), clock }
}

fn fixture() -> Fixture {
    fixture_of(FILE, RateLimitSettings::default())
}

impl Fixture {
    fn json(&self, request: &Json) -> (u16, Json) {
        self.body(&request.to_string())
    }

    fn body(&self, body: &str) -> (u16, Json) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (status, response) = runtime.block_on(self.service.respond_json(body.as_bytes()));
        (status, serde_json::from_str(&response).unwrap())
    }

    /// Sends descriptors in the notation of [`descriptor`], and returns the codes and what remains.
    fn send(&self, notation: &str) -> String {
        let descriptors: Vec<Json> = notation.split(' ').map(descriptor).collect();
        let (status, response) = self.json(&json!({ "domain": "d", "descriptors": descriptors }));
        let show = |status: &Json| {
            let over = if status["code"] == "OVER_LIMIT" { "over " } else { "" };
            match (&status["currentLimit"], &status["limitRemaining"]) {
                (Json::Null, Json::Null) => "-".to_string(),
                (Json::Null, remaining) => remaining.to_string(),
                (_, remaining) => format!("{over}{}", remaining.as_u64().unwrap_or(0)),
            }
        };
        let statuses = response["statuses"].as_array().unwrap().iter().map(show);
        let statuses = statuses.collect::<Vec<_>>().join(", ");
        match status {
            200 => statuses,
            429 => format!("LIMITED {statuses}"),
            _ => panic!("{response}"),
        }
    }

    #[track_caller]
    fn check(&self, notation: &str, expected: &str) {
        assert_eq!(self.send(notation), expected, "{notation}");
    }
}

/// `key` with the value 1; `key+3` charges 3, `key+0` peeks, `key-2` refunds 2, `key!5` brings a limit of 5
/// per minute.
fn descriptor(notation: &str) -> Json {
    let at = notation.find(['+', '-', '!']).unwrap_or(notation.len());
    let (key, rest) = notation.split_at(at);
    let mut descriptor = json!({ "entries": [{ "key": key, "value": "1" }] });
    let number = rest.get(1..).unwrap_or_default();
    match rest.chars().next() {
        Some('!') => {
            let requests: u32 = number.parse().unwrap();
            descriptor["limit"] = json!({ "requestsPerUnit": requests, "unit": "MINUTE" });
        }
        Some(sign) => {
            descriptor["hits_addend"] = number.into();
            descriptor["is_negative_hits"] = (sign == '-').into();
        }
        None => {}
    }
    descriptor
}

#[test]
fn a_window_is_counted_and_ends() {
    let fixture = fixture();
    fixture.check("two", "1");
    fixture.check("two", "0");
    fixture.check("two", "LIMITED over 0");
    fixture.clock.advance(Duration::from_secs(29));
    fixture.check("two", "LIMITED over 0");
    fixture.clock.advance(Duration::from_secs(1));
    fixture.check("two", "1");
}

#[test]
fn every_descriptor_has_its_status() {
    let fixture = fixture();
    fixture.check("free nothing five", "4294967295, -, 4");
    fixture.check("both", "2");
    fixture.check("both+2", "0");
    fixture.check("both", "LIMITED over 0");
}

#[test]
fn a_request_is_charged_everywhere_or_nowhere() {
    let fixture = fixture();
    fixture.check("five two", "4, 1");
    fixture.check("two five", "0, 3");
    for _ in 0..3 {
        fixture.check("five two", "LIMITED 3, over 0");
    }
    fixture.check("five", "2");
    fixture.check("five closed", "LIMITED 2, over 0");
    fixture.check("five+3 two+0", "LIMITED over 2, over 0");
    fixture.check("five", "1");
}

#[test]
fn the_same_descriptor_twice_is_charged_twice() {
    let fixture = fixture();
    fixture.check("five five", "3, 3");
    fixture.check("two+2 two", "LIMITED over 2, over 2");
}

/// More limits than a store applies at once.
#[test]
fn many_limits_are_charged_everywhere_or_nowhere() {
    let fixture = fixture_of(
        &FILE
            .replace("requests_per_unit: 5", "requests_per_unit: 100, overdraft: false")
            .replace("requests_per_unit: 2", "requests_per_unit: 2, overdraft: false"),
        RateLimitSettings::default(),
    );
    let many = vec!["five"; 40].join(" ");
    assert!(!fixture.send(&many).contains("over"));
    fixture.check("five+0", "60");
    for denied in [format!("{many} two+3"), format!("two+3 {many}"), format!("{many} closed")] {
        assert!(fixture.send(&denied).starts_with("LIMITED"), "{denied}");
        fixture.check("five+0 two+0", "60, 2");
    }
    assert!(fixture.send(&vec!["five"; 61].join(" ")).starts_with("LIMITED"));
    fixture.check("five+0", "60");
}

#[test]
fn hits_of_requests_and_descriptors_count() {
    let fixture = fixture();
    fixture.check("five+4", "1");
    fixture.check("five+2", "LIMITED over 1");
    fixture.check("five-3", "4");
    fixture.check("five-99", "5");
    let hits = json!({ "domain": "d", "hitsAddend": 5, "descriptors": [descriptor("five")] });
    assert_eq!(fixture.json(&hits).0, 200);
    fixture.check("five+0", "LIMITED over 0");
    // A denied request refunds nothing either.
    fixture.check("two+3 five-5", "LIMITED over 2, 0");
    fixture.check("two five-5", "1, 5");
}

#[test]
fn a_limit_that_is_only_looked_at_denies_and_nothing_is_charged() {
    let fixture = fixture();
    fixture.check("two+2", "0");
    for _ in 0..2 {
        fixture.check("two+0 five+3", "LIMITED over 0, 5");
        fixture.check("five+0", "5");
    }
    fixture.clock.advance(Duration::from_secs(60));
    fixture.check("two+0 five+3", "2, 2");
}

const TOKENS: &str = "domain: d\ndescriptors: [{ key: tokens, rate_limit: { unit: hour, requests_per_unit: 1000 } }]";

/// As Envoy does with `apply_on_stream_done`: it looks before the request, and reports after the response.
#[test]
fn usage_that_is_reported_after_a_look_is_charged_in_full() {
    let fixture = fixture_of(TOKENS, RateLimitSettings::default());
    let mut served = 0;
    for _ in 0..50 {
        if !fixture.send("tokens+0").starts_with("LIMITED") {
            fixture.send("tokens+600");
            served += 1;
        }
    }
    assert_eq!(served, 2);
    // Five responses that began before the first one ended: all of them count.
    fixture.clock.advance(Duration::from_secs(3600));
    fixture.check("tokens+0", "1000");
    for reported in ["400", "0", "LIMITED over 0", "LIMITED over 0", "LIMITED over 0"] {
        fixture.check("tokens+600", reported);
    }
    // A refund of what was not used brings it back, as all of it was charged.
    fixture.check("tokens-2500", "500");
}

#[test]
fn a_file_says_whether_hits_are_reports() {
    let with = |overdraft: &str| {
        let text = TOKENS.replace("1000 }", &format!("1000, overdraft: {overdraft} }}"));
        fixture_of(&text, RateLimitSettings::default())
    };
    let fixture = with("true");
    for expected in ["400", "0", "LIMITED over 0"] {
        fixture.check("tokens+600", expected);
    }
    let fixture = with("{ max: 0.5x }");
    for expected in ["0", "LIMITED over 0"] {
        fixture.check("tokens+5000", expected);
    }
    fixture.check("tokens-501", "1"); // of 5000 reported twice, 1500 were charged
    let fixture = with("false");
    fixture.check("tokens+0", "1000");
    for expected in ["400", "LIMITED over 400"] {
        fixture.check("tokens+600", expected);
    }
}

#[tokio::test]
async fn a_folder_without_a_limit_is_not_ready_until_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, "domain: d\ndescriptors: []").unwrap();
    let policy = Policy::parse("policy", "version: 1\nlimits: []", &NoSources).unwrap();
    let limiter = PolicyLimiter::new(policy).unwrap();
    let files = ConfigFolder::new(folder.path());
    let service = RateLimitService::open(files, limiter, RateLimitSettings::default()).unwrap();
    let service = std::sync::Arc::new(service);
    assert!(!service.is_ready());
    std::fs::write(&path, FILE).unwrap();
    load(&service, ReloadTrigger::Changed).await;
    assert!(service.is_ready());
}

/// As Envoy Gateway does for a rule with a cost of the response only: a hit before, the usage afterwards.
#[test]
fn a_request_is_one_hit_that_is_denied_and_not_charged_although_reports_are() {
    let text = TOKENS.replace("1000 }", "1000, overdraft: true }");
    let fixture = fixture_of(&text, RateLimitSettings::default());
    for (notation, left) in [("tokens", "999"), ("tokens+600", "399"), ("tokens", "398")] {
        fixture.check(notation, left);
    }
    fixture.check("tokens+600", "0");
    for _ in 0..5 {
        fixture.check("tokens", "LIMITED over 0");
    }
    fixture.check("tokens-203", "1"); // of 1000, 1202 were used
}

#[test]
fn a_limit_that_the_request_brings_takes_reports_after_a_look() {
    let fixture = fixture_of(TOKENS, RateLimitSettings::default());
    let send = |hits: u64| {
        let mut descriptor = descriptor("own!1000");
        descriptor["hitsAddend"] = hits.to_string().into();
        fixture.json(&json!({ "domain": "any", "descriptors": [descriptor] })).0
    };
    let mut served = 0;
    for _ in 0..50 {
        if send(0) == 200 {
            send(600);
            served += 1;
        }
    }
    assert_eq!(served, 2);
}

/// A request that also has an ordinary descriptor comes before the usage: all or nothing.
#[test]
fn hits_beside_an_ordinary_request_are_no_report() {
    let text = format!("{}\n", TOKENS.replace("1000 }", "1000, overdraft: true }"))
        .replace("} }]", "} }, { key: plain, rate_limit: { unit: day, requests_per_unit: 100 } }]");
    let fixture = fixture_of(&text, RateLimitSettings::default());
    fixture.check("tokens+600 plain", "400, 99");
    fixture.check("tokens+600 plain", "0, 98");
    for _ in 0..3 {
        fixture.check("tokens+600 plain", "LIMITED over 0, 98");
    }
    fixture.check("tokens-201", "1"); // 1200 were used, and the denied requests charged nothing
}

/// A folder that was emptied by mistake.
#[test]
fn files_without_a_limit_do_not_replace_limits() {
    let fixture = fixture();
    let error = fixture.service.activate(Ok(config("domain: d\ndescriptors: []"))).unwrap_err();
    assert!(error.to_string().contains("no limits any more"), "{error}");
    fixture.check("two", "1");
}

#[test]
fn a_reload_keeps_which_limits_are_looked_at() {
    let fixture = fixture_of(TOKENS, RateLimitSettings::default());
    fixture.check("tokens+0", "1000");
    fixture.service.replace(config(&TOKENS.replace("1000", "900")));
    for expected in ["300", "0", "LIMITED over 0"] {
        fixture.check("tokens+600", expected);
    }
}

#[test]
fn every_algorithm_refunds() {
    for algorithm in ALGORITHMS {
        let text = format!(
            "domain: d\ndescriptors: [{{ key: k, rate_limit: {{ rate: 5/minute, algorithm: {algorithm} }} }}]"
        );
        let fixture = fixture_of(&text, RateLimitSettings::default());
        fixture.check("k+5", "0");
        fixture.check("k", "LIMITED over 0");
        fixture.check("k-2", "2");
        fixture.check("k+2", "0");
    }
}

#[test]
fn a_limit_in_shadow_mode_counts_and_allows() {
    let fixture = fixture();
    fixture.check("shadow", "0");
    fixture.check("shadow", "0");
    fixture.check("shadow two", "0, 1");
    assert_eq!(fixture.service.stats().shadow_over_limit, 2);
    // A denied request is not charged to limits in shadow mode.
    fixture.clock.advance(Duration::from_secs(30));
    fixture.check("shadow closed", "LIMITED 1, over 0");
    fixture.check("shadow", "0");
}

#[test]
fn a_limit_that_is_nearly_used_up_is_reported() {
    let near_limit = "0.6".parse().unwrap();
    let fixture =
        fixture_of(FILE, RateLimitSettings { near_limit, ..RateLimitSettings::default() });
    for (notation, near) in [("five+3", 0), ("five", 1), ("five", 2), ("five", 2), ("two-1", 2)] {
        fixture.send(notation);
        let mut page = Page::default();
        fixture.service.write_metrics(&mut page);
        let text = page.into_text();
        let lines =
            text.lines().filter(|line| line.starts_with("ratekeeper_envoy_near_limit_total"));
        let count: u64 =
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
        assert_eq!(count, near, "{notation}");
    }
}

#[test]
fn all_limits_can_be_in_shadow_mode() {
    let modes = GlobalModes { is_shadow: true, ..GlobalModes::default() };
    let fixture = fixture_of(FILE, RateLimitSettings { modes, ..RateLimitSettings::default() });
    fixture.check("two+2", "0");
    fixture.check("two closed", "over 0, over 0");
    assert_eq!((fixture.service.stats().ok, fixture.service.stats().over_limit), (2, 0));
}

#[test]
fn a_request_brings_its_own_limit() {
    let fixture = fixture();
    fixture.check("new!1", "0");
    fixture.check("new!1", "LIMITED over 0");
    // The limit grows; usage carries over.
    fixture.check("new!3", "1");
    fixture.check("two!9", "8");
    fixture.check("two", "1");
    fixture.check("new!0", "LIMITED over 0");
}

#[test]
fn a_status_contains_its_limit() {
    let fixture = fixture();
    let request = json!({ "domain": "d", "descriptors": [descriptor("two"), descriptor("five")] });
    let expected = json!({
        "overallCode": "OK",
        "statuses": [
            {
                "code": "OK",
                "currentLimit": { "requestsPerUnit": 2, "unit": "MINUTE", "name": "pair" },
                "limitRemaining": 1,
                "durationUntilReset": "30s",
            },
            {
                "code": "OK",
                "currentLimit": { "requestsPerUnit": 5, "unit": "HOUR" },
                "limitRemaining": 4,
                "durationUntilReset": "3570s",
            },
        ],
    });
    assert_eq!(fixture.json(&request), (200, expected));
}

#[test]
fn headers_describe_the_binding_limit() {
    let settings = ratekeeper::policy::ResponseSettings { x_ratelimit: true, ..Default::default() };
    let fixture = fixture_of(
        FILE,
        RateLimitSettings { headers: Some(settings), ..RateLimitSettings::default() },
    );
    let headers = |notation: &str| {
        let descriptors: Vec<Json> = notation.split(' ').map(descriptor).collect();
        let (_, response) = fixture.json(&json!({ "domain": "d", "descriptors": descriptors }));
        let headers = response["responseHeadersToAdd"].as_array().cloned().unwrap_or_default();
        let show = |header: &Json| {
            format!("{}: {}", header["key"].as_str().unwrap(), header["value"].as_str().unwrap())
        };
        let mut headers: Vec<_> = headers.iter().map(show).collect();
        headers.retain(|header| !header.starts_with("x-request-id: "));
        headers.sort();
        headers.join("\n")
    };
    assert_eq!(headers("free nothing shadow closed"), "");
    let allowed = "ratelimit-policy: \"pair\";q=2;w=60\nratelimit: \"pair\";r=1;t=30\n\
                   x-ratelimit-limit: 2\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 30";
    assert_eq!(headers("five two"), allowed);
    headers("two");
    assert!(headers("five two").contains("retry-after: 30\n"));
    assert!(headers("five").contains("ratelimit: \"d.five\";r=3;t=3570"), "{}", headers("five"));
}

#[test]
fn invalid_requests_are_rejected_with_a_reason() {
    let fixture = fixture();
    let entries = json!([{ "key": "two", "value": "1" }]);
    let both = json!([{ "key": "both", "value": "1" }]);
    let cases = [
        (json!({ "descriptors": [{ "entries": entries }] }), "the domain is empty"),
        (json!({ "domain": "d" }), "has no descriptors"),
        (
            json!({ "domain": "d", "descriptors": [{ "limit": { "requestsPerUnit": 1 } }] }),
            "no valid unit",
        ),
        (json!({ "domain": "d", "descriptions": [] }), "descriptions"),
        (json!([]), "this is not a rate limit request"),
        (
            json!({ "domain": "d", "descriptors": vec![json!({ "entries": entries }); 257] }),
            "257 descriptors; at most 256",
        ),
        (
            json!({ "domain": "d", "descriptors": vec![json!({ "entries": both }); 129] }),
            "258 limits; at most 256",
        ),
    ];
    for (request, reason) in cases {
        let (status, response) = fixture.json(&request);
        let message = response["message"].as_str().unwrap_or_default().to_string();
        assert!(status == 400 && message.contains(reason), "{request}: {status} {response}");
    }
    assert_eq!(fixture.service.stats().invalid, 7);
}

#[test]
fn usage_carries_over_when_files_change() {
    let fixture = fixture();
    fixture.check("two", "1");
    fixture.service.replace(config(&FILE.replace("requests_per_unit: 2", "requests_per_unit: 7")));
    fixture.check("two", "5");
}

#[tokio::test]
async fn the_error_of_a_load_is_reported_until_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, FILE).unwrap();
    let policy = Policy::parse("policy", "version: 1\nlimits: []", &NoSources).unwrap();
    let limiter = PolicyLimiter::new(policy).unwrap();
    let files = ConfigFolder::new(folder.path());
    let service = RateLimitService::open(files, limiter, RateLimitSettings::default()).unwrap();
    let service = std::sync::Arc::new(service);
    let error = || service.status()["error"].as_str().map(str::to_string);
    assert_eq!(error(), None);
    let limits = service.config().limits().len();

    std::fs::write(&path, FILE.replace("minute", "minuet")).unwrap();
    for _ in 0..2 {
        load(&service, ReloadTrigger::Changed).await;
        let message = error().expect("the unit is misspelt");
        assert!(message.contains("limits.yaml:4:") && message.contains("minuet"), "{message}");
        load(&service, ReloadTrigger::Always).await;
        assert!(error().is_some());
    }
    assert_eq!(service.config().limits().len(), limits, "the previous limits stay active");

    std::fs::write(&path, FILE).unwrap();
    load(&service, ReloadTrigger::Changed).await;
    assert_eq!(error(), None, "they are active again");

    let elsewhere = folder.path().with_extension("gone");
    std::fs::rename(folder.path(), &elsewhere).unwrap();
    load(&service, ReloadTrigger::Always).await;
    assert!(error().is_some());
    std::fs::rename(&elsewhere, folder.path()).unwrap();
    load(&service, ReloadTrigger::Changed).await;
    assert_eq!(error(), None);
}

#[test]
fn a_duplicate_field_is_rejected() {
    let fixture = fixture();
    let descriptors = r#""descriptors":[{"entries":[{"key":"two"}]}]"#;
    let good = format!(r#"{{"domain":"d","hits_addend":1,{descriptors}}}"#);
    assert_eq!(fixture.body(&good).0, 200);
    for body in [
        format!(r#"{{"domain":"x","domain":"d",{descriptors}}}"#),
        format!(r#"{{"domain":"d",{descriptors},{descriptors}}}"#),
        format!(r#"{{"domain":"d","hits_addend":5,"hitsAddend":1,{descriptors}}}"#),
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"five","key":"two"}]}]}"#.into(),
    ] {
        let (status, response) = fixture.body(&body);
        let message = response["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("is given twice"), "{body}: {status} {response}");
    }
}

#[test]
fn a_unit_in_a_time_zone_ends_with_its_calendar_window() {
    let fixture = fixture_of(
        "
domain: d
descriptors:
  - { key: k, rate_limit: { unit: day, requests_per_unit: 5, time_zone: Asia/Kolkata } }
",
        RateLimitSettings::default(),
    );
    // 2027-01-15 8:00:30 in UTC is 13:30:30 in Kolkata.
    let request =
        json!({ "domain": "d", "descriptors": [{ "entries": [{ "key": "k", "value": "v" }] }] });
    let (_, response) = fixture.json(&request);
    let status = &response["statuses"][0];
    assert_eq!(status["currentLimit"]["unit"], "DAY", "{response}");
    assert_eq!(
        status["durationUntilReset"],
        format!("{}s", 10 * 3_600 + 29 * 60 + 30),
        "{response}"
    );
}
