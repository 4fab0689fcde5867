//! Reservations in Redis: any process can settle them, once.

mod redis_support;

use std::sync::LazyLock;
use std::time::Duration;

use ratekeeper_core::{ALGORITHMS, Cost, Guarantees, Limit};
use ratekeeper_stores::{
    Charge, Op, PermitName, PermitStore, RedisStore, ReservationRecord, ReservationStore,
    StoreError,
};
use ratekeeper_testkit::{RedisCluster, RedisServer, wait_until};
use redis_support::{
    ACL, ACL_CLUSTER, ACL_FLEET, NO_TIME, apply, as_user, block_on, make_user,
    store_with_long_deadline, used,
};

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);
static VALKEY: LazyLock<RedisServer> = LazyLock::new(RedisServer::valkey);
static CLUSTER: LazyLock<RedisCluster> = LazyLock::new(RedisCluster::start);

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a limit of each algorithm, and as many keys, which are in different slots of a cluster.
fn limits() -> Vec<(Limit, String)> {
    let limit = |algorithm| Limit::new("1000/day".parse().unwrap(), algorithm).unwrap();
    let each = ALGORITHMS.iter().map(|one| (limit(*one).named("tokens"), format!("user {one}")));
    let calendar = Limit::fixed_window("1000/calendar month").unwrap().named("tokens");
    each.chain([(calendar, "user calendar".to_string())]).collect()
}

fn charges<'a>(limits: &'a [(Limit, String)]) -> Vec<Charge<'a>> {
    limits.iter().map(|(limit, key)| Charge::new(limit, key.as_str())).collect()
}

/// Charges the estimate, and keeps the reservation under the id.
async fn reserve(store: &RedisStore, id: u128, charges: &[Charge<'_>], estimate: u64) {
    let estimate = Cost::new(estimate).unwrap();
    let charges: Vec<_> = charges.iter().map(|charge| charge.cost(estimate)).collect();
    let verdict = apply(store, Op::Check, &charges).await.unwrap();
    assert!(verdict.allowed());
    let record = ReservationRecord::new(&charges, estimate, verdict.at());
    store.put_reservation(id, &record, MINUTE).await.unwrap();
}

/// Returns whether it was settled.
async fn settle(store: &RedisStore, id: u128, actual: u64) -> bool {
    store.settle_reservation(id, actual, NO_TIME).await.unwrap().is_some()
}

fn each_deployment(test: impl Fn(&dyn Fn() -> RedisStore)) {
    for url in [REDIS.url(), VALKEY.url(), CLUSTER.url()] {
        let prefix = format!("t{}", next_number());
        test(&|| store_with_long_deadline(&url, &prefix));
    }
}

/// Returns a number that no other call returns.
fn next_number() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// What was charged to a guarantee is refunded to it, and what was borrowed to the total only.
#[test]
fn a_reservation_with_a_guarantee_is_refunded_to_where_it_was_charged() {
    let total = Limit::token_bucket("100/day").unwrap().named("tokens");
    let guarantees = Guarantees::new(total, [("partner", "60/day".parse().unwrap())]).unwrap();
    let (partner, other) = (guarantees.class("partner"), guarantees.borrowing());
    each_deployment(|open| {
        let (store, other_store) = (open(), open());
        block_on(async {
            let (partner, other) =
                (Charge::guaranteed(&partner, "k"), Charge::guaranteed(&other, "k"));
            let left = async |charge: Charge<'_>| {
                apply(&store, Op::Peek, &[charge]).await.unwrap().remaining()
            };
            let reserve = async |id, cost: u64| {
                let charge = partner.cost(Cost::new(cost).unwrap());
                let verdict = apply(&store, Op::Check, &[charge]).await.unwrap();
                assert!(verdict.allowed());
                let charge = charge.decided(&verdict);
                let record = ReservationRecord::new(&[charge], charge.amount(), verdict.at());
                store.put_reservation(id, &record, MINUTE).await.unwrap();
            };
            reserve(1, 60).await;
            assert_eq!((left(partner).await, left(other).await), (40, 40));
            reserve(2, 30).await;
            assert_eq!((left(partner).await, left(other).await), (10, 10), "borrowed");
            assert!(settle(&other_store, 1, 20).await);
            assert_eq!((left(partner).await, left(other).await), (40, 10), "to the guarantee");
            assert!(settle(&other_store, 2, 5).await && !settle(&store, 2, 5).await);
            assert_eq!((left(partner).await, left(other).await), (40, 35), "to the total");
        });
    });
}

#[test]
fn a_reservation_is_corrected_once_for_every_algorithm() {
    each_deployment(|open| {
        let (one, other, limits) = (open(), open(), limits());
        block_on(async {
            for (i, charge) in charges(&limits).into_iter().enumerate() {
                // More, less and as much as the estimate.
                for (n, actual) in [700, 10, 50, 0].into_iter().enumerate() {
                    let id = (i * 10 + n) as u128;
                    let before = used(&one, charge).await;
                    reserve(&one, id, &[charge], 50).await;
                    assert_eq!(used(&one, charge).await, before + 50);
                    let settled = other.settle_reservation(id, actual, NO_TIME).await.unwrap();
                    let settled = settled.expect("it is held");
                    assert_eq!(settled.verdict.remaining(), 1_000 - before - actual);
                    assert!(!settle(&one, id, 0).await && !settle(&other, id, 900).await);
                    assert_eq!(used(&other, charge).await, before + actual, "{}", charge.limit());
                }
            }
        });
    });
}

#[test]
fn several_charges_are_corrected_together() {
    each_deployment(|open| {
        let (one, other, limits) = (open(), open(), limits());
        let charges = charges(&limits);
        block_on(async {
            reserve(&one, 1, &charges, 100).await;
            reserve(&one, 2, &charges, 100).await;
            assert!(settle(&other, 1, 30).await && settle(&one, 2, 130).await);
            assert!(!settle(&other, 2, 0).await);
            for charge in &charges {
                assert_eq!(used(&one, *charge).await, 160, "{}", charge.limit());
            }
        });
    });
}

#[test]
fn what_is_settled_at_the_same_time_is_corrected_once() {
    each_deployment(|open| {
        let (stores, limits) = ([open(), open()], limits());
        let charges = charges(&limits);
        block_on(async {
            for round in 0..20 {
                let before = used(&stores[0], charges[0]).await;
                reserve(&stores[0], round, &charges, 40).await;
                let settles = (0..8).map(|i| settle(&stores[i % 2], round, 15));
                let settled = futures_util::future::join_all(settles).await;
                assert!(settled.contains(&true));
                for charge in &charges {
                    assert_eq!(used(&stores[1], *charge).await, before + 15, "{}", charge.limit());
                }
            }
        });
    });
}

#[test]
fn usage_under_another_rate_is_corrected_too() {
    each_deployment(|open| {
        let store = open();
        let limit = |rate: &str| Limit::token_bucket(rate).unwrap().named("tokens");
        let (old, new) = (limit("1000/day"), limit("2000/day"));
        block_on(async {
            reserve(&store, 1, &[Charge::new(&old, "k")], 500).await;
            // The state is written under the new rate before it is settled under the old one.
            let _ = apply(&store, Op::Check, &[Charge::new(&new, "k")]).await.unwrap();
            let before = used(&store, Charge::new(&new, "k")).await;
            assert!(settle(&store, 1, 100).await);
            assert!(!settle(&store, 1, 100).await);
            let after = used(&store, Charge::new(&new, "k")).await;
            assert!(after < before, "{before} {after}");
        });
    });
}

#[test]
fn a_reservation_expires_and_leaves_nothing_behind() {
    let store = store_with_long_deadline(&REDIS.url(), "expiry");
    let keys = || REDIS.command(&["KEYS", "expiry:1:reservation*"]);
    let limits = limits();
    block_on(async {
        reserve(&store, 1, &charges(&limits)[..1], 10).await;
        assert!(keys().contains("reservation"));
        let record = ReservationRecord::new(&charges(&limits)[..1], Cost::of(10), NO_TIME);
        store.put_reservation(1, &record, Duration::from_millis(50)).await.unwrap();
    });
    wait_until("the record has expired", || keys().trim().is_empty());
    assert!(!block_on(settle(&store, 1, 0)));
    assert_eq!(block_on(used(&store, charges(&limits)[0])), 10, "its charge stays");
}

#[test]
fn what_another_version_has_written_is_an_error_without_its_bytes() {
    let store = store_with_long_deadline(&REDIS.url(), "version");
    let limits = limits();
    block_on(async {
        reserve(&store, 5, &charges(&limits)[..1], 10).await;
        let permit = PermitName { name: "exports", key: b"user 1", id: 6 };
        store.put_permit_location(&permit, MINUTE).await.unwrap();
    });
    for pattern in ["version:1:reservation*", "version:1:permit*"] {
        let keys = REDIS.command(&["KEYS", pattern]);
        let key = keys.split_whitespace().next().expect("a key").trim_matches('"').to_string();
        REDIS.command(&["SETRANGE", &key, "0", "~"]);
    }
    let settled =
        block_on(store.settle_reservation(5, 0, NO_TIME)).map(|settled| settled.is_some());
    assert_eq!(settled, Err(StoreError::OtherVersion));
    assert_eq!(block_on(store.release_permit_of(6)), Err(StoreError::OtherVersion));
    let message = StoreError::OtherVersion.to_string();
    assert!(message.contains("another version"), "{message}");
}

#[test]
fn documented_permissions_suffice() {
    make_user(&REDIS, &[ACL, ACL_FLEET]);
    CLUSTER.nodes().iter().for_each(|node| make_user(node, &[ACL, ACL_FLEET, ACL_CLUSTER]));
    for url in [REDIS.url(), CLUSTER.url()] {
        let store = store_with_long_deadline(&as_user(&url), "ratekeeper");
        let limits = limits();
        block_on(async {
            reserve(&store, 77, &charges(&limits), 10).await;
            assert!(settle(&store, 77, 5).await);
            let permit = PermitName { name: "exports", key: b"acme", id: 78 };
            assert!(store.acquire_permit(&permit, 1, MINUTE).await.unwrap().is_held);
            store.put_permit_location(&permit, MINUTE).await.unwrap();
            assert_eq!(store.release_permit_of(78).await, Ok(true));
            assert_eq!(store.release_permit_of(78).await, Ok(false), "only once");
        });
    }
}
