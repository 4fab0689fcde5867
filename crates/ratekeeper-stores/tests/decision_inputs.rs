//! What a denial was computed from leads to the same decision again.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_core::{ALGORITHMS, Cost, Guarantees, Limit, MaxDebt, Micros};
use ratekeeper_stores::{
    Charge, DecisionInputs, MemoryStore, Op, RedisConfig, RedisStore, StateBefore, Store, Verdict,
};
use ratekeeper_testkit::{RedisCluster, RedisServer};

const START: u64 = 1_700_000_000_000_000;

/// A request: microseconds since the one before, the key, costs of two limits, and whether the second is charged too.
type Request = (u64, usize, u64, u64, bool);

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let step = prop_oneof![0..200_u64, 0..2_000_000_u64];
    proptest::collection::vec((step, 0..3_usize, 1..5_u64, 1..5_u64, any::<bool>()), 20..60)
}

/// Two limits of each algorithm, of which one is often the binding one.
fn pairs() -> Vec<[Limit; 2]> {
    let pair = |algorithm| {
        let limit = |rate: &str, name: &str| {
            Limit::new(rate.parse().unwrap(), algorithm).unwrap().named(name)
        };
        [limit("7/s", "second"), limit("11/3s", "three seconds")]
    };
    ALGORITHMS.iter().copied().map(pair).collect()
}

fn guarantees() -> Guarantees {
    let total = Limit::token_bucket("9/s").unwrap().named("total");
    Guarantees::new(total, [("partner", "4/s".parse().unwrap())]).unwrap()
}

/// The charges of a request.
fn charges<'c>(limits: &'c [Limit; 2], request: &Request) -> Vec<Charge<'c>> {
    let (_, key, first, second, is_both) = *request;
    let charge =
        |limit, cost| Charge::new(limit, ["a", "b", "c"][key]).cost(Cost::new(cost).unwrap());
    let mut charges = vec![charge(&limits[0], first)];
    if is_both {
        // Also an overdraft, and two charges to one usage.
        charges.push(charge(&limits[1], second).overdraft(MaxDebt::of_units(20)));
        charges.push(charge(&limits[0], second));
    }
    charges
}

fn assert_decides_again(inputs: &DecisionInputs, verdict: &Verdict) {
    assert_eq!(inputs.decide(), Some(**verdict), "{inputs:?}");
    assert!(inputs.remaining().is_some_and(|left| left >= verdict.remaining()), "{inputs:?}");
}

fn follow_memory(requests: &[Request]) -> usize {
    let (mut denied, guarantees) = (0, guarantees());
    let (partner, other) = (guarantees.class("partner"), guarantees.borrowing());
    for limits in pairs() {
        let (store, mut now) = (MemoryStore::with_capacity(100), START);
        for request in requests {
            now += request.0;
            let mut charges = charges(&limits, request);
            if request.4 {
                charges.push(Charge::guaranteed(
                    if request.1 == 0 { &partner } else { &other },
                    "all",
                ));
            }
            let verdict = store.apply_now(Op::Check, &charges, Micros::new(now)).unwrap();
            if !verdict.allowed() {
                assert_decides_again(&store.denial_inputs(&charges, &verdict), &verdict);
                denied += 1;
            }
        }
    }
    denied
}

async fn follow_redis(store: &RedisStore, requests: &[Request]) -> usize {
    let (mut denied, mut now) = (0, START);
    for limits in pairs() {
        for request in requests {
            now += request.0;
            let charges = charges(&limits, request);
            let verdict = store.apply(Op::Check, &charges, Micros::new(now)).await.unwrap();
            if !verdict.allowed() {
                let state = verdict.state_before().cloned();
                let inputs = DecisionInputs::of_denial(&charges, &verdict, |_| state);
                assert_decides_again(&inputs, &verdict);
                denied += 1;
            }
        }
        now += 10_000_000;
    }
    denied
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_denial_in_memory_is_decided_again_bit_for_bit(requests in requests()) {
        follow_memory(&requests);
    }
}

/// Some fixed requests, more than the limits admit.
fn busy() -> Vec<Request> {
    (0..60)
        .map(|i: u64| {
            (i * 7_919 % 150_000, i as usize % 3, 1 + i % 4, 1 + i % 3, i.is_multiple_of(2))
        })
        .collect()
}

fn open(url: &str) -> RedisStore {
    let config = RedisConfig::new(url).with_prefix("decision-inputs").with_given_time();
    config.with_deadline(Duration::from_secs(10)).open().unwrap()
}

#[test]
fn a_denial_in_redis_is_decided_again_bit_for_bit() {
    assert!(follow_memory(&busy()) > 100);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (redis, cluster) = (RedisServer::start(), RedisCluster::start());
    for url in [redis.url(), cluster.url()] {
        let denied = runtime.block_on(async { follow_redis(&open(&url), &busy()).await });
        assert!(denied > 100, "{denied}");
    }
}

#[test]
fn a_denial_of_guaranteed_capacity_in_redis_is_decided_again() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = RedisServer::start();
    let (guarantees, now) = (guarantees(), Micros::new(START));
    let other = guarantees.borrowing();
    let charges = [Charge::guaranteed(&other, "all").cost(Cost::of(3))];
    runtime.block_on(async {
        let store = open(&redis.url());
        assert!(store.apply(Op::Check, &charges, now).await.unwrap().allowed());
        let verdict = store.apply(Op::Check, &charges, now).await.unwrap();
        assert!(!verdict.allowed());
        assert!(
            matches!(verdict.state_before(), Some(StateBefore::Buckets(cells)) if cells.len() == 2)
        );
        let state = verdict.state_before().cloned();
        assert_decides_again(&DecisionInputs::of_denial(&charges, &verdict, |_| state), &verdict);
    });
}

#[test]
fn a_state_that_was_changed_meanwhile_is_not_kept() {
    let (store, now) = (MemoryStore::with_capacity(100), Micros::new(START));
    let limit = Limit::fixed_window("3/minute").unwrap();
    let charges = [Charge::new(&limit, "ann")];
    while store.apply_now(Op::Check, &charges, now).unwrap().allowed() {}
    let denied = store.apply_now(Op::Check, &charges, now).unwrap();
    store.reset(&charges[0]);
    let inputs = store.denial_inputs(&charges, &denied);
    assert_eq!((inputs.state(), inputs.decide()), (None, None));
}

#[test]
fn a_higher_limit_of_the_same_algorithm_can_be_tried_on_the_state() {
    let (store, now) = (MemoryStore::with_capacity(100), Micros::new(START));
    for algorithm in ALGORITHMS {
        let limit = |rate: &str| Limit::new(rate.parse().unwrap(), *algorithm).unwrap();
        let of = limit("3/minute");
        let charges = [Charge::new(&of, "ann")];
        while store.apply_now(Op::Check, &charges, now).unwrap().allowed() {}
        let denied = store.apply_now(Op::Check, &charges, now).unwrap();
        let inputs = store.denial_inputs(&charges, &denied);
        assert!(!inputs.decide_under(&of).unwrap().allowed(), "{algorithm}");
        assert!(inputs.decide_under(&limit("30/minute")).unwrap().allowed(), "{algorithm}");
        let other = ALGORITHMS.iter().find(|other| *other != algorithm).unwrap();
        let other = Limit::new("30/minute".parse().unwrap(), *other).unwrap();
        assert_eq!(inputs.decide_under(&other), None, "{algorithm}");
    }
}
