//! Spellings of one request have one key.

mod support;

use std::collections::HashMap;

use proptest::prelude::*;
use ratekeeper_policy::{NoSources, Policy};
use ratekeeper_testkit::evasion::{POLICY, Spelling, malformed, same};
use support::{Lines, TestRequest, check, errors, policy, show};

fn described(spelling: &Spelling) -> TestRequest {
    let (path, query) =
        spelling.target.split_once('?').map_or((spelling.target, None), |(p, q)| (p, Some(q)));
    let line = |(name, value): &(&str, &str)| (name.to_string(), value.as_bytes().to_vec());
    TestRequest {
        method: spelling.method.into(),
        path: path.into(),
        query: query.map(Into::into),
        host: Some(spelling.host.into()),
        headers: Lines(spelling.headers.iter().map(line).collect()),
        ..support::request("GET /")
    }
}

#[test]
fn every_spelling_has_the_same_key() {
    let policy = Policy::parse("evasion", POLICY, &NoSources).unwrap_or_else(|e| panic!("{e}"));
    let mut keys: HashMap<&str, String> = HashMap::new();
    for (limit, spellings) in same() {
        for spelling in spellings {
            let key = described(&spelling).of(|request| show(&policy.resolve(request)));
            assert!(key.starts_with(&format!("{limit} ")), "{spelling:?}: {key:?}");
            assert_eq!(*keys.entry(limit).or_insert_with(|| key.clone()), key, "{spelling:?}");
        }
    }
}

/// A listener refuses it; where none stands before the policy, it counts for every host and is exempt by
/// none.
#[test]
fn a_host_that_is_none_evades_no_limit() {
    let policy = Policy::parse("evasion", POLICY, &NoSources).unwrap();
    let exempt = support::policy("exempt: [{ host: '*' }]\nlimits: [{ name: l, rate: 1/s }]");
    for spelling in malformed() {
        let request = described(&spelling);
        assert_eq!(request.of(|request| show(&policy.resolve(request))), "host *", "{spelling:?}");
        assert_eq!(request.of(|request| show(&exempt.resolve(request))), "l *", "{spelling:?}");
    }
    check(&exempt, "GET / host=a", "exempt 0");
}

#[test]
fn several_values_are_exempt_only_if_all_are() {
    let policy = policy(
        "exempt: [{ header: { x-a: 'in*' } }, { query: { a: b } }]\nlimits: [{ name: l, rate: 1/s }]",
    );
    check(&policy, "GET / x-a:in1 x-a:in2", "exempt 0");
    check(&policy, "GET / x-a:in1 x-a:out", "l *");
    check(&policy, "GET /?a=b", "exempt 1");
    check(&policy, "GET /?a=b&a=c", "l *");
    check(&policy, "GET /?a=b;c", "l *");
    check(&policy, "GET /?c;a=b", "l *");
}

#[test]
fn tiers_are_of_values_as_requests_have_them() {
    let policy = policy(
        "identify: { sid: { cookie: sid }, auth: { header: authorization }, both: { first_of: [auth, sid] } }
tiers: { of: both, members: { 'a+b': pro, 'Bearer T': pro }, default: free }
limits: [{ name: l, rate: 1/s, match: { tier: pro } }]",
    );
    for request in
        ["GET / cookie:sid=a%2Bb", "GET / cookie:sid=a%20b", "GET / authorization:bearer+T"]
    {
        check(&policy, request, "l *");
    }
    check(&policy, "GET / cookie:sid=other", "");
}

#[test]
fn the_host_header_is_the_host_of_the_request() {
    let policy =
        policy("identify: { h: { header: host } }\nlimits: [{ name: l, per: h, rate: 1/s }]");
    check(&policy, "GET / host=A.example:80 host:other", "l h=a.example");
    check(&policy, "GET / host:other", "l h~ip=192.0.2.1");
}

#[test]
fn hop_by_hop_headers_are_not_identities() {
    for name in ["keep-alive", "Proxy-Authorization", "te", "connection"] {
        for text in [
            format!("identify: {{ a: {{ header: {name} }} }}\nlimits: []"),
            format!("limits: [{{ name: l, rate: 1/s, cost: {{ request_header: {name} }} }}]"),
        ] {
            assert!(errors(&text).contains("hop-by-hop"), "{}", errors(&text));
        }
        let matched = policy(&format!("exempt: [{{ header: {{ {name}: a }} }}]\nlimits: []"));
        assert!(matched.warnings()[0].message().contains("hop-by-hop"), "{name}");
    }
    assert!(
        policy("exempt: [{ header: { upgrade: websocket } }]\nlimits: [{ name: a, rate: 1/s }]")
            .warnings()
            .is_empty()
    );
    let list = policy("identify: { a: { header: X-Forwarded-For } }\nlimits: []");
    assert!(list.warnings()[0].message().contains("use client_ip"));
}

#[test]
fn a_policy_knows_the_headers_that_it_reads() {
    let policy = policy(
        "identify: { a: { header: x-a }, c: { cookie: sid }, d: { header: x_d } }
exempt: [{ header: { x-e: true }, not: { header: { x-n: true } } }]
priorities: [{ class: p, match: { header: { x-p: true } } }]
limits:
  - { name: l, rate: 1/s, match: { header: { x-l: a } }, cost: { request_header: x-cost } }
  - { name: m, rate: 1/s, cost: { routes: [{ match: { header: { x-r: a } }, cost: 2 }] } }",
    );
    for name in
        ["x-a", "cookie", "x_d", "x-e", "x-n", "x-p", "x-l", "x-cost", "x-r", "authorization"]
    {
        assert!(policy.reads_header(name) && !policy.reads_header_like(name), "{name}");
    }
    for name in ["x_a", "x-d", "x.l"] {
        assert!(!policy.reads_header(name) && policy.reads_header_like(name), "{name}");
    }
    for name in ["x-other", "x_other"] {
        assert!(!policy.reads_header(name) && !policy.reads_header_like(name), "{name}");
    }
}

/// A spelling of a value that HTTP/1 strips to it.
fn padded() -> impl Strategy<Value = (String, String)> {
    ("[ \t]{0,3}", "[!-~]([ -~]{0,6}[!-~])?", "[ \t]{0,3}")
        .prop_map(|(before, value, after)| (format!("{before}{value}{after}"), value))
}

/// Each character as it is or escaped.
fn escaped() -> impl Strategy<Value = (String, String)> {
    let escape = |(character, how): (char, u8)| match how {
        0 => format!("%{:02x}", character as u8),
        1 => format!("%{:02X}", character as u8),
        _ => character.to_string(),
    };
    prop::collection::vec((prop::char::range('a', 'z'), 0..4u8), 1..8).prop_map(move |parts| {
        let plain = parts.iter().map(|(character, _)| *character).collect();
        (parts.into_iter().map(escape).collect(), plain)
    })
}

fn key(policy: &Policy, target: &str, header: (&str, &str)) -> String {
    let mut request = support::request(&format!("GET {target}"));
    request.headers.0.push((header.0.into(), header.1.as_bytes().to_vec()));
    request.of(|request| show(&policy.resolve(request)))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whitespace_around_a_header_makes_no_other_caller((sent, value) in padded()) {
        let policy = Policy::one_line("1/s per header x-key").unwrap();
        prop_assert_eq!(key(&policy, "/", ("x-key", &sent)), key(&policy, "/", ("x-key", &value)));
    }

    #[test]
    fn escapes_in_a_cookie_make_no_other_caller((sent, value) in escaped(), quote in any::<bool>()) {
        let policy = Policy::one_line("1/s per cookie sid").unwrap();
        let sent = if quote { format!("sid=\"{sent}\"") } else { format!(" a=b;sid = {sent}") };
        prop_assert_eq!(key(&policy, "/", ("cookie", &sent)), format!("default caller={value}"));
    }

    #[test]
    fn escapes_in_a_query_make_no_other_caller((sent, value) in escaped()) {
        let policy = Policy::one_line("1/s per query user").unwrap();
        let target = format!("/?a=b&us%65r={sent}");
        prop_assert_eq!(key(&policy, &target, ("x", "")), format!("default caller={value}"));
    }

    #[test]
    fn a_semicolon_makes_no_caller(user in "[a-z]{1,4}", rest in "[a-z=;]{0,6}") {
        let policy = Policy::one_line("1/s per query user").unwrap();
        let by_address = "default caller~ip=192.0.2.1";
        prop_assert_eq!(key(&policy, &format!("/?user={user};{rest}"), ("x", "")), by_address);
        prop_assert_eq!(key(&policy, &format!("/?{rest};user={user}"), ("x", "")), by_address);
    }
}
