//! A policy over a real Redis: fleets, outages, corrections.
#![cfg(all(feature = "policy", feature = "redis"))]

use std::time::Duration;

use ratekeeper::policy::{NoSources, RequestAttributes};
use ratekeeper::shared::{BreakerState, StoreState};
use ratekeeper::{Admission, RefusalReason};
use ratekeeper::{Policy, PolicyLimiter};
use ratekeeper_testkit::RedisServer;

fn limiter(url: &str, rest: &str) -> PolicyLimiter {
    let text = format!("version: 1\nstore: {{ url: '{url}', deadline: 2s }}\n{rest}");
    let policy = Policy::parse("policy.yaml", &text, &NoSources).unwrap_or_else(|e| panic!("{e}"));
    PolicyLimiter::new(policy).unwrap()
}

async fn ask(limiter: &PolicyLimiter, path: &str) -> Admission {
    let request = RequestAttributes {
        peer: Some([192, 0, 2, 1].into()),
        ..RequestAttributes::new("GET", path)
    };
    limiter.decide(&request).await
}

async fn admitted(limiter: &PolicyLimiter, path: &str, times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(ask(limiter, path).await.is_admitted());
    }
    admitted
}

/// Asks until the outcome is as wished.
async fn until(
    limiter: &PolicyLimiter,
    path: &str,
    wish: impl Fn(&Admission) -> bool,
) -> Admission {
    for _ in 0..1_000 {
        let admission = ask(limiter, path).await;
        if wish(&admission) {
            return admission;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came: {:?}", limiter.engine().store_state());
}

#[tokio::test]
async fn gates_that_share_a_store_share_every_limit() {
    let redis = RedisServer::start();
    let limits = "
limits:
  - { name: user, per: ip, rate: 6/hour burst 6 }
  - { name: all, rate: 1000/hour }
";
    let (one, two) = (limiter(&redis.url(), limits), limiter(&redis.url(), limits));
    assert_eq!(admitted(&one, "/", 4).await, 4);
    assert_eq!(admitted(&two, "/", 10).await, 2);
    assert!(matches!(one.engine().store_state(), Some(StoreState::Up)));
}

#[tokio::test]
async fn each_limit_does_without_its_store_what_it_was_told() {
    let limits = "
limits:
  - { name: local, match: { path: /local }, rate: 3/hour }
  - { name: allow, match: { path: /allow }, rate: 3/hour, on_store_failure: open }
  - { name: deny, match: { path: /deny }, rate: 3/hour, on_store_failure: closed }
  - { name: flight, match: { path: /flight }, concurrency: 2 }
  - { name: grounded, match: { path: /grounded }, concurrency: 2, on_store_failure: closed }
";
    let limiter = limiter("redis://127.0.0.1:1", limits);
    assert_eq!(admitted(&limiter, "/local", 5).await, 3);
    assert_eq!(admitted(&limiter, "/allow", 5).await, 5);
    assert_eq!(admitted(&limiter, "/deny", 5).await, 0);
    assert_eq!(admitted(&limiter, "/flight", 5).await, 5, "one after another");
    let held = [ask(&limiter, "/flight").await, ask(&limiter, "/flight").await];
    assert!(held.iter().all(Admission::is_admitted));
    assert_eq!(admitted(&limiter, "/flight", 1).await, 0, "a third at a time");
    assert_eq!(admitted(&limiter, "/grounded", 1).await, 0);
    let Admission::Admitted(degraded) = ask(&limiter, "/allow").await else { panic!("allowed") };
    assert!(degraded.is_degraded);
}

#[tokio::test]
async fn a_fleet_has_no_more_in_flight_than_a_limit_says() {
    let redis = RedisServer::start();
    let limits = "limits: [{ name: exports, per: ip, concurrency: 2 }]";
    let (one, two) = (limiter(&redis.url(), limits), limiter(&redis.url(), limits));
    let held = [ask(&one, "/").await, ask(&two, "/").await];
    assert!(held.iter().all(Admission::is_admitted));
    let Admission::Refused(refusal) = ask(&one, "/").await else { panic!("a third in flight") };
    assert!(matches!(refusal.reason, RefusalReason::TooManyInFlight { max: 2 }));
    drop(held);
    let _ = until(&two, "/", Admission::is_admitted).await;
}

#[tokio::test]
async fn corrections_reach_the_store() {
    let redis = RedisServer::start();
    let limits = "limits: [{ name: a, rate: 10/hour burst 10, refund: 5xx }]";
    let limiter = limiter(&redis.url(), limits);
    let headers: Vec<(String, String)> = Vec::new();
    let Admission::Admitted(mut failed) = ask(&limiter, "/").await else { panic!("there is room") };
    failed.settle(503, &headers);
    // The correction goes on in the background: the tenth fits once it has been made.
    let mut total = 0;
    for _ in 0..1_000 {
        total += admitted(&limiter, "/", 1).await;
        if total == 10 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(total, 10);
    assert_eq!(admitted(&limiter, "/", 1).await, 0);
}

#[tokio::test]
async fn a_gate_comes_back_to_its_store() {
    let redis = RedisServer::start();
    let limiter = limiter(&redis.url(), "limits: [{ name: a, rate: 100000/hour }]");
    let is_degraded = |admission: &Admission| matches!(admission, Admission::Admitted(admitted) if admitted.is_degraded);
    let _ = until(&limiter, "/", |admission| !is_degraded(admission)).await;
    redis.kill();
    let _ = until(&limiter, "/", is_degraded).await;
    redis.restart();
    let _ = until(&limiter, "/", |admission| !is_degraded(admission)).await;
}

#[tokio::test]
async fn hot_keys_may_be_served_from_leases() {
    let redis = RedisServer::start();
    let text = format!(
        "version: 1\nstore: {{ url: '{}', deadline: 2s, leased: true }}\nlimits: [{{ name: a, rate: 500/hour burst 500 }}]",
        redis.url()
    );
    let limiter = PolicyLimiter::new(Policy::parse("p", &text, &NoSources).unwrap()).unwrap();
    let total = admitted(&limiter, "/", 700).await;
    assert!((450..=500).contains(&total), "{total}");
}

#[tokio::test]
async fn a_shared_store_is_timed_and_its_breaker_and_leases_can_be_seen() {
    let redis = RedisServer::start();
    let text = format!(
        "version: 1\nstore: {{ url: '{}', deadline: 2s, leased: true }}\nlimits: [{{ name: all, rate: 100000/hour }}]",
        redis.url()
    );
    let limiter =
        PolicyLimiter::new(Policy::parse("policy.yaml", &text, &NoSources).unwrap()).unwrap();
    assert_eq!(admitted(&limiter, "/", 200).await, 200);
    let leases = limiter.engine().lease_stats().unwrap();
    assert_eq!(leases.local + leases.store_calls, 200);
    assert!(limiter.engine().store_time().count >= 200);
    assert_eq!(limiter.engine().breaker_state(), Some(BreakerState::Closed));
    redis.kill();
    for _ in 0..1_000 {
        if limiter.engine().breaker_state() == Some(BreakerState::Open) {
            return;
        }
        let _ = ask(&limiter, "/").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never opened");
}
