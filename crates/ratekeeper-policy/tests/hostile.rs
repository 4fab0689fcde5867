//! Requests of people who do not want to be counted.

mod support;

use proptest::prelude::*;
use ratekeeper_policy::Policy;
use support::{TestRequest, check, policy, resolved};

const POLICY: &str = "
jwt: { secret: a secret that nobody would ever guess }
identify:
  user: { jwt_claim: sub }
  key: { header: x-api-key }
  ip: { client_ip: { trusted_proxies: [10.0.0.0/8] } }
exempt: [{ path: /healthz }, { path: /static/** }, { ip: 10.9.0.0/16 }]
limits:
  - { name: checkout, match: { method: POST, path: [/checkout, /checkout/**] }, per: ip, rate: 5/s }
  - { name: api, per: key, rate: 10/s, match: { not: { path: /public/** } } }
  - { name: admin, match: { path: /admin/** }, per: user, rate: 1/s }
";

// Signed for 1800000000, the time of all requests here; with the policy's secret or another.
const GOOD: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjE4MDAwMDAwNjB9.zqI8-XiGwRPNDUW_xS2sz1F65zF0ANvpw0A1S9UoJIE";
const EXPIRED: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjE3OTk5OTY0MDB9.CnDVPJjHDOTU7ECBiF7vOmUE_tw-GkoCTYdGFAbxE0U";
const FORGED: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjE4MDAwMDAwNjB9.eYp5VXw6TcLlEJ8MLoP2MkmRZE5X1Dc151F8HmOr-4c";
const UNSIGNED: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4iLCJleHAiOjE4MDAwMDAwNjB9.";
const ETERNAL: &str =
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.xqw1E2UZgRybPY5Cw9Y0duPeH_NVd-wryRgHh4yz49c";

/// Whatever else it is charged to.
#[track_caller]
fn is_charged(policy: &Policy, request: &str, to: &str) {
    let charged = resolved(policy, request);
    assert!(charged.split(", ").any(|one| one == to), "{request}: {charged}");
}

#[test]
fn no_spelling_of_a_path_evades_its_limit() {
    let policy = policy(POLICY);
    let spellings = [
        "/checkout",
        "//checkout",
        "/checkout/",
        "/checkout//",
        "/%63heckout",
        "/%43heckout/../checkout",
        "/a/../checkout",
        "/a/%2e%2e/checkout",
        "/./checkout",
        "/%2e/checkout",
        "/checkout;x",
        "/checkout;x=1/",
        "/;a/checkout",
        "\\checkout",
        "/\\checkout",
        "/a\\..\\checkout",
        "/%2fcheckout",
        "/%5ccheckout",
        "/a%2f..%2fcheckout",
        "checkout",
        "/checkout/..;/x",
        "/checkout/..%2fhealthz",
        "/checkout/..%5chealthz",
        "/checkout/../checkout",
        "/x/../checkout/..;/static/a",
        "/checkout/%2e%2e%2fstatic/a",
        "/static/..%2fcheckout",
        "/static/../checkout",
        "/static/..;/checkout",
        "/healthz/..;/checkout",
        "/healthz/../checkout/",
        "/static/%2e%2e/checkout",
        "/checkout/%252e%252e/x",
        "/checkout/%00",
    ];
    for path in spellings {
        is_charged(&policy, &format!("POST {path}"), "checkout ip=192.0.2.1");
        is_charged(&policy, &format!("post {path}?x=/healthz"), "checkout ip=192.0.2.1");
    }
}

/// Some servers cut a path there, others do not; to most it is an error. It is another path here.
#[test]
fn a_nul_is_a_character_like_any_other() {
    check(&policy(POLICY), "POST /checkout%00", "api key~ip=192.0.2.1");
}

#[test]
fn no_spelling_makes_an_exemption() {
    let policy = policy(POLICY);
    for path in ["/healthz", "/healthz/", "/static/a/b", "/static/a%20b.png", "/%68ealthz"] {
        assert!(resolved(&policy, &format!("GET {path}")).starts_with("exempt"), "{path}");
    }
    let tricks = [
        "/x/..%2fhealthz",
        "/x/..;/healthz",
        "/x/../healthz",
        "/x\\..\\healthz",
        "//healthz",
        "/healthz;x",
        "/static/../x",
        "/static/..%2fx",
        "/static/..;/x",
        "/static/%2e%2e/x",
        "/x/%2e%2e/static/a",
        "/Healthz",
        "/healthz%00",
    ];
    for path in tricks {
        is_charged(&policy, &format!("GET {path}"), "api key~ip=192.0.2.1");
    }
    // The same for what a limit leaves out.
    check(&policy, "GET /public/a", "");
    for path in ["/public/../x", "/public/..%2fx", "/x/..;/public/a", "/x/..%2fpublic/a"] {
        is_charged(&policy, &format!("GET {path}"), "api key~ip=192.0.2.1");
    }
}

#[test]
fn no_forged_header_makes_another_client() {
    let policy = policy(POLICY);
    let clients = [
        ("peer=192.0.2.1 x-forwarded-for:1.2.3.4", "192.0.2.1"),
        ("peer=192.0.2.1 x-real-ip:1.2.3.4 forwarded:for=1.2.3.4", "192.0.2.1"),
        ("peer=192.0.2.1 x-forwarded-for:10.9.0.1", "192.0.2.1"),
        ("peer=10.0.0.1 x-forwarded-for:1.2.3.4,+8.8.8.8", "8.8.8.8"),
        ("peer=10.0.0.1 x-forwarded-for:1.2.3.4 x-forwarded-for:8.8.8.8", "8.8.8.8"),
        ("peer=10.0.0.1 x-forwarded-for:10.9.0.1,+8.8.8.8,+10.0.0.2", "8.8.8.8"),
        ("peer=10.0.0.1 x-forwarded-for:8.8.8.8,+garbage", "10.0.0.1"),
        ("peer=10.0.0.1 x-forwarded-for:", "10.0.0.1"),
        ("peer=::ffff:192.0.2.1 x-forwarded-for:1.2.3.4", "192.0.2.1"),
    ];
    for (from, client) in clients {
        is_charged(&policy, &format!("POST /checkout {from}"), &format!("checkout ip={client}"));
    }
}

#[test]
fn only_a_valid_token_identifies_a_user() {
    let policy = policy(POLICY);
    let user = |header: &str| format!("GET /admin/x {header}");
    is_charged(&policy, &user(&format!("authorization:Bearer+{GOOD}")), "admin user=ann");
    is_charged(&policy, &user(&format!("authorization:bEARER+{GOOD}")), "admin user=ann");
    let long = "x".repeat(100_000);
    for token in [
        EXPIRED,
        FORGED,
        UNSIGNED,
        ETERNAL,
        "garbage",
        "a.b.c",
        "..",
        "",
        &long,
        &format!("{GOOD}x"),
    ] {
        is_charged(
            &policy,
            &user(&format!("authorization:Bearer+{token}")),
            "admin user~ip=192.0.2.1",
        );
    }
    let basic = user("authorization:Basic+YW5uOmFubg==");
    is_charged(&policy, &basic, "admin user~ip=192.0.2.1");
    for scheme in ["", "Basic+", "Bearer", "Bearer:+", "Token+", "Bearer+Bearer+", "JWT+"] {
        let other = user(&format!("authorization:{scheme}{GOOD}"));
        is_charged(&policy, &other, "admin user~ip=192.0.2.1");
    }
    let twice = user(&format!("authorization:Bearer+{GOOD} authorization:Bearer+{FORGED}"));
    is_charged(&policy, &twice, "admin user~ip=192.0.2.1");
    let mut late = support::request(&user(&format!("authorization:Bearer+{GOOD}")));
    late.unix_secs += 3600;
    assert!(late.of(|request| support::show(&policy.resolve(request))).contains("admin user~ip"));
}

/// `Authorization` has a scheme. A header or cookie of one's own holds the token, with it or without.
#[test]
fn only_authorization_needs_a_scheme() {
    let limits = "identify: { user: { jwt_claim: sub } }
limits: [{ name: admin, per: user, rate: 1/s }]";
    let secret = "secret: a secret that nobody would ever guess";
    let policy_of = |location: &str| policy(&format!("jwt: {{ {secret}, {location} }}\n{limits}"));
    let header = policy_of("header: X-Token");
    check(&header, &format!("GET / x-token:{GOOD}"), "admin user=ann");
    check(&header, &format!("GET / x-token:Bearer+{GOOD}"), "admin user=ann");
    check(&header, &format!("GET / x-token:Basic+{GOOD}"), "admin user~ip=192.0.2.1");
    check(&policy_of("cookie: t"), &format!("GET / cookie:t={GOOD}"), "admin user=ann");
    let spelled = policy_of("header: AUTHORIZATION");
    check(&spelled, &format!("GET / authorization:{GOOD}"), "admin user~ip=192.0.2.1");
    check(&spelled, &format!("GET / authorization:Bearer++{GOOD}"), "admin user=ann");
}

#[test]
fn keys_of_all_kinds_are_counted() {
    let policy = policy(POLICY);
    let with = |value: &[u8]| {
        let mut request = support::request("GET /x");
        request.headers.0.push(("x-api-key".into(), value.into()));
        request.of(|request| support::show(&policy.resolve(request)))
    };
    assert_eq!(with(b"k"), "api key=k");
    assert_eq!(with(b"\xff\xfe"), "api key=\u{fffd}\u{fffd}");
    assert_eq!(with(b"a,b#c%d"), "api key=a%2Cb%23c%25d");
    assert_eq!(with(b""), "api key~ip=192.0.2.1");
    assert!(with(&[b'x'; 1_000_000]).len() < 100);
    check(&policy, "GET /x x-api-key:a x-api-key:b", "api key~ip=192.0.2.1");
    check(&policy, "GET /x X-API-KEY:a", "api key=a");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_request_panics(
        method in ".{0,9}",
        path in ".{0,40}",
        query in prop::option::of(".{0,40}"),
        host in prop::option::of(".{0,20}"),
        names in prop::collection::vec(prop::sample::select(vec!["authorization", "x-api-key", "x-forwarded-for", "cookie"]), 0..4),
        value in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let policy = policy(POLICY);
        let mut request = TestRequest { method, path, query, host, ..support::request("GET / peer=10.0.0.1") };
        request.headers.0.extend(names.into_iter().map(|name| (name.into(), value.clone())));
        request.of(|request| {
            let _ = policy.resolve(request);
            let _ = policy.explain(request);
        });
    }
}
