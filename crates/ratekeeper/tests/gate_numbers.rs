//! What a gate tells about its decisions.
#![cfg(feature = "policy")]

use std::sync::{Arc, Mutex};

use ratekeeper::gate::Outcome;
use ratekeeper::policy::{NoSources, RequestAttributes};
use ratekeeper::{Gate, ManualClock, Policy};

fn gate(limits: &str) -> Gate {
    let text = format!("version: 1\n{limits}");
    let policy = Policy::parse("policy.yaml", &text, &NoSources).unwrap_or_else(|e| panic!("{e}"));
    Gate::with_clock(policy, ManualClock::new()).unwrap()
}

async fn ask(gate: &Gate, times: usize) {
    let request = RequestAttributes {
        peer: Some([192, 0, 2, 1].into()),
        ..RequestAttributes::new("GET", "/")
    };
    for _ in 0..times {
        drop(gate.decide(&request).await);
    }
}

/// Name, allowed, near the limit, denied, denied in shadow.
fn stats(gate: &Gate) -> Vec<(String, [u64; 4])> {
    let of = |limit: &ratekeeper::gate::LimitStats| {
        [limit.allowed, limit.near_limit, limit.denied, limit.shadow_denied]
    };
    gate.stats().iter().map(|limit| (limit.name.to_string(), of(limit))).collect()
}

const LIMITS: &str = "
limits:
  - { name: tight, per: ip, rate: 10/hour burst 10, algorithm: token_bucket }
  - { name: wide, rate: 1000/hour }
  - { name: watched, rate: 5/hour, mode: shadow }
";

#[tokio::test]
async fn near_the_limit_is_told_for_each_limit_by_itself() {
    let gate = gate(LIMITS);
    ask(&gate, 8).await;
    assert_eq!(stats(&gate)[0], ("tight".into(), [8, 0, 0, 0]));
    ask(&gate, 4).await;
    let expected = [
        ("tight".into(), [10, 2, 2, 0]),
        ("watched".into(), [5, 1, 0, 5]),
        ("wide".into(), [10, 0, 0, 0]),
    ];
    assert_eq!(stats(&gate), expected);
}

#[tokio::test]
async fn from_where_on_it_is_near_can_be_told() {
    let gate = gate(LIMITS);
    gate.near_limit_from("0.5".parse().unwrap());
    ask(&gate, 10).await;
    assert_eq!(stats(&gate)[0].1, [10, 5, 0, 0]);
}

#[tokio::test]
async fn who_listens_hears_what_each_limit_says() {
    let gate = gate(LIMITS);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&heard);
    gate.on_decision(move |seen| {
        let key = String::from_utf8_lossy(seen.key).into_owned();
        into.lock().unwrap().push((seen.limit.to_string(), key, seen.outcome));
    });
    ask(&gate, 11).await;
    let heard = heard.lock().unwrap();
    let count = |limit: &str, outcome| {
        heard.iter().filter(|(name, _, what)| name == limit && *what == outcome).count()
    };
    assert_eq!(count("tight", Outcome::Allowed), 10);
    assert_eq!(count("tight", Outcome::Denied), 1);
    assert_eq!(count("wide", Outcome::Denied), 0, "only the limit that refused has spoken");
    assert_eq!(count("watched", Outcome::ShadowDenied), 5);
    assert!(heard[0].1.contains("192.0.2.1"), "{heard:?}");
}

#[tokio::test]
async fn the_store_in_memory_is_timed_now_and_then_and_counted_in_full() {
    let gate = gate(LIMITS);
    assert_eq!(gate.store_time().count, 0);
    ask(&gate, 640).await;
    assert_eq!(gate.store_time().count, 640);
}
