//! Reservations that one process makes and another settles, over a real Redis.
#![cfg(feature = "redis")]

use std::time::Duration;

use ratekeeper::{
    Cost, HoldId, LeasedStore, Limit, RedisConfig, ReservationError, ReservationStore,
    SharedLimiter,
};
use ratekeeper_testkit::{Fault, FaultProxy, RedisServer};

const DEADLINE: Duration = Duration::from_millis(200);
const MINUTE: Duration = Duration::from_secs(60);
const QUOTA: u64 = 1_000_000;

fn config(url: &str) -> RedisConfig {
    RedisConfig::new(url).with_deadline(DEADLINE)
}

fn limiter(url: &str) -> SharedLimiter {
    SharedLimiter::new(limit(), config(url).open().unwrap()).unwrap()
}

fn limit() -> Limit {
    Limit::fixed_window(&format!("{QUOTA}/day")).unwrap().named("tokens")
}

async fn reserve<S>(limiter: &SharedLimiter<S>, estimate: u64) -> HoldId
where
    S: ReservationStore + Send + Sync + 'static,
{
    let request = limiter.key("ann").cost(Cost::new(estimate).unwrap());
    request.reserve_for(MINUTE).await.unwrap().id().expect("it is within the limit")
}

async fn used(limiter: &SharedLimiter) -> u64 {
    let peeked = limiter.key("ann").peek().await;
    assert!(!peeked.is_degraded(), "{peeked:?}");
    QUOTA - peeked.remaining()
}

#[tokio::test]
async fn any_process_settles_a_reservation_once() {
    let redis = RedisServer::start();
    let (one, other) = (limiter(&redis.url()), limiter(&redis.url()));
    let id = reserve(&one, 100).await;
    assert!(!id.is_degraded());
    let settled = other.settle(id.to_string().parse().unwrap(), 30).await.unwrap();
    assert_eq!(settled.applied().remaining(), QUOTA - 30);
    assert_eq!((settled.limit().name(), settled.charges().len()), ("tokens", 1));
    for limiter in [&one, &other] {
        assert_eq!(limiter.settle(id, 0).await.unwrap_err(), ReservationError::NotHeld);
    }
    assert_eq!(used(&one).await, 30);
    // What is larger than the limit is denied, and has no id.
    let denied = one.key("ann").cost(Cost::of(QUOTA)).reserve_for(MINUTE).await.unwrap();
    assert!(denied.id().is_none() && !denied.applied().allowed());
}

#[tokio::test]
async fn an_overdraft_is_reserved_and_settled() {
    let redis = RedisServer::start();
    let (one, other) = (limiter(&redis.url()), limiter(&redis.url()));
    let _ = one.key("ann").cost(Cost::of(QUOTA - 10)).check().await;
    let overdraft = one.key("ann").cost(Cost::of(500)).overdraft();
    let id = overdraft.reserve_for(MINUTE).await.unwrap().id().expect("something is left");
    assert!(!one.check("ann").await.allowed());
    let settled = other.settle(id, 4).await.unwrap();
    assert_eq!(settled.applied().remaining(), 6);
}

#[tokio::test]
async fn a_reservation_of_a_leased_key_is_corrected_in_the_store() {
    let redis = RedisServer::start();
    let leased = LeasedStore::new(config(&redis.url()).open().unwrap());
    let leased = SharedLimiter::new(limit(), leased).unwrap();
    let direct = limiter(&redis.url());
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(reserve(&leased, 10).await);
    }
    for id in ids {
        direct.settle(id, 3).await.unwrap();
    }
    for _ in 0..200 {
        if used(&direct).await == 300 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} are charged; unspent units of a lease are returned", used(&direct).await);
}

/// A reply that is lost leaves open whether the correction was made. It is made once all the same.
#[tokio::test]
async fn a_settlement_that_is_repeated_after_an_error_is_made_once() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(redis.port());
    let (direct, behind) = (limiter(&redis.url()), limiter(&proxy.url()));
    let (mut charged, mut made_unnoticed) = (0, 0);
    for round in 0..12 {
        let id = reserve(&direct, 100).await;
        let _ = behind.check("another key").await;
        proxy.set(Fault::Delay(DEADLINE * 3 / 4));
        // Either of the two calls that it needs may miss the deadline.
        let first = behind.settle(id, round).await;
        assert!(matches!(first, Err(ReservationError::Store(_))), "{first:?}");
        proxy.set(Fault::None);
        let mut settled = behind.settle(id, round).await;
        while let Err(ReservationError::Store(_)) = settled {
            settled = behind.settle(id, round).await;
        }
        assert!(matches!(settled, Ok(_) | Err(ReservationError::NotHeld)), "{settled:?}");
        made_unnoticed += usize::from(settled.is_err());
        charged += round;
        tokio::time::sleep(DEADLINE).await;
        assert_eq!(used(&direct).await, charged, "round {round}");
    }
    assert!(made_unnoticed > 0, "some were made although the reply was lost");
}

#[tokio::test]
async fn a_reservation_that_the_store_did_not_keep_is_settled_by_this_process() {
    let redis = RedisServer::start();
    let allow = |keys: &str| {
        let user = ["ACL", "SETUSER", "limiter", "reset", "on", ">secret", "+@all"];
        let keys: Vec<_> = keys.split(' ').collect();
        assert_eq!(redis.command(&[&user[..], &keys].concat()), "OK");
    };
    let usage = "~ratekeeper:1:3* ~ratekeeper:1:nodes ~ratekeeper:1:probe*";
    allow(usage);
    let one = limiter(&redis.url().replace("://", "://limiter:secret@"));
    let other = limiter(&redis.url());
    let id = reserve(&one, 100).await;
    assert!(id.is_degraded());
    assert_eq!(used(&other).await, 100, "the store was charged");
    assert!(matches!(one.settle(id, 30).await, Err(ReservationError::Store(_))), "still held");
    let elsewhere = other.settle(id, 30).await.unwrap_err();
    assert_eq!(elsewhere, ReservationError::HeldElsewhere);
    allow(&format!("{usage} ~ratekeeper:1:reservation*"));
    // An existing connection keeps its user, with the new permissions.
    one.settle(id, 30).await.unwrap();
    assert_eq!(one.settle(id, 30).await.unwrap_err(), ReservationError::HeldElsewhere);
    assert_eq!(used(&other).await, 30);
}

/// What was charged without the store is charged to it afterwards, and then has to be refunded there: once,
/// although every attempt may have been made when its reply is lost.
#[tokio::test]
async fn what_the_store_was_charged_after_an_outage_is_refunded_once() {
    let redis = RedisServer::start();
    let one = limiter(&redis.url()).with_nodes(1);
    assert_eq!(used(&one).await, 0);
    redis.pause();
    let id = reserve(&one, 600).await;
    assert!(id.is_degraded());
    redis.resume();
    let direct = limiter(&redis.url());
    let until_used = async |expected: u64| {
        for _ in 0..500 {
            let _ = one.key("ann").peek().await;
            if used(&direct).await == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} are charged, not {expected}", used(&direct).await);
    };
    until_used(600).await;
    redis.pause();
    assert_eq!(one.settle(id, 100).await.unwrap().applied().remaining(), QUOTA - 100);
    assert_eq!(one.settle(id, 100).await.unwrap_err(), ReservationError::HeldElsewhere);
    // Some attempts are made meanwhile.
    tokio::time::sleep(DEADLINE * 5).await;
    redis.resume();
    until_used(100).await;
    tokio::time::sleep(DEADLINE * 5).await;
    assert_eq!(used(&direct).await, 100, "only once");
}

#[tokio::test]
async fn a_correction_that_the_store_did_not_make_is_not_made_here_either() {
    let redis = RedisServer::start();
    let one = limiter(&redis.url()).with_nodes(1);
    assert_eq!(used(&one).await, 0);
    redis.pause();
    let estimate = one.key("ann").cost(Cost::of(600));
    let Ok(reservation) = estimate.reserve().await else { panic!("it is within the limit") };
    assert!(reservation.applied().is_degraded());
    redis.resume();
    let direct = limiter(&redis.url());
    while used(&direct).await != 600 {
        let _ = one.key("ann").peek().await;
    }
    redis.pause();
    assert!(
        reservation.cancel().await.is_err(),
        "the store has been charged, and does not respond"
    );
    let peeked = one.key("ann").peek().await;
    assert_eq!((peeked.is_degraded(), peeked.remaining()), (true, QUOTA - 600));
    redis.resume();
}
