//! Permits and leases shared by a fleet, on a real Redis, also when their holder is killed.
#![cfg(feature = "redis")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use ratekeeper::shared::{AcquireError, BreakerState};
use ratekeeper::{
    DegradedReason, FailureMode, HoldId, LeasedStore, Limit, PermitError, RedisConfig, RedisStore,
    SharedConcurrencyLimit, SharedLimiter, SharedPermit,
};
use ratekeeper_testkit::{Fault, FaultProxy, RedisServer, wait_until};

fn store(url: &str) -> RedisStore {
    RedisConfig::new(url).with_deadline(Duration::from_secs(2)).open().unwrap()
}

fn permits(url: &str) -> SharedConcurrencyLimit {
    SharedConcurrencyLimit::new("jobs", 3, store(url)).with_ttl(Duration::from_millis(900))
}

/// Tries until a permit is granted.
async fn acquire(of: &SharedConcurrencyLimit, key: &str) -> SharedPermit {
    for _ in 0..1_000 {
        if let Ok(permit) = of.acquire(key).await {
            return permit;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no permit was released");
}

/// Waits until the server's clock has passed every deadline that permits have now.
async fn wait_until_expired(redis: &RedisServer) {
    const LAST_DEADLINE: &str = "local last = 0
        for _, key in ipairs(redis.call('KEYS', '*')) do
          if redis.call('TYPE', key).ok == 'zset' then
            local permit = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
            last = math.max(last, tonumber(permit[2]))
          end
        end
        return last";
    const TIME_MS: &str = "local time = redis.call('TIME') return time[1] * 1000 + time[2] / 1000";
    let number = |script| redis.command(&["EVAL", script, "0"]).parse::<u64>().unwrap();
    let deadline = number(LAST_DEADLINE);
    assert!(deadline > 0, "permits are held");
    for _ in 0..1_000 {
        if number(TIME_MS) > deadline {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the deadlines did not pass");
}

#[tokio::test]
async fn a_fleet_shares_one_set_of_permits() {
    let redis = RedisServer::start();
    let (one, two) = (permits(&redis.url()), permits(&redis.url()));
    let held = [acquire(&one, "k").await, acquire(&two, "k").await, acquire(&one, "k").await];
    assert!(matches!(two.acquire("k").await, Err(AcquireError::NoPermits { max: 3, .. })));
    assert!(two.acquire("another key").await.is_ok());

    // Permits in use are renewed, so they outlive their present deadlines.
    wait_until_expired(&redis).await;
    assert!(two.acquire("k").await.is_err());
    assert!(held.iter().all(|permit| !permit.is_lost()));

    drop(held);
    drop(acquire(&two, "k").await);
}

#[tokio::test]
async fn permits_of_a_killed_holder_expire() {
    let redis = RedisServer::start();
    let mut child = holder(&redis, "holds_permits");
    let here = permits(&redis.url());
    assert!(here.acquire("k").await.is_err(), "the other process has all of them");
    child.kill().unwrap();
    child.wait().unwrap();
    let back = [acquire(&here, "k").await, acquire(&here, "k").await, acquire(&here, "k").await];
    assert!(here.acquire("k").await.is_err(), "no more than the limit");
    drop(back);
}

#[tokio::test]
async fn a_permit_is_released_by_its_id_from_any_node() {
    let redis = RedisServer::start();
    let (one, two) = (permits(&redis.url()), permits(&redis.url()));
    let hour = Duration::from_secs(3_600);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(one.hold("k", hour).await.unwrap());
    }
    assert!(matches!(two.hold("k", hour).await, Err(AcquireError::NoPermits { max: 3, .. })));
    let id: HoldId = ids[0].to_string().parse().unwrap();
    assert_eq!(two.release(id).await, Ok(()));
    assert_eq!(one.release(id).await, Err(PermitError::NotHeld), "only once");
    assert!(two.hold("k", hour).await.is_ok());
}

/// The caller has no id of such a permit, so only the limiter can release it before it expires.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_granted_after_the_deadline_is_released() {
    let redis = RedisServer::start();
    let config = RedisConfig::new(&redis.url()).with_deadline(Duration::from_millis(200));
    let of = SharedConcurrencyLimit::new("jobs", 1, config.open().unwrap())
        .on_failure(FailureMode::Closed);
    drop(acquire(&of, "other").await);
    let hour = Duration::from_secs(3_600);
    redis.command(&["CLIENT", "PAUSE", "500", "ALL"]);
    assert!(matches!(of.hold("k", hour).await, Err(AcquireError::Store(_))));
    // When the server resumes, it grants the permit, which is then released, as that of the other key was.
    wait_until("it is released", || {
        let stats = redis.command(&["INFO", "commandstats"]);
        let calls =
            stats.split("cmdstat_zrem:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.is_some_and(|calls| calls.parse::<u64>().unwrap() > 1)
    });
    assert_eq!(held_in(&redis, "k"), "0");
    drop(acquire(&of, "k").await);
}

/// Returns a limit of 6 that two nodes share, whose store fails fast.
fn degradable(url: &str) -> SharedConcurrencyLimit {
    let store = RedisConfig::new(url).with_deadline(Duration::from_millis(200)).open().unwrap();
    SharedConcurrencyLimit::new("jobs", 6, store).with_ttl(Duration::from_millis(900)).with_nodes(2)
}

/// The number of permits of this key that the server knows of.
fn held_in(redis: &RedisServer, key: &str) -> String {
    let count = format!("return redis.call('ZCARD', redis.call('KEYS', '*{key}}}*')[1] or '')");
    redis.command(&["EVAL", &count, "0"])
}

/// Makes calls until the breaker is in this state.
async fn until_breaker(is: BreakerState, of: &SharedConcurrencyLimit) {
    for _ in 0..1_000 {
        drop(of.acquire("other").await);
        if of.breaker_state() == is {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the breaker is still {:?}", of.breaker_state());
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_granted_by_the_share_of_the_node_while_the_store_is_gone() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(redis.port());
    let of = degradable(&proxy.url());
    let by_store = acquire(&of, "k").await;
    assert!(by_store.degraded().is_none());

    for fault in [Fault::BlackHole, Fault::Cut, Fault::Garbage] {
        until_breaker(BreakerState::Closed, &of).await;
        proxy.set(fault);
        let held = [of.acquire("k").await.unwrap(), of.acquire("k").await.unwrap()];
        assert!(held.iter().all(|permit| permit.degraded().is_some()));
        let refused = of.acquire("k").await.unwrap_err();
        assert!(matches!(refused, AcquireError::ShareHeld { share: 3, .. }), "{refused}");
        assert!(refused.to_string().contains("share of 3 permits"), "{refused}");

        until_breaker(BreakerState::Open, &of).await;
        drop(held);
        let permit = of.acquire("k").await.expect("it was released here");
        let reason = &permit.degraded().expect("decided without the store").reason;
        assert!(matches!(reason, DegradedReason::BreakerOpen(_)));
        let closed = of.clone().on_failure(FailureMode::Closed).acquire("k").await;
        assert!(matches!(closed, Err(AcquireError::Store(_))));
        let open = of.clone().on_failure(FailureMode::Open);
        let mut above = Vec::new();
        for _ in 0..10 {
            above.push(open.acquire("k").await.unwrap());
        }

        // All 12 that are in flight count when the store is back, although the limit is 6.
        proxy.set(Fault::None);
        wait_until("the store knows of all", || held_in(&redis, "k") == "12");
        assert!(matches!(of.acquire("k").await, Err(AcquireError::NoPermits { max: 6, .. })));
        drop((permit, above));
        wait_until("they are released", || held_in(&redis, "k") == "1");
    }
    drop(by_store);
    wait_until("it is released", || held_in(&redis, "k") == "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_was_held_without_the_store_is_released_by_its_id_here_only() {
    let redis = RedisServer::start();
    let (one, two) = (degradable(&redis.url()), degradable(&redis.url()));
    drop(acquire(&one, "k").await);
    redis.kill();
    let id = one.hold("k", Duration::from_secs(3_600)).await.unwrap();
    assert!(id.is_degraded(), "{id}");
    assert_eq!(two.release(id).await, Err(PermitError::HeldElsewhere));
    assert_eq!(one.release(id).await, Ok(()));
    assert_eq!(one.release(id).await, Err(PermitError::HeldElsewhere), "only once");
}

#[tokio::test]
async fn a_rate_and_a_concurrency_limit_are_of_one_node() {
    let redis = RedisServer::start();
    let rates = SharedLimiter::new("100/hour", store(&redis.url())).unwrap();
    let jobs = rates.concurrency("jobs", 2);
    let other = jobs.with_limit("other", 1);
    let held = [acquire(&jobs, "k").await, acquire(&other, "k").await];
    assert!(jobs.acquire("k").await.is_ok() && other.acquire("k").await.is_err());
    assert!(rates.check("k").await.allowed());
    assert_eq!((rates.stats().nodes, jobs.stats().nodes), (1, 1));
    drop(held);
}

#[tokio::test]
async fn a_killed_lease_holder_cannot_exceed_the_limit() {
    let redis = RedisServer::start();
    let mut child = holder(&redis, "holds_leases");
    child.kill().unwrap();
    child.wait().unwrap();
    // The child admitted 200 and had leased more.
    let here = leased(&redis.url());
    let mut admitted = 200;
    while here.check("hot").await.allowed() {
        admitted += 1;
    }
    let bound = LeasedStore::<RedisStore>::unspent_max(here.limit());
    assert!(admitted <= 1_000, "{admitted}");
    assert!(admitted >= 1_000 - bound, "{admitted}: no more is lost than a node may lease");
}

fn leased(url: &str) -> SharedLimiter<LeasedStore<RedisStore>> {
    let limit = Limit::token_bucket("1000/day").unwrap();
    SharedLimiter::new(limit, LeasedStore::new(store(url))).unwrap()
}

/// Starts this program as a second process that holds permits or leases until it is killed.
fn holder(redis: &RedisServer, what: &str) -> std::process::Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([what, "--exact", "--ignored", "--nocapture"])
        .env("RATEKEEPER_TEST_REDIS", redis.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_ready = lines.map_while(Result::ok).any(|line| line.contains("ready"));
    assert!(is_ready, "the other process is not ready");
    child
}

fn redis_of_parent() -> String {
    std::env::var("RATEKEEPER_TEST_REDIS").expect("only for the tests above")
}

#[tokio::test]
#[ignore = "the second process of a test above"]
async fn holds_permits() {
    let of = permits(&redis_of_parent());
    let held = [acquire(&of, "k").await, acquire(&of, "k").await, acquire(&of, "k").await];
    println!("ready: {}", held.len());
    std::future::pending::<()>().await;
}

#[tokio::test]
#[ignore = "the second process of a test above"]
async fn holds_leases() {
    let limiter = leased(&redis_of_parent());
    for _ in 0..200 {
        assert!(limiter.check("hot").await.allowed());
    }
    println!("ready");
    std::future::pending::<()>().await;
}
