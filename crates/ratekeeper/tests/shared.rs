//! A limiter over a real Redis, and its fallback when Redis is slow or down.
#![cfg(feature = "redis")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratekeeper::clock::{Clock, SystemClock};
use ratekeeper::shared::{BreakerState, StoreState};
use ratekeeper::{
    Applied, Charge, Cost, DegradedReason, FailureMode, Limit, RedisConfig, SharedLimiter,
    StoreError,
};
use ratekeeper_testkit::{Fault, FaultProxy, RedisCluster, RedisServer};

const DEADLINE: Duration = Duration::from_millis(200);
/// No call may take this long, whatever happens to the store.
const HANG: Duration = Duration::from_secs(3);

fn limiter(limit: &str, url: &str) -> SharedLimiter {
    let store = RedisConfig::new(url).with_deadline(DEADLINE).open().unwrap();
    SharedLimiter::new(Limit::token_bucket(limit).unwrap().named("test"), store).unwrap()
}

async fn check(limiter: &SharedLimiter, key: &str) -> Applied {
    tokio::time::timeout(HANG, limiter.check(key)).await.expect("a decision without a hang")
}

/// Checks until the result is as expected.
async fn until(limiter: &SharedLimiter, what: &str, expected: impl Fn(&Applied) -> bool) {
    for _ in 0..1_000 {
        if expected(&check(limiter, "until").await) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never {what}: {:?} {:?}", limiter.state(), limiter.stats());
}

async fn open_breaker(limiter: &SharedLimiter) {
    until(limiter, "opened", |_| limiter.breaker_state() == BreakerState::Open).await;
}

#[tokio::test]
async fn nodes_that_share_a_store_share_the_limit() {
    let redis = RedisServer::start();
    let (one, two) = (limiter("10/hour", &redis.url()), limiter("10/hour", &redis.url()));
    let mut admitted = 0;
    for _ in 0..10 {
        for node in [&one, &two] {
            let applied = check(node, "k").await;
            assert!(applied.degraded().is_none(), "{applied:?}");
            admitted += u32::from(applied.allowed());
        }
    }
    assert_eq!(admitted, 10);
    assert!(matches!(one.state(), StoreState::Up));
    assert_eq!(one.stats().store, 10);
}

#[tokio::test]
async fn a_reservation_settles_in_the_store() {
    let redis = RedisServer::start();
    let limiter = limiter("100/hour", &redis.url());
    let reserve = |n| limiter.key("k").cost(Cost::of(n)).reserve();
    let reservation = reserve(60).await.unwrap_or_else(|_| panic!("within the quota"));
    assert!(reserve(60).await.is_err(), "above the quota");
    assert_eq!(reservation.settle(20).await.unwrap().remaining(), 80);
    let reservation =
        reserve(60).await.unwrap_or_else(|_| panic!("within the quota after the refund"));
    assert_eq!(reservation.cancel().await.unwrap().remaining(), 80);
    let _ = limiter.key("k").cost(Cost::of(150)).charge().await;
    assert!(!limiter.key("k").peek().await.allowed(), "a debt");
    limiter.key("k").reset().await.unwrap();
    assert_eq!(limiter.key("k").peek().await.remaining(), 100);
}

#[cfg(feature = "calendar")]
#[tokio::test]
async fn a_calendar_quota_is_shared_settled_and_kept_by_the_fallback() {
    let redis = RedisServer::start();
    let limit: Limit = "100/calendar month from day 15 in Europe/Berlin".parse().unwrap();
    let store = RedisConfig::new(&redis.url()).with_deadline(DEADLINE).open().unwrap();
    let limiter = SharedLimiter::new(limit.clone(), store).unwrap();
    let reserve = |n| limiter.key("k").cost(Cost::of(n)).reserve();
    let reservation = reserve(60).await.unwrap_or_else(|_| panic!("within the quota"));
    assert_eq!(reservation.settle(20).await.unwrap().remaining(), 80);
    let _ = limiter.key("k").cost(Cost::of(150)).charge().await;
    let denied = limiter.key("k").check().await;
    assert!(!denied.allowed() && denied.degraded().is_none(), "a debt: {denied:?}");
    limiter.key("k").reset().await.unwrap();
    assert!(limiter.key("k").cost(Cost::of(70)).check().await.allowed());
    redis.kill();
    let denied = limiter.key("k").cost(Cost::of(31)).check().await;
    assert!(denied.degraded().is_some() && !denied.allowed(), "{denied:?}");
    assert_eq!(denied.remaining(), 30, "this node has admitted 70");
    let wait = denied.retry_after().unwrap();
    assert!(wait <= Duration::from_secs(31 * 86_400 + 3_600) && wait == denied.reset_after());
}

#[tokio::test]
async fn an_open_breaker_spares_calls_the_deadline() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(redis.port());
    let limiter = limiter("10/hour", &proxy.url());
    assert!(check(&limiter, "k").await.degraded().is_none());

    proxy.set(Fault::BlackHole);
    let applied = check(&limiter, "k").await;
    let degraded = applied.degraded().expect("decided without the store");
    assert!(
        matches!(degraded.reason, DegradedReason::Failed(ref e) if matches!(**e, StoreError::Deadline(_)))
    );
    open_breaker(&limiter).await;

    let before = limiter.stats();
    for _ in 0..1_000 {
        let applied = check(&limiter, "other").await;
        assert!(matches!(applied.degraded().unwrap().reason, DegradedReason::BreakerOpen(_)));
    }
    let after = limiter.stats();
    assert_eq!(after.local, before.local + 1_000);
    assert!(after.deadlines <= before.deadlines + 20, "only the probe still calls the store");
    assert!(matches!(limiter.state(), StoreState::Down(_)));

    proxy.set(Fault::None);
    until(&limiter, "back", |applied| applied.degraded().is_none()).await;
    until(&limiter, "closed", |_| limiter.breaker_state() == BreakerState::Closed).await;
    assert!(matches!(limiter.state(), StoreState::Up));
}

#[tokio::test]
async fn every_fault_falls_back_and_recovers() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(redis.port());
    let limiter = limiter("1000000/hour", &proxy.url());
    for fault in [Fault::Cut, Fault::Garbage, Fault::HalfOpen, Fault::Delay(2 * DEADLINE)] {
        until(&limiter, "up", |applied| applied.degraded().is_none()).await;
        proxy.set(fault);
        for _ in 0..20 {
            assert!(check(&limiter, "k").await.allowed(), "by the local fallback");
        }
        proxy.set(Fault::None);
    }
    until(&limiter, "up", |applied| applied.degraded().is_none()).await;
    redis.kill();
    open_breaker(&limiter).await;
    redis.restart();
    until(&limiter, "up", |applied| applied.degraded().is_none()).await;
    let stats = limiter.stats();
    assert!(stats.unreachable > 0 && stats.deadlines > 0, "{stats:?}");
}

#[tokio::test]
async fn a_fleet_without_its_store_still_enforces_the_total() {
    let redis = RedisServer::start();
    let nodes: Vec<_> = (0..4).map(|_| limiter("100/hour", &redis.url())).collect();
    // Every node learns the size of the fleet.
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
            let applied = check(node, "k").await;
            assert_eq!(applied.degraded().expect("no store").nodes, 4);
            admitted += u32::from(applied.allowed());
        }
    }
    assert_eq!(admitted, 100, "a quarter each");
}

#[tokio::test]
async fn the_failure_mode_is_set_for_each_limit_and_request() {
    let gone = format!("redis://127.0.0.1:{}", RedisServer::start().port());
    let limiter = limiter("2/hour", &gone).with_nodes(1);
    open_breaker(&limiter).await;

    let denied = limiter.key("k").on_failure(FailureMode::Closed).check().await;
    assert!(!denied.allowed() && denied.retry_after().is_some());
    for _ in 0..10 {
        assert!(limiter.key("k").on_failure(FailureMode::Open).check().await.allowed());
    }
    let two_local = [check(&limiter, "k").await, check(&limiter, "k").await];
    assert!(two_local.iter().all(|applied| applied.allowed()));
    assert!(!check(&limiter, "k").await.allowed());

    // A denial by one charge leaves the other uncharged.
    let limit = limiter.limit();
    let mixed = [
        Charge::new(limit, "a").on_failure(FailureMode::Local),
        Charge::new(limit, "b").on_failure(FailureMode::Closed),
    ];
    for _ in 0..5 {
        assert!(!limiter.check_all(&mixed).await.unwrap().allowed());
    }
    assert_eq!(limiter.key("a").peek().await.remaining(), 2);
}

#[tokio::test]
async fn a_limiter_starts_without_its_store_and_reports_state_changes() {
    let redis = RedisServer::start();
    redis.kill();
    let states = Arc::new(Mutex::new(Vec::new()));
    let listener = states.clone();
    let limiter = limiter("10/hour", &redis.url()).on_change(move |state| {
        listener.lock().unwrap().push(format!("{state:?}"));
    });
    assert!(check(&limiter, "k").await.allowed());
    open_breaker(&limiter).await;
    redis.restart();
    until(&limiter, "up", |applied| applied.degraded().is_none()).await;
    until(&limiter, "closed", |_| limiter.breaker_state() == BreakerState::Closed).await;
    let states = states.lock().unwrap();
    assert!(states[0].starts_with("Down"), "{states:?}");
    assert_eq!(states.last().map(String::as_str), Some("Up"));
    assert!(states.windows(2).all(|two| two[0] != two[1]), "a state is reported once: {states:?}");
}

#[tokio::test]
async fn a_wrong_password_is_reported_as_misconfiguration() {
    let redis = RedisServer::start_with(&["--requirepass", "secret"]);
    let limiter = limiter("10/hour", &format!("redis://:wrong@127.0.0.1:{}", redis.port()));
    open_breaker(&limiter).await;
    let StoreState::Down(error) = limiter.state() else { panic!("it is up") };
    assert!(matches!(*error, StoreError::Misconfigured(_)), "{error}");
    assert!(error.is_permanent());
    assert!(limiter.stats().misconfigured > 0);
}

/// Four nodes send requests continuously while the store is stalled two fifths of the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flapping_store_adds_at_most_two_bursts() {
    let redis = RedisServer::start();
    let limit = || Limit::token_bucket("400/s burst 100").unwrap().named("flapping");
    let nodes: Vec<_> = (0..4)
        .map(|_| {
            let store = RedisConfig::new(&redis.url()).open().unwrap();
            SharedLimiter::new(limit(), store).unwrap().with_nodes(4)
        })
        .collect();
    let is_done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let started = SystemClock.now();
    let callers: Vec<_> = nodes
        .iter()
        .map(|node| {
            let (node, is_done) = (node.clone(), is_done.clone());
            tokio::spawn(async move {
                let mut admitted = 0_u64;
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    admitted += u64::from(check(&node, "k").await.allowed());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                admitted
            })
        })
        .collect();
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        redis.pause();
        tokio::time::sleep(Duration::from_millis(100)).await;
        redis.resume();
    }
    is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut admitted = 0;
    for caller in callers {
        admitted += caller.await.unwrap();
    }
    let took_ms = SystemClock.now().since(started).as_millis() as u64;
    println!("{admitted} admitted in {took_ms} ms");
    let local: u64 = nodes.iter().map(|node| node.stats().local).sum();
    assert!(local > 0, "the store stalled");
    assert!(admitted <= took_ms * 400 / 1_000 + 300, "{admitted} in {took_ms} ms");
}

/// Returns a key whose slot is on this node of the cluster.
fn key_of_node(cluster: &RedisCluster, node: usize) -> String {
    let slot_of = |key: &str| {
        let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", &format!("{{={key}}}")]);
        slot.parse().unwrap()
    };
    let mut keys = (0..).map(|n: u32| format!("k{n}"));
    keys.find(|key| cluster.master_of_slot(slot_of(key)) == node).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_shard_degrades_only_its_own_keys() {
    let cluster = RedisCluster::start();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let (on_failed, other) = (key_of_node(&cluster, 0), key_of_node(&cluster, 1));
    let limiter = limiter("1000000/hour", &cluster.url());
    for key in [&on_failed, &other] {
        assert!(check(&limiter, key).await.degraded().is_none());
    }
    cluster.nodes()[0].pause();
    while limiter.breaker_state() != BreakerState::Open {
        assert!(check(&limiter, &on_failed).await.degraded().is_some());
        assert!(check(&limiter, &other).await.degraded().is_none());
    }
    assert!(matches!(limiter.state(), StoreState::Partial { shards_down: 1, .. }));
    // Until the replica has taken over, and its breaker is closed again.
    let mut recovered = 0;
    while limiter.breaker_state() != BreakerState::Closed || recovered < 10 {
        recovered += u32::from(check(&limiter, &on_failed).await.degraded().is_none());
        let applied = check(&limiter, &other).await;
        assert!(applied.degraded().is_none(), "{applied:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(matches!(limiter.state(), StoreState::Up));
}
