//! Which limits a request is charged to, its cost, and whether it is enforced.

mod support;

use ratekeeper_policy::{Policy, Resolution};
use support::{check, errors, policy, resolved};

fn on(condition: &str) -> Policy {
    policy(&format!("limits: [{{ name: l, rate: 1/s, match: {condition} }}]"))
}

#[test]
fn methods_are_compared_without_case() {
    check(&on("{ method: post }"), "POST /", "l *");
    check(&on("{ method: POST }"), "post /", "l *");
    check(&on("{ method: [POST, PUT] }"), "GET /", "");
    for wrong in ["'*'", "any", "'GET,POST'", "GET POST"] {
        let text = format!("limits: [{{ name: l, rate: 1/s, match: {{ method: {wrong} }} }}]");
        assert!(errors(&text).contains("method"), "{}", errors(&text));
    }
}

#[test]
fn hosts_are_compared_without_case_port_or_dot() {
    for pattern in ["api.example.com", "API.Example.com.", "'*.example.com'"] {
        let policy = on(&format!("{{ host: {pattern} }}"));
        for host in [
            "api.example.com",
            "API.EXAMPLE.COM:443",
            "api.example.com.",
            "api.example.com.:80",
            "u:p@api.example.com",
        ] {
            check(&policy, &format!("GET / host={host}"), "l *");
        }
        check(&policy, "GET / host=api.example.com.evil.com", "");
        check(&policy, "GET /", "");
    }
    check(&on("{ host: '[::1]' }"), "GET / host=[::1]:8080", "l *");
    check(&on("{ host: '[::1]' }"), "GET / host=[::1]", "l *");
    check(&on("{ host: '[::1]' }"), "GET / host=[0:0::1]:80", "l *");
    check(&on("{ host: bücher.example }"), "GET / host=XN--bcher-kva.example", "l *");
}

#[test]
fn invalid_host_patterns_are_rejected() {
    let error =
        |host| errors(&format!("limits: [{{ name: l, rate: 1/s, match: {{ host: '{host}' }} }}]"));
    assert!(error("example.com:443").contains("no port here"));
    assert!(error("::1").contains("in brackets"));
    assert!(error("https://example.com").contains("a name alone"));
    assert!(error("*bücher.example").contains("xn--"));
    assert!(error("a..b").contains("between dots"));
    assert!(error(".").contains("a host is missing"));
}

#[test]
fn headers_match_line_by_line() {
    check(&on("{ header: { x-a: 'v*' } }"), "GET / x-a:no X-A:v1", "l *");
    check(&on("{ header: { x-a: [a, b] } }"), "GET / x-a:b", "l *");
    check(&on("{ header: { X-A: true } }"), "GET / x-a:", "l *");
    check(&on("{ header: { x-a: false } }"), "GET / x-a:b", "");
    check(&on("{ header: { x-a: false } }"), "GET /", "l *");
    // A quoted boolean is text.
    check(&on("{ header: { x-a: 'true' } }"), "GET / x-a:true", "l *");
    check(&on("{ header: { x-a: 'true' } }"), "GET / x-a:b", "");
    check(&on("{ query: { debug: 'false' } }"), "GET /?debug=false", "l *");
}

#[test]
fn empty_matches_are_rejected() {
    for condition in [
        "{ path: }",
        "{ path: [] }",
        "{ header: {} }",
        "{ header: { x-a: } }",
        "{}",
        "{ tier: [] }",
        "{ not: }",
        "{ header: { x-a: [] } }",
    ] {
        for text in [
            format!("exempt: [{condition}]\nlimits: []"),
            format!("limits: [{{ name: l, rate: 1/s, match: {condition} }}]"),
        ] {
            errors(&text);
        }
    }
    for limit in [
        "{ name: l, rate: }",
        "{ name: l, rate: 1/s, match: }",
        "{ name: l, rate: 1/s, per: }",
        "{ name: l, rate: 1/s, per: [] }",
    ] {
        errors(&format!("limits: [{limit}]"));
    }
    policy("identify:\nexempt:\npriorities: []\ntiers:\nlimits: []");
}

const GROUP: &str = "
limits:
  - match: { path: /api/** }
    first:
      - { name: off, mode: off, rate: 1/s }
      - { name: new, match: { path: /api/new }, mode: shadow, rate: 1/s }
      - { name: login, match: { path: [/api/login, /api/new] }, rate: 1/s }
      - { name: rest, rate: 1/s }
  - all:
      - { name: one, match: { method: PUT }, rate: 1/s }
      - { name: two, match: { method: PUT }, rate: 1/s }
";

#[test]
fn the_first_enforced_limit_of_a_group_applies() {
    let policy = policy(GROUP);
    check(&policy, "GET /", "");
    check(&policy, "GET /api/x", "rest *");
    check(&policy, "GET /api/login", "login *");
    check(&policy, "GET /api/new", "new * shadow, login *");
    check(&policy, "PUT /api/login", "login *, one *, two *");
}

#[test]
fn a_misspelling_in_a_group_is_reported_once() {
    let error = errors("limits: [{ frist: [{ name: l, rate: 1/s }] }]");
    assert!(error.contains("did you mean \"first\"?"), "{error}");
    assert_eq!(error.matches("policy.yaml:").count(), 1, "{error}");
}

/// Returns for how many of `of` clients the limit is enforced.
fn enforced(percent: &str, of: u32) -> u32 {
    let text = format!(
        "identify: {{ u: {{ header: x-u }} }}\nlimits: [{{ name: l, per: u, rate: 1/s, mode: {{ enforce: {percent} }} }}]"
    );
    let (policy, again) = (policy(&text), policy(&text));
    let count = (0..of).filter(|n| {
        let request = format!("GET / x-u:user-{n}");
        assert_eq!(resolved(&policy, &request), resolved(&again, &request));
        !resolved(&policy, &request).ends_with("shadow")
    });
    u32::try_from(count.count()).unwrap()
}

#[test]
fn a_ramp_enforces_its_percentage_of_keys() {
    assert_eq!(enforced("0%", 2_000), 0);
    assert_eq!(enforced("100%", 2_000), 2_000);
    for (percent, expected) in [("1%", 100_u32), ("25%", 2_500), ("50%", 5_000), ("99.5%", 9_950)] {
        let found = enforced(percent, 10_000);
        let spread = expected.min(10_000 - expected).isqrt() * 5;
        assert!(found.abs_diff(expected) <= spread, "{percent}: {found}");
    }
}

#[test]
fn a_full_ramp_is_enforcement() {
    let with = |mode: &str| {
        policy(&format!(
            "identify: {{ u: {{ header: x-u, missing: deny }} }}\nlimits: [{{ name: l, per: u, rate: 1/s, mode: {mode} }}]"
        ))
    };
    check(&with("enforce"), "GET /", "rejected by l: u it was not sent");
    check(&with("{ enforce: 100% }"), "GET /", "rejected by l: u it was not sent");
    check(&with("{ enforce: 0% }"), "GET /", "l u~ shadow");
    check(&with("shadow"), "GET /", "l u~ shadow");
    check(&with("off"), "GET /", "");
}

const GUARANTEES: &str = "
identify: { plan: { header: x-plan } }
tiers: { of: plan, names: [free, pro], default: free }
priorities:
  - { class: partner, match: { header: { x-partner: true } } }
  - { class: web, match: { path: /web/** } }
limits:
  - { name: api, rate: 350/s, guarantees: { partner: 200/s, pro: 50/s } }
";

#[test]
fn a_class_or_a_tier_has_its_guarantee() {
    let policy = policy(GUARANTEES);
    let guarantee = |request: &str| {
        support::request(request).of(|request| match policy.resolve(request) {
            Resolution::Charged(of) => {
                let limit = of[0].guaranteed_limit().expect("guarantees").guarantee();
                limit.map(|limit| limit.rate().to_string())
            }
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(guarantee("GET / x-partner:1").as_deref(), Some("200/s"));
    assert_eq!(guarantee("GET / x-plan:pro").as_deref(), Some("50/s"));
    assert_eq!(guarantee("GET / x-plan:pro x-partner:1").as_deref(), Some("200/s"));
    assert_eq!(guarantee("GET /web/a"), None, "it can only borrow");
}

#[test]
fn guarantees_that_do_not_fit_have_a_place() {
    let with = |from: &str, to: &str| errors(&GUARANTEES.replace(from, to));
    let too_much = with("pro: 50/s", "pro: 151/s");
    assert!(too_much.contains("sum up to 351, 1 more than the burst 350"), "{too_much}");
    assert!(too_much.contains(":9:") || too_much.contains("line 9"), "{too_much}");
    let too_fast = with("pro: 50/s", "pro: 151/s burst 1");
    assert!(too_fast.contains("exceed the total of 350/s by a count of 1"), "{too_fast}");
    let unknown = with("partner: 200/s, ", "partners: 200/s, ");
    assert!(unknown.contains("partner"), "{unknown}");
    let invalid = with("pro: 50/s", "pro: 50/fortnight");
    assert!(invalid.contains("fortnight"), "{invalid}");
    let window = with("rate: 350/s,", "rate: 350/s, algorithm: fixed_window,");
    assert!(window.contains("fixed_window has no guarantees; use token_bucket"), "{window}");
    let busy = with("rate: 350/s,", "concurrency: 9,");
    assert!(busy.contains("\"guarantees\" requires \"rate\""), "{busy}");
    let by_tier = with("rate: 350/s,", "rate: { free: 350/s, pro: 400/s },");
    assert!(by_tier.contains("out of a rate that all tiers share"), "{by_tier}");
}

const SHARES: &str = "
priorities:
  - { class: batch, match: { header: { x-batch: true } } }
  - { class: web, match: { path: /web/** } }
limits:
  - { name: window, rate: 10/s, shares: { batch: 25% } }
  - { name: bucket, rate: 10/s burst 20, shares: { batch: 25%, web: 50.5% } }
  - { name: busy, concurrency: 9, shares: { batch: 0.01% } }
";

#[test]
fn a_class_has_its_share() {
    let policy = policy(SHARES);
    check(&policy, "GET /", "window *, bucket *, busy *");
    let amounts = |request: &str| {
        support::request(request).of(|request| match policy.resolve(request) {
            Resolution::Charged(of) => of
                .iter()
                .filter(|one| one.is_share())
                .map(|one| one.amount().to_string())
                .collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(
        amounts("GET /web/a x-batch:1"),
        ["token_bucket 10/4s burst 2", "token_bucket 10/4s burst 5", "1 at a time"]
    );
    assert_eq!(amounts("GET /web/a"), ["token_bucket 1010/200s burst 10"]);
    let text = SHARES.replace("0.01%", "0%");
    assert!(errors(&text).contains("0% would deny all"), "{}", errors(&text));
}

#[test]
fn a_header_sets_the_cost() {
    let policy = policy(
        "limits: [{ name: l, rate: 100/s, cost: { request_header: x-cost, default: 2, max: 50 } }]",
    );
    let cases = [
        ("", 2),
        ("x-cost:7", 7),
        ("x-cost:+7+", 7),
        ("x-cost:51", 50),
        ("x-cost:0", 2),
        ("x-cost:-5", 2),
        ("x-cost:garbage", 2),
        ("x-cost:1e9", 2),
        ("x-cost:99999999999999999999999", 50),
        ("x-cost:3 x-cost:9", 9),
        ("x-cost:3,+9", 9),
        ("x-cost:", 2),
        ("x-cost:0x10", 2),
    ];
    for (header, cost) in cases {
        check(&policy, format!("GET / {header}").trim_end(), &format!("l * cost {cost}"));
    }
}

#[test]
fn spellings_of_a_route_do_not_lower_its_cost() {
    let routes =
        "[{ match: { path: /cheap/** }, cost: 2 }, { match: { path: /search }, cost: 10 }]";
    let policy = policy(&format!(
        "limits: [{{ name: l, rate: 100/s, cost: {{ routes: {routes}, default: 3 }} }}]"
    ));
    check(&policy, "GET /search", "l * cost 10");
    check(&policy, "GET /cheap/a", "l * cost 2");
    check(&policy, "GET /", "l * cost 3");
    check(&policy, "GET /cheap/..%2fsearch", "l * cost 10");
}

#[test]
fn contradictions_are_reported() {
    let limit = |rest: &str| errors(&format!("limits: [{{ name: l, {rest} }}]"));
    assert!(
        limit("rate: 1/s, cost: { request_header: a, default: 9, max: 5 }")
            .contains("greater than \"max\"")
    );
    assert!(
        limit("rate: 1/s, cost: { routes: [{ match: { path: / }, cost: 1 }], max: 5 }")
            .contains("costs of routes are fixed")
    );
    assert!(
        limit("concurrency: 5, cost: 2, algorithm: token_bucket").contains("requires \"rate\"")
    );
    assert!(limit("concurrency: 5, when_limited: { queue: 1s }").contains("requires \"rate\""));
    assert!(limit("rate: 1/s, concurrency: 5").contains("not both"));
    assert!(
        limit("rate: 5/s burst 100, when_limited: { queue: 1s }").contains("a burst of at most 5")
    );
    assert!(
        limit("rate: 5/s, algorithm: sliding_log, when_limited: { queue: 1s }")
            .contains("use leaky_bucket")
    );
    assert!(limit("rate: unlimited").contains("cannot be unlimited for all tiers"));
}

#[test]
fn the_length_of_a_queue_follows_from_its_maximum_delay() {
    let amount = |text: &str| {
        let policy = policy(&format!("limits: [{{ name: l, {text} }}]"));
        support::request("GET /").of(|request| match policy.resolve(request) {
            Resolution::Charged(of) => of[0].amount().to_string(),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(amount("rate: 5/s, when_limited: { queue: 2s }"), "leaky_bucket 5/s burst 10");
    assert_eq!(
        amount("rate: 5/s burst 3, when_limited: { queue: 2s }"),
        "leaky_bucket 5/s burst 3"
    );
    assert_eq!(amount("rate: 1/h, when_limited: { queue: 1s }"), "leaky_bucket 1/h burst 1");
    assert_eq!(
        amount("rate: 4000000000/s, when_limited: { queue: 1h }"),
        "leaky_bucket 4000000000/s burst 4294967295"
    );
}

#[test]
fn a_calendar_period_selects_the_fixed_window_also_for_the_share_of_a_class() {
    let policy = policy(
        "priorities: [{ class: batch, match: { header: { x-batch: true } } }]\n\
         limits: [{ name: l, rate: 1000/Calendar Day in europe/berlin, shares: { batch: 25% } }]",
    );
    let amounts = |line: &str| {
        support::request(line).of(|request| match policy.resolve(request) {
            Resolution::Charged(limits) => {
                limits.iter().map(|limit| limit.amount().to_string()).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        })
    };
    let whole = "fixed_window 1000/calendar day in Europe/Berlin";
    assert_eq!(amounts("GET /"), [whole]);
    let share = "fixed_window 250/calendar day in Europe/Berlin";
    assert_eq!(amounts("GET / x-batch:1"), [share, whole]);
}
