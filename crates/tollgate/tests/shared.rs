//! A limiter over a real Redis, and what it does when that is slow or gone.
#![cfg(feature = "redis")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::shared::{BreakerState, StoreState, Why};
use tollgate::{Answer, Charge, Cost, Limit, RedisConfig, SharedLimiter, StoreError, WhenDown};
use tollgate_testkit::{Fault, FaultProxy, RedisServer};

const DEADLINE: Duration = Duration::from_millis(200);
/// No call may take this long, whatever happens to the store.
const HANG: Duration = Duration::from_secs(3);

fn limiter(limit: &str, url: &str) -> SharedLimiter {
    let store = RedisConfig::new(url).with_deadline(DEADLINE).open().unwrap();
    SharedLimiter::new(Limit::token_bucket(limit).unwrap().named("test"), store).unwrap()
}

async fn check(limiter: &SharedLimiter, key: &str) -> Answer {
    tokio::time::timeout(HANG, limiter.check(key)).await.expect("an answer without a hang")
}

/// Asks until the answer is as wished.
async fn until(limiter: &SharedLimiter, what: &str, wish: impl Fn(&Answer) -> bool) {
    for _ in 0..1_000 {
        if wish(&check(limiter, "until").await) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never {what}: {:?} {:?}", limiter.state(), limiter.stats());
}

async fn open_breaker(limiter: &SharedLimiter) {
    until(limiter, "opened", |_| limiter.breaker() == BreakerState::Open).await;
}

#[tokio::test]
async fn nodes_that_share_a_store_share_the_limit() {
    let redis = RedisServer::start();
    let (one, two) = (limiter("10/hour", &redis.url()), limiter("10/hour", &redis.url()));
    let mut admitted = 0;
    for _ in 0..10 {
        for node in [&one, &two] {
            let answer = check(node, "k").await;
            assert!(answer.degraded().is_none(), "{answer:?}");
            admitted += u32::from(answer.allowed());
        }
    }
    assert_eq!(admitted, 10);
    assert!(matches!(one.state(), StoreState::Up));
    assert_eq!(one.stats().answered, 10);
}

#[tokio::test]
async fn a_reservation_settles_in_the_store() {
    let redis = RedisServer::start();
    let limiter = limiter("100/hour", &redis.url());
    let reserve = |n| limiter.key("k").cost(Cost::of(n)).reserve();
    let reservation = reserve(60).await.unwrap_or_else(|_| panic!("there is room"));
    assert!(reserve(60).await.is_err(), "not for another");
    assert_eq!(reservation.settle(20).await.unwrap().remaining(), 80);
    let reservation = reserve(60).await.unwrap_or_else(|_| panic!("now there is"));
    assert_eq!(reservation.cancel().await.unwrap().remaining(), 80);
    limiter.key("k").cost(Cost::of(150)).charge().await;
    assert!(!limiter.key("k").peek().await.allowed(), "a debt");
    limiter.key("k").reset().await.unwrap();
    assert_eq!(limiter.key("k").peek().await.remaining(), 100);
}

#[tokio::test]
async fn a_black_hole_costs_a_deadline_and_then_nothing() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(redis.port());
    let limiter = limiter("10/hour", &proxy.url());
    assert!(check(&limiter, "k").await.degraded().is_none());

    proxy.set(Fault::BlackHole);
    let answer = check(&limiter, "k").await;
    let degraded = answer.degraded().expect("not the store's answer");
    assert!(matches!(degraded.why, Why::Failed(ref e) if matches!(**e, StoreError::Deadline(_))));
    open_breaker(&limiter).await;

    let before = limiter.stats();
    for _ in 0..1_000 {
        let answer = check(&limiter, "other").await;
        assert!(matches!(answer.degraded().unwrap().why, Why::NotAsked(_)));
    }
    let after = limiter.stats();
    assert_eq!(after.local, before.local + 1_000);
    assert!(after.deadlines <= before.deadlines + 20, "only the probe still asks");
    assert!(matches!(limiter.state(), StoreState::Down(_)));

    proxy.set(Fault::None);
    until(&limiter, "back", |answer| answer.degraded().is_none()).await;
    until(&limiter, "closed", |_| limiter.breaker() == BreakerState::Closed).await;
    assert!(matches!(limiter.state(), StoreState::Up));
}

#[tokio::test]
async fn every_fault_has_an_answer_and_passes() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(redis.port());
    let limiter = limiter("1000000/hour", &proxy.url());
    for fault in [Fault::Cut, Fault::Garbage, Fault::HalfOpen, Fault::Delay(2 * DEADLINE)] {
        until(&limiter, "up", |answer| answer.degraded().is_none()).await;
        proxy.set(fault);
        for _ in 0..20 {
            assert!(check(&limiter, "k").await.allowed(), "by the share of one node");
        }
        proxy.set(Fault::None);
    }
    until(&limiter, "up", |answer| answer.degraded().is_none()).await;
    redis.kill();
    open_breaker(&limiter).await;
    redis.restart();
    until(&limiter, "up", |answer| answer.degraded().is_none()).await;
    let stats = limiter.stats();
    assert!(stats.unreachable > 0 && stats.deadlines > 0, "{stats:?}");
}

#[tokio::test]
async fn a_fleet_without_its_store_still_holds_the_total() {
    let redis = RedisServer::start();
    let nodes: Vec<_> = (0..4).map(|_| limiter("100/hour", &redis.url())).collect();
    // Everybody hears of everybody.
    for node in &nodes {
        node.start();
    }
    for node in &nodes {
        until(node, "four nodes", |_| node.stats().nodes == 4).await;
    }
    redis.kill();
    let mut admitted = 0;
    for _ in 0..100 {
        for node in &nodes {
            let answer = check(node, "k").await;
            assert_eq!(answer.degraded().expect("no store").nodes, 4);
            admitted += u32::from(answer.allowed());
        }
    }
    assert_eq!(admitted, 100, "a quarter each");
}

#[tokio::test]
async fn a_choice_for_each_limit_and_each_request() {
    let gone = format!("redis://127.0.0.1:{}", RedisServer::start().port());
    let limiter = limiter("2/hour", &gone).with_nodes(1);
    open_breaker(&limiter).await;

    let denied = limiter.key("k").when_down(WhenDown::Deny).check().await;
    assert!(!denied.allowed() && denied.retry_after().is_some());
    for _ in 0..10 {
        assert!(limiter.key("k").when_down(WhenDown::Allow).check().await.allowed());
    }
    let two_local = [check(&limiter, "k").await, check(&limiter, "k").await];
    assert!(two_local.iter().all(|answer| answer.allowed()));
    assert!(!check(&limiter, "k").await.allowed());

    // What one denies is charged to none.
    let limit = limiter.limit();
    let mixed =
        [(Charge::new(limit, "a"), WhenDown::Local), (Charge::new(limit, "b"), WhenDown::Deny)];
    for _ in 0..5 {
        assert!(!limiter.check_each(&mixed).await.unwrap().allowed());
    }
    assert_eq!(limiter.key("a").peek().await.remaining(), 2);
}

#[tokio::test]
async fn it_starts_without_a_store_and_says_so() {
    let redis = RedisServer::start();
    redis.kill();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = heard.clone();
    let limiter = limiter("10/hour", &redis.url()).on_change(move |state| {
        listener.lock().unwrap().push(format!("{state:?}"));
    });
    assert!(check(&limiter, "k").await.allowed());
    open_breaker(&limiter).await;
    redis.restart();
    until(&limiter, "up", |answer| answer.degraded().is_none()).await;
    until(&limiter, "closed", |_| limiter.breaker() == BreakerState::Closed).await;
    let heard = heard.lock().unwrap();
    assert!(heard[0].starts_with("Down"), "{heard:?}");
    assert_eq!(heard.last().map(String::as_str), Some("Up"));
    assert!(heard.windows(2).all(|two| two[0] != two[1]), "only news is told: {heard:?}");
}

#[tokio::test]
async fn a_wrong_password_is_not_an_outage() {
    let redis = RedisServer::start_with(&["--requirepass", "secret"]);
    let limiter = limiter("10/hour", &format!("redis://:wrong@127.0.0.1:{}", redis.port()));
    open_breaker(&limiter).await;
    let StoreState::Down(error) = limiter.state() else { panic!("it is up") };
    assert!(matches!(*error, StoreError::Misconfigured(_)), "{error}");
    assert!(error.is_permanent());
    assert!(limiter.stats().misconfigured > 0);
}
