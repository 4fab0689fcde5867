//! Concurrency, load shedding and dependencies of a policy: what is read, and what is warned of.

mod support;

use std::time::Duration;

use ratekeeper_control::adaptive::{AdaptiveAlgorithm, Bounds};
use ratekeeper_control::{BreakerConfig, Class, Probes, QueueOrder, SlidingWindow};
use ratekeeper_policy::{Amount, ConcurrencyRule, Permits, Policy, Resolution};
use support::{policy, request};

fn concurrency(text: &str) -> ConcurrencyRule {
    let policy = policy(&format!("limits: [{{ name: l, concurrency: {text} }}]"));
    let resolution = request("GET /").of(|request| policy.resolve(request).into_amount());
    match resolution {
        Amount::Concurrency { rule, .. } => rule,
        Amount::Rate(limit) => panic!("{limit} is a rate"),
    }
}

trait IntoAmount {
    fn into_amount(self) -> Amount;
}

impl IntoAmount for Resolution<'_> {
    fn into_amount(self) -> Amount {
        let Resolution::Charged(limits) = self else { panic!("no limit applies") };
        limits[0].amount().clone()
    }
}

#[test]
fn a_number_is_a_concurrency_without_a_queue() {
    let rule = ConcurrencyRule { permits: Permits::Fixed(40), queue: None };
    assert_eq!(concurrency("40"), rule);
    assert_eq!(concurrency("{ max: 40 }"), rule);
    assert_eq!(rule.to_string(), "40 at a time");
}

#[test]
fn a_queue_has_a_length_a_wait_and_an_order() {
    let rule = concurrency("{ max: 40, queue: { max: 100, wait: 500ms, order: adaptive_lifo } }");
    let queue = rule.queue.expect("a queue");
    assert_eq!((queue.max, queue.wait), (100, Duration::from_millis(500)));
    assert_eq!(queue.order, QueueOrder::AdaptiveLifo);
    assert_eq!(rule.to_string(), "40 at a time, queue of 100 for 500ms");
}

#[test]
fn an_adaptive_concurrency_has_the_bounds_that_are_written() {
    let bounds_of = |text: &str| match concurrency(text).permits {
        Permits::Adaptive(adaptive) => (adaptive.algorithm, adaptive.bounds),
        Permits::Fixed(max) => panic!("{max} is fixed"),
    };
    let bounds = |min, initial, max| Bounds::new(min, initial, max).expect("valid");
    use AdaptiveAlgorithm::{Knee, Vegas};
    assert_eq!(bounds_of("{ adaptive: true }"), (Knee, Bounds::DEFAULT));
    assert_eq!(bounds_of("{ adaptive: {} }"), (Knee, Bounds::DEFAULT));
    // The first limit and the maximum follow the others.
    assert_eq!(bounds_of("{ adaptive: { max: 10 } }"), (Knee, bounds(1, 10, 10)));
    assert_eq!(bounds_of("{ adaptive: { min: 2000 } }"), { (Knee, bounds(2000, 2000, 2000)) });
    assert_eq!(
        bounds_of("{ adaptive: { algorithm: vegas, min: 5, initial: 6, max: 7 } }"),
        (Vegas, bounds(5, 6, 7))
    );
}

#[test]
fn tiers_have_a_concurrency_of_any_form() {
    let policy = policy(
        "tiers: { of: ip, members: { 192.0.2.1: a, 192.0.2.2: b, 192.0.2.3: c }, default: a }\n\
         limits: [{ name: l, concurrency: { a: 1, b: { max: 2 }, c: unlimited } }]",
    );
    let shown = |peer: &str| {
        request(&format!("GET / peer={peer}")).of(|request| match policy.resolve(request) {
            Resolution::Charged(limits) => limits.first().map(|one| one.amount().to_string()),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(shown("192.0.2.1").as_deref(), Some("1 at a time"));
    assert_eq!(shown("192.0.2.2").as_deref(), Some("2 at a time"));
    assert_eq!(shown("192.0.2.3"), None);
}

const CLASSES: &str = "
identify: { user: { header: x-user, missing: anonymous } }
exempt: [{ path: /healthz }]
priorities:
  - { class: checkout, match: { path: /checkout }, reserved: 20% }
  - { class: normal }
  - { class: batch, match: { path: /static/** } }
shedding: { per: user, queue_time: 5ms }
limits: []";

fn class(policy: &Policy, line: &str) -> Option<(Class, String, bool)> {
    let of = |request: &ratekeeper_policy::RequestAttributes<'_>| {
        let of = policy.shed_attributes(request)?;
        Some((of.class, of.class_name.to_string(), of.user_hash.is_some()))
    };
    request(line).of(of)
}

#[test]
fn the_order_of_classes_is_the_order_of_the_list() {
    let policy = policy(CLASSES);
    assert_eq!(policy.classes(), ["checkout", "normal", "batch"]);
    let of = |line| class(&policy, line).map(|(class, name, _)| (class.rank(), name));
    assert_eq!(of("POST /checkout"), Some((0, "checkout".into())));
    assert_eq!(of("GET /other"), Some((1, "normal".into())));
    assert_eq!(of("GET /static/a"), Some((2, "batch".into())));
    assert_eq!(of("GET /healthz"), None, "exempt requests are not shed");
}

/// Some servers read `/static/..%2fcheckout` as `/checkout`, others as a file of `/static`.
#[test]
fn an_ambiguous_path_is_of_the_least_important_class() {
    let policy = policy(CLASSES);
    assert_eq!(class(&policy, "GET /static/..%2fcheckout").unwrap().1, "batch");
}

#[test]
fn a_user_has_one_hash_and_an_unknown_one_none() {
    let policy = policy(CLASSES);
    let hash =
        |line: &str| request(line).of(|request| policy.shed_attributes(request).unwrap().user_hash);
    assert_eq!(hash("GET / x-user:ann"), hash("POST /checkout x-user:ann"));
    assert_ne!(hash("GET / x-user:ann"), hash("GET / x-user:bob"));
    assert_eq!(hash("GET /"), None);
}

#[test]
fn without_a_shedding_section_nothing_is_shed() {
    let policy = policy("priorities: [{ class: a, match: { path: /a } }]\nlimits: []");
    assert!(policy.shedding().is_none());
    assert_eq!(class(&policy, "GET /a"), None);
}

#[test]
fn a_class_without_a_match_has_shares_too() {
    let policy = policy(
        "priorities: [{ class: vip, match: { path: /vip } }, { class: rest }]\n\
         limits: [{ name: l, rate: 10/s, shares: { rest: 10% } }]",
    );
    support::check(&policy, "GET /vip", "l *");
    support::check(&policy, "GET /", "l share *, l *");
}

#[test]
fn dependencies_apply_by_their_match_or_to_every_upstream() {
    let policy = policy(
        "dependencies:\n  \
           inventory: { match: { path: /stock/** }, rate: 300/s, concurrency: 40 }\n  \
           upstreams: { per: upstream, breaker: true }\n  \
           mail: { concurrency: 5 }\n\
         limits: []",
    );
    let names = |line: &str| {
        request(line).of(|request| {
            let found = policy.dependencies_of(request);
            found.into_iter().map(|one| one.name().to_string()).collect::<Vec<_>>()
        })
    };
    assert_eq!(names("GET /stock/1"), ["inventory", "upstreams"]);
    assert_eq!(names("GET /"), ["upstreams"]);
    let shown: Vec<_> = policy.dependencies().iter().map(|one| one.to_string()).collect();
    assert_eq!(shown, ["300/s; 40 at a time", "circuit breaker; for each upstream", "5 at a time"]);
}

fn breaker(text: &str) -> BreakerConfig {
    let policy = policy(&format!("dependencies: {{ a: {{ breaker: {text} }} }}\nlimits: []"));
    policy.dependencies()[0].breaker().expect("a breaker")
}

#[test]
fn a_breaker_has_the_thresholds_that_are_written() {
    let default = BreakerConfig::DEFAULT;
    assert_eq!(breaker("true"), default);
    assert_eq!(breaker("{}"), default);
    assert_eq!(breaker("{ failure_rate: 30% }"), default.with_failure_rate(30));
    assert_eq!(
        breaker("{ consecutive_failures: 5 }"),
        default.without_failure_rate().with_consecutive_failures(5)
    );
    assert_eq!(
        breaker("{ failure_rate: 30%, slow_calls: { rate: 80%, longer_than: 2s } }"),
        default.with_failure_rate(30).with_slow_calls(Duration::from_secs(2), 80)
    );
    assert_eq!(
        breaker("{ window: 30s, probes: { ramp: 64 }, probe_timeout: 5s }"),
        default
            .with_window(SlidingWindow::Time(Duration::from_secs(30)))
            .with_probes(Probes::Ramp { max: 64 })
            .with_probe_timeout(Duration::from_secs(5))
    );
    // A window of fewer calls than the default minimum has a lower one.
    assert_eq!(
        breaker("{ window: 10 calls }"),
        default.with_window(SlidingWindow::Calls(10)).with_minimum_calls(10)
    );
}

#[test]
fn a_seed_is_not_shown_in_errors() {
    let errors = support::errors(
        "priorities: [{ class: a }]\n\
         shedding: { seed: hunter2, rotation: never }\nlimits: []",
    );
    assert!(errors.contains("never") && !errors.contains("hunter2"), "{errors}");
}
