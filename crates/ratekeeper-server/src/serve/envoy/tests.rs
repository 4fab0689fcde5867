//! What the door answers, with time in our hands.

use std::time::Duration;

use ratekeeper::policy::NoSources;
use ratekeeper::policy::envoy::EnvoyConfig;
use ratekeeper::{ALGORITHMS, ManualClock, Micros, Policy, PolicyLimiter};
use serde_json::{Value as Json, json};

use super::{RateLimitService, RateLimitSettings};
use crate::metrics::Page;
use crate::reload::{When, load};

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

struct Bench {
    door: RateLimitService,
    clock: ManualClock,
}

fn config(text: &str) -> EnvoyConfig {
    let parsed = EnvoyConfig::parse(&[("limits.yaml".into(), text.into())]);
    parsed.unwrap_or_else(|errors| panic!("{errors}"))
}

fn bench_of(text: &str, settings: RateLimitSettings) -> Bench {
    let policy = Policy::parse("policy", "version: 1\nlimits: []", &NoSources).unwrap();
    // Half a minute into a window.
    let clock = ManualClock::at(Micros::new(1_800_000_030_000_000));
    let gate = PolicyLimiter::with_clock(policy, clock.clone()).unwrap();
    Bench { door: RateLimitService::new(gate, config(text), settings), clock }
}

fn bench() -> Bench {
    bench_of(FILE, RateLimitSettings::default())
}

impl Bench {
    fn json(&self, request: &Json) -> (u16, Json) {
        self.body(&request.to_string())
    }

    fn body(&self, body: &str) -> (u16, Json) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (status, answer) = runtime.block_on(self.door.answer_json(body.as_bytes()));
        (status, serde_json::from_str(&answer).unwrap())
    }

    /// Asks in the words of [`descriptor`], and has the codes and what remains.
    fn ask(&self, words: &str) -> String {
        let descriptors: Vec<Json> = words.split(' ').map(descriptor).collect();
        let (status, answer) = self.json(&json!({ "domain": "d", "descriptors": descriptors }));
        let show = |status: &Json| {
            let over = if status["code"] == "OVER_LIMIT" { "over " } else { "" };
            match (&status["currentLimit"], &status["limitRemaining"]) {
                (Json::Null, Json::Null) => "-".to_string(),
                (Json::Null, remaining) => remaining.to_string(),
                (_, remaining) => format!("{over}{}", remaining.as_u64().unwrap_or(0)),
            }
        };
        let statuses = answer["statuses"].as_array().unwrap().iter().map(show);
        let statuses = statuses.collect::<Vec<_>>().join(", ");
        match status {
            200 => statuses,
            429 => format!("LIMITED {statuses}"),
            _ => panic!("{answer}"),
        }
    }

    #[track_caller]
    fn check(&self, words: &str, expected: &str) {
        assert_eq!(self.ask(words), expected, "{words}");
    }
}

/// `key` with the value 1; `key+3` takes 3, `key+0` looks, `key-2` gives back, `key!5` is limited to 5
/// a minute.
fn descriptor(word: &str) -> Json {
    let at = word.find(['+', '-', '!']).unwrap_or(word.len());
    let (key, rest) = word.split_at(at);
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
fn a_window_is_counted_and_turns() {
    let bench = bench();
    bench.check("two", "1");
    bench.check("two", "0");
    bench.check("two", "LIMITED over 0");
    bench.clock.advance(Duration::from_secs(29));
    bench.check("two", "LIMITED over 0");
    bench.clock.advance(Duration::from_secs(1));
    bench.check("two", "1");
}

#[test]
fn every_descriptor_has_its_status() {
    let bench = bench();
    bench.check("free nothing five", "4294967295, -, 4");
    bench.check("both", "2");
    bench.check("both+2", "0");
    bench.check("both", "LIMITED over 0");
}

#[test]
fn a_request_is_charged_everywhere_or_nowhere() {
    let bench = bench();
    bench.check("five two", "4, 1");
    bench.check("two five", "0, 3");
    for _ in 0..3 {
        bench.check("five two", "LIMITED 3, over 0");
    }
    bench.check("five", "2");
    bench.check("five closed", "LIMITED 2, over 0");
    bench.check("five+3 two+0", "LIMITED over 2, over 0");
    bench.check("five", "1");
}

#[test]
fn the_same_descriptor_twice_is_charged_twice() {
    let bench = bench();
    bench.check("five five", "3, 3");
    bench.check("two+2 two", "LIMITED over 2, over 2");
}

/// More than a store takes in one step.
#[test]
fn many_limits_are_charged_everywhere_or_nowhere_too() {
    let bench = bench_of(
        &FILE.replace("requests_per_unit: 5", "requests_per_unit: 100"),
        RateLimitSettings::default(),
    );
    let many = vec!["five"; 40].join(" ");
    assert!(!bench.ask(&many).contains("over"));
    bench.check("five+0", "60");
    for refused in [format!("{many} two+3"), format!("two+3 {many}"), format!("{many} closed")] {
        assert!(bench.ask(&refused).starts_with("LIMITED"), "{refused}");
        bench.check("five+0 two+0", "60, 2");
    }
    assert!(bench.ask(&vec!["five"; 61].join(" ")).starts_with("LIMITED"));
    bench.check("five+0", "60");
}

#[test]
fn hits_are_as_told() {
    let bench = bench();
    bench.check("five+4", "1");
    bench.check("five+0", "1");
    bench.check("five+2", "LIMITED over 1");
    bench.check("five-3", "4");
    bench.check("five-99", "5");
    bench.check("five+0", "5");
    let hits = json!({ "domain": "d", "hitsAddend": 5, "descriptors": [descriptor("five")] });
    assert_eq!(bench.json(&hits).0, 200);
    bench.check("five+0", "LIMITED over 0");
    // What is refused gives nothing back either.
    bench.check("two+3 five-5", "LIMITED over 2, 0");
    bench.check("two five-5", "1, 5");
}

#[test]
fn every_algorithm_gives_back() {
    for algorithm in ALGORITHMS {
        let text = format!(
            "domain: d\ndescriptors: [{{ key: k, rate_limit: {{ rate: 5/minute, algorithm: {algorithm} }} }}]"
        );
        let bench = bench_of(&text, RateLimitSettings::default());
        bench.check("k+5", "0");
        bench.check("k", "LIMITED over 0");
        bench.check("k-2", "2");
        bench.check("k+2", "0");
    }
}

#[test]
fn a_shadow_counts_and_lets_pass() {
    let bench = bench();
    bench.check("shadow", "0");
    bench.check("shadow", "0");
    bench.check("shadow two", "0, 1");
    assert_eq!(bench.door.stats().shadow_over_limit, 2);
    // A refused request is no request to those who watch.
    bench.clock.advance(Duration::from_secs(30));
    bench.check("shadow closed", "LIMITED 1, over 0");
    bench.check("shadow", "0");
}

#[test]
fn a_limit_that_is_nearly_used_up_is_reported() {
    let near_limit = "0.6".parse().unwrap();
    let bench = bench_of(FILE, RateLimitSettings { near_limit, ..RateLimitSettings::default() });
    for (words, near) in [("five+3", 0), ("five", 1), ("five", 2), ("five", 2), ("two-1", 2)] {
        bench.ask(words);
        let mut page = Page::default();
        bench.door.write_metrics(&mut page);
        let told = page.into_text();
        let lines =
            told.lines().filter(|line| line.starts_with("ratekeeper_envoy_near_limit_total"));
        let told: u64 = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
        assert_eq!(told, near, "{words}");
    }
}

#[test]
fn all_of_them_can_be_shadows() {
    let bench =
        bench_of(FILE, RateLimitSettings { is_shadow: true, ..RateLimitSettings::default() });
    bench.check("two+2", "0");
    bench.check("two closed", "0, 0");
    assert_eq!((bench.door.stats().ok, bench.door.stats().over_limit), (2, 0));
}

#[test]
fn a_request_brings_its_own_limit() {
    let bench = bench();
    bench.check("new!1", "0");
    bench.check("new!1", "LIMITED over 0");
    // More is allowed from now on; what was used is still used.
    bench.check("new!3", "1");
    bench.check("two!9", "8");
    bench.check("two", "1");
    bench.check("new!0", "LIMITED over 0");
}

#[test]
fn a_status_tells_its_limit() {
    let bench = bench();
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
    assert_eq!(bench.json(&request), (200, expected));
}

#[test]
fn headers_speak_of_the_tightest() {
    let answers = ratekeeper::policy::ResponseSettings { x_ratelimit: true, ..Default::default() };
    let bench = bench_of(
        FILE,
        RateLimitSettings { headers: Some(answers), ..RateLimitSettings::default() },
    );
    let headers = |words: &str| {
        let descriptors: Vec<Json> = words.split(' ').map(descriptor).collect();
        let (_, answer) = bench.json(&json!({ "domain": "d", "descriptors": descriptors }));
        let headers = answer["responseHeadersToAdd"].as_array().cloned().unwrap_or_default();
        let show = |header: &Json| {
            format!("{}: {}", header["key"].as_str().unwrap(), header["value"].as_str().unwrap())
        };
        let mut headers: Vec<_> = headers.iter().map(show).collect();
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
fn nonsense_is_refused_with_reasons() {
    let bench = bench();
    let entries = json!([{ "key": "two", "value": "1" }]);
    let both = json!([{ "key": "both", "value": "1" }]);
    let cases = [
        (json!({ "descriptors": [{ "entries": entries }] }), "the domain is empty"),
        (json!({ "domain": "d" }), "there are no descriptors"),
        (
            json!({ "domain": "d", "descriptors": [{ "limit": { "requestsPerUnit": 1 } }] }),
            "no unit",
        ),
        (json!({ "domain": "d", "descriptions": [] }), "descriptions"),
        (json!([]), "this is no rate limit request"),
        (
            json!({ "domain": "d", "descriptors": vec![json!({ "entries": entries }); 257] }),
            "257 descriptors; at most 256",
        ),
        (
            json!({ "domain": "d", "descriptors": vec![json!({ "entries": both }); 129] }),
            "258 limits; at most 256",
        ),
    ];
    for (request, why) in cases {
        let (status, answer) = bench.json(&request);
        let told = answer["message"].as_str().unwrap_or_default().to_string();
        assert!(status == 400 && told.contains(why), "{request}: {status} {answer}");
    }
    assert_eq!(bench.door.stats().invalid, 7);
}

#[test]
fn usage_carries_over_to_new_files() {
    let bench = bench();
    bench.check("two", "1");
    bench.door.replace(config(&FILE.replace("requests_per_unit: 2", "requests_per_unit: 7")));
    bench.check("two", "5");
}

#[tokio::test]
async fn why_a_load_failed_is_known_until_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, FILE).unwrap();
    let policy = Policy::parse("policy", "version: 1\nlimits: []", &NoSources).unwrap();
    let gate = PolicyLimiter::new(policy).unwrap();
    let door = RateLimitService::open(folder.path(), gate, RateLimitSettings::default()).unwrap();
    let door = std::sync::Arc::new(door);
    let error = || door.status()["error"].as_str().map(str::to_string);
    assert_eq!(error(), None);
    let limits = door.config().limits().len();

    std::fs::write(&path, FILE.replace("minute", "minuet")).unwrap();
    for _ in 0..2 {
        load(&door, When::Changed).await;
        let told = error().expect("the unit is misspelt");
        assert!(told.contains("limits.yaml:4:") && told.contains("minuet"), "{told}");
        load(&door, When::Always).await;
        assert!(error().is_some());
    }
    assert_eq!(door.config().limits().len(), limits, "the previous limits stay active");

    std::fs::write(&path, FILE).unwrap();
    load(&door, When::Changed).await;
    assert_eq!(error(), None, "they are active again");

    let elsewhere = folder.path().with_extension("gone");
    std::fs::rename(folder.path(), &elsewhere).unwrap();
    load(&door, When::Always).await;
    assert!(error().is_some());
    std::fs::rename(&elsewhere, folder.path()).unwrap();
    load(&door, When::Changed).await;
    assert_eq!(error(), None);
}

#[test]
fn a_field_that_is_given_twice_is_refused() {
    let bench = bench();
    let descriptors = r#""descriptors":[{"entries":[{"key":"two"}]}]"#;
    let good = format!(r#"{{"domain":"d","hits_addend":1,{descriptors}}}"#);
    assert_eq!(bench.body(&good).0, 200);
    for body in [
        format!(r#"{{"domain":"x","domain":"d",{descriptors}}}"#),
        format!(r#"{{"domain":"d",{descriptors},{descriptors}}}"#),
        format!(r#"{{"domain":"d","hits_addend":5,"hitsAddend":1,{descriptors}}}"#),
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"five","key":"two"}]}]}"#.into(),
    ] {
        let (status, answer) = bench.body(&body);
        let told = answer["message"].as_str().unwrap();
        assert!(status == 400 && told.contains("is given twice"), "{body}: {status} {answer}");
    }
}
