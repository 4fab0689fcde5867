//! Cases of envoyproxy/ratelimit's own tests: quota mode, shadow mode, response headers and dynamic metadata.

use serde_json::{Value as Json, json};

use super::{Fixture, fixture_of};
use crate::serve::grpc::rls::{GlobalModes, LimitHeaders, RateLimitSettings};

/// The limits of its example configuration, and a regular one.
const FILE: &str = "
domain: rl
descriptors:
  - key: service
    value: service_1
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
    metadata: { service_with_quota: { name: service_1, zone: a } }
  - key: service
    value: service_2
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
    metadata: { service_with_quota: { name: service_2, backup: yes }, tier: 2 }
  - { key: regular, rate_limit: { unit: minute, requests_per_unit: 3 } }
  - { key: shady, shadow_mode: true, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: none_left, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 0 } }
  - { key: free, quota_mode: true, rate_limit: { unlimited: true } }
  - key: several
    quota_mode: true
    rate_limits: [{ rate: 2/minute }, { rate: 1/hour, name: hourly }]
";

/// Sends entries such as `service=service_1`, with hits after a `+`.
fn request(fixture: &Fixture, entries: &str) -> (u16, Json) {
    let descriptor = |entry: &str| {
        let (entry, hits) = entry.split_once('+').map_or((entry, None), |(e, n)| (e, Some(n)));
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        let mut descriptor = json!({ "entries": [{ "key": key, "value": value }] });
        if let Some(hits) = hits {
            descriptor["hitsAddend"] = hits.into();
        }
        descriptor
    };
    let descriptors: Vec<Json> = entries.split(' ').map(descriptor).collect();
    fixture.json(&json!({ "domain": "rl", "descriptors": descriptors, "hitsAddend": 1 }))
}

/// Returns the overall code, and that of each descriptor.
fn codes(fixture: &Fixture, entries: &str) -> String {
    let (status, response) = request(fixture, entries);
    let overall = response["overallCode"].as_str().unwrap();
    assert_eq!(status == 429, overall == "OVER_LIMIT", "{response}");
    let statuses = response["statuses"].as_array().unwrap().iter();
    let each: Vec<_> = statuses.map(|status| status["code"].as_str().unwrap()).collect();
    format!("{overall}: {}", each.join(" "))
}

fn fixture(settings: RateLimitSettings) -> Fixture {
    fixture_of(FILE, settings)
}

fn modes(is_shadow: bool, is_quota: bool) -> Fixture {
    fixture(RateLimitSettings { modes: GlobalModes { is_shadow, is_quota }, ..Default::default() })
}

const SERVICES: &str = "service=service_1 service=service_2";

/// `integration-test/scripts/quota.sh`: a minute serves two requests, and the third is refused.
#[test]
fn a_request_is_refused_when_all_its_quotas_are_over() {
    let fixture = modes(false, false);
    assert_eq!(codes(&fixture, SERVICES), "OK: OK OK");
    assert_eq!(codes(&fixture, SERVICES), "OK: OVER_LIMIT OK");
    for _ in 0..3 {
        assert_eq!(codes(&fixture, SERVICES), "OVER_LIMIT: OVER_LIMIT OVER_LIMIT");
    }
    fixture.clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(codes(&fixture, SERVICES), "OK: OK OK");
}

#[test]
fn a_regular_limit_refuses_whatever_the_quotas_and_nothing_is_charged() {
    let fixture = modes(false, false);
    assert_eq!(codes(&fixture, "regular+3"), "OK: OK");
    for _ in 0..2 {
        assert_eq!(codes(&fixture, "regular service=service_1"), "OVER_LIMIT: OVER_LIMIT OK");
    }
    assert_eq!(codes(&fixture, "service=service_1"), "OK: OK", "it was not charged");
}

/// All quotas are over, so that the regular limit is not charged either.
#[test]
fn a_request_without_quota_is_charged_nowhere() {
    let fixture = modes(false, false);
    codes(&fixture, "service=service_1");
    for _ in 0..5 {
        assert_eq!(codes(&fixture, "regular service=service_1"), "OVER_LIMIT: OK OVER_LIMIT");
    }
    assert_eq!(codes(&fixture, "regular+3"), "OK: OK");
}

#[test]
fn a_quota_that_is_over_leaves_the_others_to_be_charged() {
    let fixture = modes(false, false);
    codes(&fixture, "service=service_1");
    assert_eq!(
        codes(&fixture, "regular service=service_1 service=service_2"),
        "OK: OK OVER_LIMIT OK"
    );
    assert_eq!(codes(&fixture, "regular+3"), "OVER_LIMIT: OVER_LIMIT", "one is used");
    assert_eq!(codes(&fixture, "service=service_2+2"), "OVER_LIMIT: OVER_LIMIT", "one is used");
    assert_eq!(codes(&fixture, "none_left service=service_2"), "OK: OVER_LIMIT OK");
    assert_eq!(codes(&fixture, "none_left regular"), "OVER_LIMIT: OVER_LIMIT OK");
}

/// With a look at the quotas, as its `/tokenquota` route does before the request.
#[test]
fn a_look_finds_quotas_that_are_over() {
    let fixture = modes(false, false);
    let look = "service=service_1+0 service=service_2+0";
    assert_eq!(codes(&fixture, look), "OK: OK OK");
    codes(&fixture, "service=service_1");
    assert_eq!(codes(&fixture, look), "OK: OVER_LIMIT OK");
    codes(&fixture, "service=service_2+2");
    assert_eq!(codes(&fixture, look), "OVER_LIMIT: OVER_LIMIT OVER_LIMIT");
}

#[test]
fn quotas_in_shadow_mode_and_without_limit_are_as_in_envoyproxy_ratelimit() {
    let fixture = modes(false, false);
    codes(&fixture, "service=service_1 shady");
    // One in shadow mode says OK, so not all are over.
    assert_eq!(codes(&fixture, "service=service_1 shady"), "OK: OVER_LIMIT OK");
    // An unlimited one does not count.
    assert_eq!(codes(&fixture, "service=service_1 free"), "OVER_LIMIT: OVER_LIMIT OK");
    assert_eq!(codes(&fixture, "service=service_1 unknown"), "OVER_LIMIT: OVER_LIMIT OK");
}

#[test]
fn a_descriptor_with_several_limits_is_one_quota() {
    let fixture = modes(false, false);
    assert_eq!(codes(&fixture, "several service=service_2"), "OK: OK OK");
    assert_eq!(codes(&fixture, "several service=service_2"), "OK: OVER_LIMIT OK");
    assert_eq!(codes(&fixture, "several service=service_2"), "OVER_LIMIT: OVER_LIMIT OVER_LIMIT");
}

#[test]
fn all_limits_can_be_quotas() {
    let fixture = modes(false, true);
    codes(&fixture, "regular+3 service=service_1");
    assert_eq!(codes(&fixture, "regular service=service_2"), "OK: OVER_LIMIT OK");
    assert_eq!(codes(&fixture, "regular service=service_1"), "OVER_LIMIT: OVER_LIMIT OVER_LIMIT");
    assert_eq!(codes(&fixture, "regular"), "OVER_LIMIT: OVER_LIMIT");
    // A descriptor without a limit is a quota that is never over.
    assert_eq!(codes(&fixture, "regular unknown"), "OK: OVER_LIMIT OK");
    assert_eq!(codes(&fixture, "regular free"), "OVER_LIMIT: OVER_LIMIT OK");
}

#[test]
fn in_global_shadow_mode_statuses_are_over_and_the_overall_code_is_ok() {
    let fixture = modes(true, false);
    codes(&fixture, "regular+3 service=service_1");
    assert_eq!(codes(&fixture, "regular unknown"), "OK: OVER_LIMIT OK");
    assert_eq!(codes(&fixture, "regular service=service_1"), "OK: OVER_LIMIT OVER_LIMIT");
    assert_eq!(codes(&fixture, "service=service_1"), "OK: OVER_LIMIT");
    assert_eq!(codes(&fixture, "shady+9"), "OK: OK");
    assert_eq!(fixture.service.stats().shadow_over_limit, 4);
}

/// `integration-test/scripts/replaces.sh`: a limit that is replaced neither refuses nor is charged.
#[test]
fn a_replaced_limit_is_neither_checked_nor_charged() {
    let fixture = fixture_of(
        "
domain: rl
descriptors:
  - { key: account, rate_limit: { unit: minute, requests_per_unit: 4, replaces: [{ name: banned }, { name: slow }] } }
  - { key: banned, rate_limit: { unit: minute, requests_per_unit: 0, name: banned } }
  - { key: slow, rate_limit: { unit: minute, requests_per_unit: 1, name: slow } }
  - { key: other, rate_limit: { unit: minute, requests_per_unit: 2, replaces: [{ name: banned }] } }
",
        RateLimitSettings::default(),
    );
    assert_eq!(codes(&fixture, "banned"), "OVER_LIMIT: OVER_LIMIT");
    assert_eq!(codes(&fixture, "banned other"), "OK: OK OK");
    for _ in 0..4 {
        assert_eq!(codes(&fixture, "slow banned account"), "OK: OK OK OK");
    }
    assert_eq!(codes(&fixture, "slow banned account"), "OVER_LIMIT: OK OK OVER_LIMIT");
    assert_eq!(codes(&fixture, "slow other"), "OK: OK OK", "it was not charged");
    assert_eq!(codes(&fixture, "slow other"), "OVER_LIMIT: OVER_LIMIT OVER_LIMIT");
}

fn headers(response: &Json) -> Vec<(String, String)> {
    let headers = response["responseHeadersToAdd"].as_array().cloned().unwrap_or_default();
    let text = |value: &Json| value.as_str().unwrap_or_default().to_string();
    headers.iter().map(|header| (text(&header["key"]), text(&header["value"]))).collect()
}

#[test]
fn headers_are_those_of_envoyproxy_ratelimit() {
    let limit_headers = Some(LimitHeaders {
        limit: "A-Ratelimit-Limit".into(),
        remaining: "A-Ratelimit-Remaining".into(),
        reset: "A-Ratelimit-Reset".into(),
    });
    let fixture = fixture(RateLimitSettings { limit_headers, ..Default::default() });
    let sent = |entries: &str| {
        let mut all = headers(&request(&fixture, entries).1);
        // A refusal has one more.
        all.retain(|(name, _)| name != "x-request-id");
        let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
        if !all.is_empty() {
            assert_eq!(names, ["A-Ratelimit-Limit", "A-Ratelimit-Remaining", "A-Ratelimit-Reset"]);
        }
        all.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(sent("unknown"), "");
    assert_eq!(sent("free"), "");
    // The descriptor of which least is left; half a minute into the window.
    assert_eq!(sent("regular service=service_2"), "2 1 30");
    assert_eq!(sent("regular unknown"), "3 1 30");
    assert_eq!(sent("regular"), "3 0 30");
    // The one that denies.
    assert_eq!(sent("service=service_2 regular"), "3 0 30");
    assert_eq!(sent("none_left regular"), "3 0 30");
    assert_eq!(sent("none_left service=service_2"), "0 0 30");
}

fn metadata(fixture: &Fixture, entries: &str) -> Json {
    request(fixture, entries).1["dynamicMetadata"].clone()
}

#[test]
fn metadata_of_descriptors_that_pass_becomes_dynamic_metadata() {
    let fixture = fixture(RateLimitSettings { has_dynamic_metadata: true, ..Default::default() });
    // Of a name in both, the first value counts.
    let expected = json!({
        "domain": "rl",
        "descriptors": [{ "entries": ["service=service_1"] }, { "entries": ["service=service_2"] }],
        "hitsAddend": 1.0,
        "metadata": {
            "service_with_quota": { "name": "service_1", "zone": "a", "backup": true },
            "tier": 2.0,
        },
    });
    assert_eq!(metadata(&fixture, SERVICES), expected);
    // The first one is over now.
    let expected =
        json!({ "service_with_quota": { "name": "service_2", "backup": true }, "tier": 2.0 });
    assert_eq!(metadata(&fixture, SERVICES)["metadata"], expected);
    let over = metadata(&fixture, SERVICES);
    assert_eq!(over["metadata"], Json::Null, "{over}");
    assert_eq!(over["domain"], "rl");
    let looked = metadata(&fixture, "regular+0");
    assert_eq!(looked["descriptors"], json!([{ "entries": ["regular="], "hitsAddend": 0.0 }]));
}

#[test]
fn without_the_setting_there_is_no_dynamic_metadata() {
    assert_eq!(metadata(&modes(false, false), SERVICES), Json::Null);
}

#[test]
fn the_limit_of_a_descriptor_is_in_the_dynamic_metadata() {
    let fixture = fixture(RateLimitSettings { has_dynamic_metadata: true, ..Default::default() });
    let request = json!({ "domain": "rl", "descriptors": [{
        "entries": [{ "key": "own", "value": "a" }],
        "limit": { "requestsPerUnit": 5, "unit": "MINUTE" },
    }]});
    let expected = json!([{ "entries": ["own=a"], "limit": "requests_per_unit:5 unit:MINUTE" }]);
    assert_eq!(fixture.json(&request).1["dynamicMetadata"]["descriptors"], expected);
}

#[test]
fn a_quota_that_is_over_is_counted_apart_from_denials() {
    let fixture = modes(false, false);
    (0..3).for_each(|_| drop(codes(&fixture, SERVICES)));
    let mut page = crate::metrics::Page::default();
    fixture.service.write_metrics(&mut page);
    let text = page.into_text();
    for (limit, outcome, count) in [
        ("rl.service_service_1", "allowed", 1),
        ("rl.service_service_1", "over_quota", 1),
        ("rl.service_service_1", "denied", 1),
        ("rl.service_service_2", "allowed", 2),
        ("rl.service_service_2", "over_quota", 0),
        ("rl.service_service_2", "denied", 1),
    ] {
        let series = format!("{{domain=\"rl\",limit=\"{limit}\",outcome=\"{outcome}\"}} {count}\n");
        assert!(text.contains(&series), "{series}{text}");
    }
}
