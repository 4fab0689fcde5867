//! Permits and leases that a fleet shares, on a real Redis; and what a holder that is killed leaves.
#![cfg(feature = "redis")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate::shared::AcquireError;
use tollgate::{
    LeasedStore, Limit, RedisConfig, RedisStore, SharedConcurrency, SharedLimiter, SharedPermit,
};
use tollgate_testkit::RedisServer;

fn store(url: &str) -> RedisStore {
    RedisConfig::new(url).with_deadline(Duration::from_secs(2)).open().unwrap()
}

fn permits(url: &str) -> SharedConcurrency {
    SharedConcurrency::new("jobs", 3, store(url)).with_lives(Duration::from_millis(900))
}

/// Asks until there is one.
async fn acquire(of: &SharedConcurrency, key: &str) -> SharedPermit {
    for _ in 0..1_000 {
        if let Ok(permit) = of.acquire(key).await {
            return permit;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no permit came back");
}

#[tokio::test]
async fn the_fleet_holds_no_more_permits_than_there_are() {
    let redis = RedisServer::start();
    let (one, two) = (permits(&redis.url()), permits(&redis.url()));
    let held = [acquire(&one, "k").await, acquire(&two, "k").await, acquire(&one, "k").await];
    assert!(matches!(two.acquire("k").await, Err(AcquireError::NoPermits { max: 3, .. })));
    assert!(two.acquire("another key").await.is_ok());

    // They are renewed, and so outlive their time.
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    assert!(two.acquire("k").await.is_err());
    assert!(held.iter().all(|permit| !permit.is_lost()));

    drop(held);
    drop(acquire(&two, "k").await);
}

#[tokio::test]
async fn permits_of_a_killed_holder_come_back() {
    let redis = RedisServer::start();
    let mut child = holder(&redis, "holds_permits");
    let here = permits(&redis.url());
    assert!(here.acquire("k").await.is_err(), "the other process has all of them");
    child.kill().unwrap();
    child.wait().unwrap();
    let back = [acquire(&here, "k").await, acquire(&here, "k").await, acquire(&here, "k").await];
    assert!(here.acquire("k").await.is_err(), "and no more than there are");
    drop(back);
}

#[tokio::test]
async fn a_killed_lease_holder_leaves_no_more_than_the_limit() {
    let redis = RedisServer::start();
    let mut child = holder(&redis, "holds_leases");
    child.kill().unwrap();
    child.wait().unwrap();
    // The child admitted 200 and had more on lease.
    let here = leased(&redis.url());
    let mut admitted = 200;
    while here.check("hot").await.allowed() {
        admitted += 1;
    }
    let bound = LeasedStore::<RedisStore>::unspent_max(here.limit());
    assert!(admitted <= 1_000, "{admitted}");
    assert!(admitted >= 1_000 - bound, "{admitted}: no more was lost than a node may hold back");
}

fn leased(url: &str) -> SharedLimiter<LeasedStore<RedisStore>> {
    let limit = Limit::token_bucket("1000/day").unwrap();
    SharedLimiter::new(limit, LeasedStore::new(store(url))).unwrap()
}

/// This program again, as another process that holds something until it is killed.
fn holder(redis: &RedisServer, what: &str) -> std::process::Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([what, "--exact", "--ignored", "--nocapture"])
        .env("TOLLGATE_TEST_REDIS", redis.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_ready = lines.map_while(Result::ok).any(|line| line.contains("it holds them"));
    assert!(is_ready, "the other process holds nothing");
    child
}

fn redis_of_parent() -> String {
    std::env::var("TOLLGATE_TEST_REDIS").expect("only for the tests above")
}

#[tokio::test]
#[ignore = "it is the other process of a test above"]
async fn holds_permits() {
    let of = permits(&redis_of_parent());
    let held = [acquire(&of, "k").await, acquire(&of, "k").await, acquire(&of, "k").await];
    println!("it holds them: {}", held.len());
    std::future::pending::<()>().await;
}

#[tokio::test]
#[ignore = "it is the other process of a test above"]
async fn holds_leases() {
    let limiter = leased(&redis_of_parent());
    for _ in 0..200 {
        assert!(limiter.check("hot").await.allowed());
    }
    println!("it holds them");
    std::future::pending::<()>().await;
}
