//! A policy over a real Redis: fleets, outages, refunds.
#![cfg(all(feature = "policy", feature = "redis"))]

use std::time::Duration;

use ratekeeper::policy::{NoSources, RequestAttributes};
use ratekeeper::shared::{BreakerState, StoreState};
use ratekeeper::{Admission, RefusalReason};
use ratekeeper::{Policy, PolicyLimiter};
use ratekeeper_testkit::{Fault, FaultProxy, RedisServer};

fn limiter(url: &str, rest: &str) -> PolicyLimiter {
    let text = format!("version: 1\nstore: {{ url: '{url}', deadline: 2s }}\n{rest}");
    let policy = Policy::parse("policy.yaml", &text, &NoSources).unwrap_or_else(|e| panic!("{e}"));
    PolicyLimiter::new(policy).unwrap()
}

async fn decide(limiter: &PolicyLimiter, path: &str) -> Admission {
    let request = RequestAttributes {
        peer: Some([192, 0, 2, 1].into()),
        ..RequestAttributes::new("GET", path)
    };
    limiter.decide(&request).await
}

async fn admitted(limiter: &PolicyLimiter, path: &str, times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(decide(limiter, path).await.is_admitted());
    }
    admitted
}

/// Sends requests until a decision is as expected.
async fn until(
    limiter: &PolicyLimiter,
    path: &str,
    expected: impl Fn(&Admission) -> bool,
) -> Admission {
    for _ in 0..1_000 {
        let admission = decide(limiter, path).await;
        if expected(&admission) {
            return admission;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never decided as expected: {:?}", limiter.engine().store_state());
}

#[tokio::test]
async fn limiters_on_one_store_share_every_limit() {
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
async fn each_limit_follows_its_failure_mode_without_the_store() {
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
    let held = [decide(&limiter, "/flight").await, decide(&limiter, "/flight").await];
    let is_degraded = |one: &Admission| matches!(one, Admission::Admitted(one) if one.is_degraded);
    assert!(held.iter().all(is_degraded));
    let Admission::Refused(third) = decide(&limiter, "/flight").await else { panic!("a third") };
    assert!(third.is_degraded && matches!(third.reason, RefusalReason::TooManyInFlight { max: 2 }));
    assert_eq!(admitted(&limiter, "/grounded", 1).await, 0);
    let Admission::Admitted(degraded) = decide(&limiter, "/allow").await else { panic!("allowed") };
    assert!(degraded.is_degraded);
}

#[tokio::test]
async fn a_fleet_shares_one_concurrency_limit() {
    let redis = RedisServer::start();
    let limits = "limits: [{ name: exports, per: ip, concurrency: 2 }]";
    let (one, two) = (limiter(&redis.url(), limits), limiter(&redis.url(), limits));
    let held = [decide(&one, "/").await, decide(&two, "/").await];
    assert!(held.iter().all(Admission::is_admitted));
    let Admission::Refused(refusal) = decide(&one, "/").await else { panic!("a third in flight") };
    assert!(matches!(refusal.reason, RefusalReason::TooManyInFlight { max: 2 }));
    drop(held);
    let _ = until(&two, "/", Admission::is_admitted).await;
}

#[tokio::test]
async fn refunds_are_written_to_the_store() {
    let redis = RedisServer::start();
    let limits = "limits: [{ name: a, rate: 10/hour burst 10, refund: 5xx }]";
    let limiter = limiter(&redis.url(), limits);
    let headers: Vec<(String, String)> = Vec::new();
    let Admission::Admitted(mut failed) = decide(&limiter, "/").await else {
        panic!("within the quota")
    };
    failed.settle(503, &headers);
    // The refund is made in the background: the tenth request is admitted after it.
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
async fn a_limiter_recovers_when_its_store_does() {
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
async fn hot_keys_are_decided_from_leases() {
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
async fn store_calls_breaker_and_leases_are_reported() {
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
        let _ = decide(&limiter, "/").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the breaker never opened");
}

/// Returns what the limit of `/` has charged, by the store.
async fn charged(limiter: &PolicyLimiter) -> Option<u64> {
    let active = limiter.policy().active();
    let request = RequestAttributes {
        peer: Some([192, 0, 2, 1].into()),
        ..RequestAttributes::new("GET", "/")
    };
    let ratekeeper::policy::Resolution::Charged(limits) = active.policy().resolve(&request) else {
        panic!("not limited");
    };
    let state = limiter.peek(&limits[0]).await.unwrap();
    (!state.is_degraded()).then(|| state.limit() - state.remaining())
}

#[tokio::test]
async fn what_was_used_is_charged_although_the_store_is_slow_or_unavailable_just_then() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(redis.port());
    let limits = "
limits: [{ name: tokens, per: ip, rate: 1000000/day, algorithm: fixed_window, cost: 10 }]
";
    let text =
        format!("version: 1\nstore: {{ url: '{}', deadline: 100ms }}\n{limits}", proxy.url());
    let policy = Policy::parse("policy.yaml", &text, &NoSources).unwrap();
    let one = PolicyLimiter::new(policy).unwrap();
    let other = limiter(&redis.url(), limits);
    let mut expected = 0;
    for fault in [Fault::Delay(Duration::from_millis(300)), Fault::BlackHole, Fault::Cut] {
        let is_by_store = |admission: &Admission| matches!(admission, Admission::Admitted(admitted) if !admitted.is_degraded);
        let before = charged(&other).await.expect("it is up");
        let Admission::Admitted(mut admitted) = until(&one, "/", is_by_store).await else {
            panic!()
        };
        // What was admitted while the store was not back yet is charged to it too.
        expected += charged(&other).await.unwrap() - before + 40;
        proxy.set(fault);
        admitted.settle_as(50);
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.set(Fault::None);
        let mut now = None;
        for _ in 0..1_000 {
            now = charged(&other).await;
            if now == Some(expected) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(now, Some(expected), "{fault:?}");
    }
}
