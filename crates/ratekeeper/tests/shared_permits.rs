//! Permits and leases shared by a fleet, on a real Redis, also when their holder is killed.
#![cfg(feature = "redis")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use ratekeeper::shared::{AcquireError, PermitId};
use ratekeeper::{
    LeasedStore, Limit, RedisConfig, RedisStore, SharedConcurrencyLimit, SharedLimiter,
    SharedPermit,
};
use ratekeeper_testkit::{RedisServer, wait_until};

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
    let id: PermitId = ids[0].to_string().parse().unwrap();
    assert_eq!(two.release("another key", id).await, Ok(false));
    assert_eq!(two.release("k", id).await, Ok(true));
    assert_eq!(one.release("k", id).await, Ok(false), "only once");
    assert!(two.hold("k", hour).await.is_ok());
    assert!("+123456789abcdef0123456789abcdef".parse::<PermitId>().is_err());
}

/// The caller has no id of such a permit, so only the limiter can release it before it expires.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_granted_after_the_deadline_is_released() {
    let redis = RedisServer::start();
    let config = RedisConfig::new(&redis.url()).with_deadline(Duration::from_millis(200));
    let of = SharedConcurrencyLimit::new("jobs", 1, config.open().unwrap());
    drop(acquire(&of, "other").await);
    let hour = Duration::from_secs(3_600);
    redis.command(&["CLIENT", "PAUSE", "500", "ALL"]);
    assert!(matches!(of.hold("k", hour).await, Err(AcquireError::Store(_))));
    // When the server resumes, it grants the permit, which is then released.
    let count = |key: &str| redis.command(&["INFO", "commandstats"]).contains(key);
    wait_until("it is granted", || count("cmdstat_zadd:calls=2"));
    let held = ["EVAL", "return redis.call('ZCARD', redis.call('KEYS', '*k}*')[1] or '')", "0"];
    wait_until("it is released", || redis.command(&held) == "0");
    assert!(of.hold("k", hour).await.is_ok());
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
