//! Warnings: what is valid and yet does not do what its author expects.

mod support;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use ratekeeper_policy::{Policy, Resolution};
use support::generate::{condition, limits, requests};
use support::policy;

/// Returns the warnings of a policy, each with its line and column.
fn warnings(policy: &Policy) -> Vec<String> {
    let shown = |warning: &ratekeeper_policy::Problem| {
        format!("{}:{}: {}", warning.line(), warning.column(), warning.message())
    };
    policy.warnings().iter().map(shown).collect()
}

#[track_caller]
fn warns(text: &str, expected: &[&str]) {
    assert_eq!(warnings(&policy(text)), expected, "{text}");
}

#[track_caller]
fn is_silent(text: &str) {
    warns(text, &[]);
}

#[test]
fn a_policy_without_limits_allows_everything() {
    warns("limits: []", &["2:1: there are no limits: every request is allowed"]);
}

#[test]
fn a_queue_that_the_rate_never_fills_is_reported() {
    let of = |queue: &str| {
        format!(
            "dependencies: {{ a: {{ rate: 10/s, concurrency: {{ max: 5, queue: {queue} }} }} }}\nlimits: [{{ name: l, rate: 1/s }}]"
        )
    };
    warns(
        &of("{ max: 100, wait: 1s }"),
        &["2:71: a queue of 100 is never full: the rate admits at most 20 calls within 1s"],
    );
    is_silent(&of("{ max: 20, wait: 1s }"));
}

#[test]
fn an_adaptive_limit_that_cannot_adapt_is_reported() {
    warns(
        "limits: [{ name: l, concurrency: { adaptive: { min: 5, max: 5 } } }]",
        &[
            "2:46: the limit cannot adapt between 5 and 5; use \"max: 5\" instead of \"adaptive\", or other bounds",
        ],
    );
}

#[test]
fn a_reserved_share_without_shedding_is_reported() {
    warns(
        "priorities: [{ class: a, match: { path: /a }, reserved: 5% }]\nlimits: [{ name: l, rate: 1/s }]",
        &["2:57: this has no effect without a \"shedding\" section: nothing is shed"],
    );
    warns(
        "priorities: [{ class: a }]\nshedding: {}\nlimits: [{ name: l, rate: 1/s }]",
        &[
            "3:11: all requests are in the class a, so no request is shed before another; add a class",
        ],
    );
}

#[test]
fn a_cost_above_the_quota_is_always_denied() {
    let denied = "such a request is always denied";
    warns(
        "limits: [{ name: a, rate: 10/s, cost: 11 }]",
        &[&format!("2:39: a cost of 11 is more than the limit can hold, 10: {denied}")],
    );
    warns(
        "limits: [{ name: a, rate: 10/s, cost: { usage: openai, estimate: { default: 11 } } }]",
        &[&format!("2:77: a cost of 11 is more than the limit can hold, 10: {denied}")],
    );
    is_silent("limits: [{ name: a, rate: 10/s, cost: 10 }]");
    is_silent("limits: [{ name: a, rate: 1/s burst 20, cost: 20 }]");
    warns(
        "limits: [{ name: a, rate: 10/s, cost: 11, mode: off }]",
        &["2:49: \"a\" is off: it does not count requests"],
    );
    warns(
        "limits: [{ name: a, rate: 10/s burst 5, cost: 6, mode: shadow }]",
        &[
            "2:47: a cost of 6 is more than the limit can hold, 5: such a request would always be denied",
        ],
    );
    warns(
        "limits:\n  - name: a\n    rate: 10/s\n    cost:\n      routes:\n        - { match: { path: /a }, cost: 9 }\n        - { match: { path: /b }, cost: 11 }\n      default: 12\n",
        &[
            &format!("8:40: a cost of 11 is more than the limit can hold, 10: {denied}"),
            &format!("9:16: a cost of 12 is more than the limit can hold, 10: {denied}"),
        ],
    );
    warns(
        "identify: { k: { header: k } }\ntiers: { of: k, members: { x: big }, default: small }\nlimits: [{ name: a, rate: { small: 5/s, big: 50/s }, cost: 10 }]",
        &[&format!(
            "4:60: a cost of 10 is more than the limit of the tier small can hold, 5: {denied}"
        )],
    );
    warns(
        "priorities: [{ class: batch, match: { header: { b: true } } }]\nlimits: [{ name: a, rate: 10/s, cost: 5, shares: { batch: 20% } }]",
        &[&format!("3:39: a cost of 5 is more than the smallest share can hold, 2: {denied}")],
    );
}

#[test]
fn a_method_that_is_not_registered_may_be_misspelled() {
    let check = |method: &str, expected: &[&str]| {
        warns(
            &format!("limits: [{{ name: a, rate: 1/s, match: {{ method: {method} }} }}]"),
            expected,
        );
    };
    check("[GET, post, PROPFIND, QUERY]", &[]);
    check("GTE", &["2:49: \"GTE\" is not a standard method; did you mean \"GET\"?"]);
    check("DELTE", &["2:49: \"DELTE\" is not a standard method; did you mean \"DELETE\"?"]);
    check("[GET, PURGE]", &["2:55: \"PURGE\" is not a standard method; check its spelling"]);
}

#[test]
fn a_limit_that_never_applies_is_reported() {
    let check = |limits: &str, why: &str| {
        let found = warnings(&policy(limits));
        let never: Vec<_> = found.iter().filter(|one| one.contains("never applies")).collect();
        assert_eq!(never.len(), usize::from(!why.is_empty()), "{limits}: {found:?}");
        assert!(never.iter().all(|one| one.contains(why)), "{limits}: {found:?}");
    };
    let not = "its \"not\" covers its match";
    check("limits: [{ name: a, rate: 1/s, match: { path: /a/b, not: { path: /a/** } } }]", not);
    check("limits: [{ name: a, rate: 1/s, match: { path: /a/**, not: { path: /a/b } } }]", "");
    check(
        "limits: [{ name: a, rate: 1/s, match: { header: { h: u }, not: { header: { h: true } } } }]",
        not,
    );
    check(
        "limits: [{ match: { path: /a }, all: [{ name: a, rate: 1/s, match: { not: { path: '/{x}' } } }] }]",
        not,
    );
    let group = "its match and that of its group exclude each other";
    let in_group = |on_group: &str, on: &str| {
        format!("limits: [{{ match: {on_group}, all: [{{ name: a, rate: 1/s, match: {on} }}] }}]")
    };
    check(&in_group("{ method: GET }", "{ method: [PUT, POST] }"), group);
    check(&in_group("{ path: /a/** }", "{ path: /b }"), group);
    check(&in_group("{ path: /a/b }", "{ path: /a }"), group);
    check(&in_group("{ host: '*.a.test' }", "{ host: b.test }"), group);
    check(&in_group("{ ip: 10.0.0.0/8 }", "{ ip: 192.0.2.0/24 }"), group);
    check(&in_group("{ header: { h: false } }", "{ header: { h: x } }"), group);
    check(&in_group("{ path: /a/** }", "{ path: '/{x}/b' }"), "");
    check(&in_group("{ header: { h: u } }", "{ header: { h: v } }"), "");
    let earlier = "\"a\" in line 2, earlier in its \"first\" group, matches the same requests";
    let first = |a: &str, b: &str| {
        format!("limits: [{{ first: [{{ name: a, rate: 1/s{a} }}, {{ name: b, rate: 2/s{b} }}] }}]")
    };
    check(&first("", ", match: { path: /a }"), earlier);
    check(&first(", match: { path: /** }", ", match: { path: /a }"), earlier);
    check(&first(", match: { path: /a }", ", match: { path: /a }"), earlier);
    check(&first(", match: { path: /a }", ""), "");
    check(&first(", mode: shadow", ""), "");
    check(&first(", mode: { enforce: 50% }", ""), "");
    let exempt = "entry 2 of \"exempt\" covers its match";
    check(
        "exempt: [{ path: /b }, { path: /a/** }]\nlimits: [{ name: a, rate: 1/s, match: { path: /a/x } }]",
        exempt,
    );
    let tiers =
        "identify: { k: { header: k } }\ntiers: { of: k, members: { x: big }, default: small }\n";
    let rate = "rate: { small: 5/s, big: unlimited }";
    let unlimited = "all tiers that it matches are unlimited";
    check(&format!("{tiers}limits: [{{ name: a, {rate}, match: {{ tier: big }} }}]"), unlimited);
    check(&format!("{tiers}limits: [{{ name: a, {rate} }}]"), "");
}

#[test]
fn a_limit_that_another_always_precedes_is_reported() {
    let check = |limits: &str, is_redundant: bool| {
        let found = warnings(&policy(&format!(
            "identify: {{ user: {{ header: u }} }}\nlimits: [{limits}]"
        )));
        let expected = "\"loose\" has no effect: \"strict\" in line 3 always denies first";
        let is_found = found.iter().any(|one| one.ends_with(expected));
        assert_eq!(
            (is_found, found.len()),
            (is_redundant, usize::from(is_redundant)),
            "{limits}: {found:?}"
        );
    };
    let pair = |strict: &str, loose: &str| {
        format!("{{ name: strict, {strict} }}, {{ name: loose, {loose} }}")
    };
    check(&pair("per: ip, rate: 1/s", "per: ip, rate: 100/minute"), true);
    check(&pair("per: ip, rate: 10/s", "per: ip, rate: 100/minute"), false);
    check(&pair("per: ip, rate: 1/s burst 200", "per: ip, rate: 100/minute"), false);
    check(&pair("per: ip, rate: 1/s", "per: user, rate: 100/minute"), false);
    check(&pair("rate: 1/s", "per: user, rate: 100/minute"), true);
    check(&pair("per: user, rate: 1/s", "rate: 100/minute"), false);
    check(&pair("rate: 1/s", "rate: 2/s, match: { path: /a }"), true);
    check(&pair("rate: 1/s, match: { path: /a }", "rate: 2/s"), false);
    check(&pair("rate: 1/s, mode: shadow", "rate: 2/s"), false);
    check(&pair("rate: 1/s", "rate: 2/s, mode: shadow"), false);
    check(&pair("rate: 1/s", "rate: 2/s, cost: 2"), false);
    check(&pair("rate: 2/s, cost: 2", "rate: 2/s"), true);
    check(&pair("rate: 1/s, refund: 5xx", "rate: 2/s"), false);
    check(&pair("rate: 1/s, on_store_failure: open", "rate: 2/s"), false);
    check(&pair("rate: 1/s, algorithm: fixed_window", "rate: 2/s"), false);
    check(&pair("rate: 1/s, algorithm: fixed_window", "rate: 60/m, algorithm: fixed_window"), true);
    check(&pair("rate: 1/s, algorithm: gcra", "rate: 2/s, algorithm: token_bucket"), true);
    check(&pair("concurrency: 5", "concurrency: 5, match: { path: /a }"), true);
    check(&pair("concurrency: 5", "concurrency: 4, match: { path: /a }"), false);
    check(&pair("rate: 1/s", "rate: 1/s"), true);
}

#[test]
fn the_policies_that_show_every_field_have_no_warnings_but_these() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies/valid");
    let mut shown = String::new();
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let Ok(policy) = Policy::parse("p", &text, &ratekeeper_policy::NoSources) else { continue };
        for warning in warnings(&policy) {
            shown += &format!("{}:{warning}\n", file.file_name().unwrap().to_string_lossy());
        }
    }
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies/valid.warnings");
    if std::env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
        fs::write(&snapshot, &shown).unwrap();
    }
    assert_eq!(shown, fs::read_to_string(&snapshot).unwrap_or_default());
}

/// Returns the names of limits in warnings with this text, and what the warning names second.
fn named<'w>(warnings: &'w [String], text: &str) -> Vec<(&'w str, &'w str)> {
    let matching = warnings.iter().filter(|warning| warning.contains(text));
    let names = matching.map(|warning| {
        let mut quoted = warning.split('"').skip(1).step_by(2);
        (quoted.next().unwrap_or_default(), quoted.next().unwrap_or_default())
    });
    names.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_limit_that_is_said_never_to_apply_never_does(
        limits in limits(),
        exempt in prop::option::of(condition(true)),
        requests in prop::collection::vec(requests(), 20),
    ) {
        let exempt = exempt.map(|on| format!("exempt: [{on}]\n")).unwrap_or_default();
        let policy = policy(&format!("{exempt}{limits}"));
        let warnings = warnings(&policy);
        let never = named(&warnings, "never applies");
        // Ambiguous requests are counted more often, so that no spelling evades a limit.
        let is_plain = |request: &support::TestRequest| {
            let has_one_reading = request.of(|request| policy.explain(request).other_readings.is_empty());
            let is_one_value = !request.query.as_deref().unwrap_or_default().contains([';', '&']);
            let mut headers = HashSet::new();
            let are_single =
                request.headers.0.iter().all(|(name, _)| headers.insert(name.to_ascii_lowercase()));
            has_one_reading && is_one_value && are_single && request.host.as_deref() != Some("x.test:80:80")
        };
        for request in requests.iter().filter(|request| is_plain(request)) {
            request.of(|request| {
                let Resolution::Charged(applied) = policy.resolve(request) else { return Ok(()) };
                for one in applied {
                    prop_assert!(!never.iter().any(|(name, _)| *name == one.rule.name()), "{:?}\n{}", request.path, limits);
                }
                Ok(())
            })?;
        }
    }

    #[test]
    fn a_limit_without_effect_applies_only_together_with_the_stricter_one(
        limits in limits(), requests in prop::collection::vec(requests(), 20),
    ) {
        let policy = policy(&limits);
        let warnings = warnings(&policy);
        let redundant = named(&warnings, "has no effect");
        for request in &requests {
            request.of(|request| {
                let Resolution::Charged(applied) = policy.resolve(request) else { return Ok(()) };
                let applies = |name: &str| applied.iter().any(|one| one.rule.name() == name);
                for (loose, strict) in &redundant {
                    prop_assert!(!applies(loose) || applies(strict), "{loose} {strict}\n{}", limits);
                }
                Ok(())
            })?;
        }
    }
}
