//! Statistics of a limiter's decisions, and the hook for each of them.
#![cfg(feature = "policy")]

use std::sync::{Arc, Mutex};

use ratekeeper::policy::{NoSources, RequestAttributes};
use ratekeeper::telemetry::Outcome;
use ratekeeper::{ManualClock, Policy, PolicyLimiter};

fn limiter(limits: &str) -> PolicyLimiter {
    let text = format!("version: 1\n{limits}");
    let policy = Policy::parse("policy.yaml", &text, &NoSources).unwrap_or_else(|e| panic!("{e}"));
    PolicyLimiter::with_clock(policy, ManualClock::new()).unwrap()
}

async fn send(limiter: &PolicyLimiter, times: usize) {
    let request = RequestAttributes {
        peer: Some([192, 0, 2, 1].into()),
        ..RequestAttributes::new("GET", "/")
    };
    for _ in 0..times {
        drop(limiter.decide(&request).await);
    }
}

/// Name, allowed, near the limit, denied, denied in shadow.
fn stats(limiter: &PolicyLimiter) -> Vec<(String, [u64; 4])> {
    let of = |limit: &ratekeeper::telemetry::LimitStats| {
        [limit.allowed, limit.near_limit, limit.denied, limit.shadow_denied]
    };
    limiter.telemetry().limits().iter().map(|limit| (limit.name.to_string(), of(limit))).collect()
}

const LIMITS: &str = "
limits:
  - { name: tight, per: ip, rate: 10/hour burst 10, algorithm: token_bucket }
  - { name: wide, rate: 1000/hour }
  - { name: trial, rate: 5/hour, mode: shadow }
";

#[tokio::test]
async fn near_limit_is_counted_for_each_limit() {
    let limiter = limiter(LIMITS);
    send(&limiter, 8).await;
    assert_eq!(stats(&limiter)[0], ("tight".into(), [8, 0, 0, 0]));
    send(&limiter, 4).await;
    let expected = [
        ("tight".into(), [10, 2, 2, 0]),
        ("trial".into(), [5, 1, 0, 5]),
        ("wide".into(), [10, 0, 0, 0]),
    ];
    assert_eq!(stats(&limiter), expected);
}

#[tokio::test]
async fn the_near_limit_threshold_can_be_set() {
    let limiter = limiter(LIMITS);
    limiter.telemetry().set_near_limit("0.5".parse().unwrap());
    send(&limiter, 10).await;
    assert_eq!(stats(&limiter)[0].1, [10, 5, 0, 0]);
}

#[tokio::test]
async fn the_decision_hook_receives_the_outcome_of_each_limit() {
    let limiter = limiter(LIMITS);
    let decisions = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&decisions);
    limiter.telemetry().on_decision(move |seen| {
        let key = String::from_utf8_lossy(seen.key).into_owned();
        sink.lock().unwrap().push((seen.limit.to_string(), key, seen.outcome));
    });
    send(&limiter, 11).await;
    let decisions = decisions.lock().unwrap();
    let count = |limit: &str, outcome| {
        decisions.iter().filter(|(name, _, what)| name == limit && *what == outcome).count()
    };
    assert_eq!(count("tight", Outcome::Allowed), 10);
    assert_eq!(count("tight", Outcome::Denied), 1);
    assert_eq!(
        count("wide", Outcome::Denied),
        0,
        "a denial is reported for the binding limit only"
    );
    assert_eq!(count("trial", Outcome::ShadowDenied), 5);
    assert!(decisions[0].1.contains("192.0.2.1"), "{decisions:?}");
}

#[tokio::test]
async fn one_memory_store_call_in_64_is_timed_and_counted_as_64() {
    let limiter = limiter(LIMITS);
    assert_eq!(limiter.engine().store_time().count, 0);
    send(&limiter, 640).await;
    // Each request is one call for the enforced limits and one for the limit in shadow mode. After the
    // tenth, the first is denied and there is no second.
    assert_eq!(limiter.engine().store_time().count, 640 + 64);
}
