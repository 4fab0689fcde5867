//! Bounds on what a fleet admits while its store fails and recovers, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_core::{FailureMode, Limit, Micros};
use ratekeeper_stores::{Charge, Op};

use super::flaky_store::{Failing, FlakyStore, failing, phases};
use super::{BreakerState, Fallback, StoreState};
use crate::clock::{Clock, ManualClock};

struct Case {
    limit: Limit,
    failing: Failing,
    nodes: usize,
    /// How long the store is up and down in turns, in milliseconds.
    phases_ms: Vec<u64>,
    /// For each millisecond, the nodes that get a request.
    seed: u64,
}

/// What happened in a case.
struct Run {
    /// When requests were admitted, in milliseconds from the start.
    admitted: Vec<u64>,
    /// For each millisecond, the part of the nodes that have not noticed that the store is up.
    unaware: Vec<f64>,
}

fn run(case: &Case) -> Run {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
        let clock = ManualClock::at(Micros::new(1_000_000_000_000));
        let store = FlakyStore::new(case.failing, clock.clone());
        let fleet: Vec<_> =
            (0..case.nodes).map(|_| Fallback::with_clock(store.clone(), clock.clone())).collect();
        fleet.iter().for_each(|node| node.fix_nodes(case.nodes as u32));
        let (mut admitted, mut random, mut ms) = (Vec::new(), case.seed | 1, 0);
        let mut unaware = Vec::new();
        for (i, phase_ms) in case.phases_ms.iter().enumerate() {
            store.set_up(i % 2 == 0);
            for _ in 0..*phase_ms {
                let is_unaware = |node: &&Arc<Fallback<_>>| {
                    i % 2 == 0 && node.breaker_state() == BreakerState::Open
                };
                let count = fleet.iter().filter(is_unaware).count();
                unaware.push(count as f64 / case.nodes as f64);
                for _ in 0..3 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let node = &fleet[random as usize % case.nodes];
                    let charge = Charge::new(&case.limit, "k").on_failure(FailureMode::Local);
                    let applied = node.apply(Op::Check, &[charge]).await.unwrap();
                    if applied.allowed() {
                        admitted.push(ms);
                    }
                }
                clock.advance(Duration::from_millis(1));
                tokio::time::advance(Duration::from_millis(1)).await;
                ms += 1;
            }
        }
        Run { admitted, unaware }
    })
}

/// The most that was admitted in any time beyond what flows in that time: the rate, and beside it the shares
/// of nodes that have not noticed that the store is up.
fn most_beyond_flow(Run { admitted, unaware }: &Run, per_ms: f64) -> f64 {
    let flows = unaware.iter().scan(0.0, |flow, unaware| {
        *flow += per_ms * (1.0 + unaware);
        Some(*flow)
    });
    let flows: Vec<f64> = [0.0].into_iter().chain(flows).collect();
    let (mut lowest, mut most) = (f64::MAX, 0_f64);
    for (count, ms) in admitted.iter().enumerate() {
        let flow = flows[*ms as usize];
        lowest = lowest.min(count as f64 - flow);
        most = most.max(count as f64 + 1.0 - flow - lowest);
    }
    most
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_store_that_flaps_admits_at_most_two_bursts_more(
        failing in failing(), nodes in 1..6_usize, phases_ms in phases(), seed in any::<u64>(),
    ) {
        let limit = Limit::token_bucket("400/s burst 100").unwrap();
        let case = Case { limit, failing, nodes, phases_ms, seed };
        let most = most_beyond_flow(&run(&case), 0.4);
        // Each share has a burst of at least one.
        prop_assert!(most <= 300.0 + nodes as f64, "{most}");
    }

    #[test]
    fn a_store_that_flaps_admits_at_most_twice_the_count_of_a_window(
        failing in failing(), nodes in 1..6_usize, phases_ms in phases(), seed in any::<u64>(),
    ) {
        let limit = Limit::fixed_window("50/s").unwrap();
        let case = Case { limit, failing, nodes, phases_ms, seed };
        let mut windows = std::collections::BTreeMap::new();
        for ms in run(&case).admitted {
            *windows.entry(ms / 1_000).or_insert(0_usize) += 1;
        }
        prop_assert!(windows.values().all(|count| *count <= 100), "{windows:?}");
    }
}

#[test]
fn a_store_that_stalls_for_two_fifths_of_the_time_admits_what_the_limit_says_over_time() {
    for failing in [Failing::Gone, Failing::Stalled, Failing::Slow] {
        let limit = Limit::token_bucket("400/s burst 100").unwrap();
        let phases_ms = [150, 100].repeat(40);
        let admitted = run(&Case { limit, failing, nodes: 4, phases_ms, seed: 7 }).admitted.len();
        // Ten seconds of 400, and no more than two bursts beside the limit's own.
        assert!((3_000..=4_300).contains(&admitted), "{failing:?}: {admitted}");
    }
}

/// A node of so many whose calls miss their deadline every other time, and the store's clock.
async fn missing_every_other_deadline(nodes: u32, calls: u64) -> (FlakyStore, Limit, u64) {
    let clock = ManualClock::at(Micros::new(1_000_000_000_000));
    let store = FlakyStore::new(Failing::Slow, clock.clone());
    let node = Fallback::with_clock(store.clone(), clock.clone());
    node.fix_nodes(nodes);
    let limit = Limit::token_bucket("1000/hour").unwrap();
    let mut admitted = 0;
    for call in 0..calls {
        store.set_up(call % 2 == 0);
        let charge = Charge::new(&limit, "k").on_failure(FailureMode::Local);
        admitted += u64::from(node.apply(Op::Check, &[charge]).await.unwrap().allowed());
    }
    store.set_up(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    (store, limit, admitted)
}

#[tokio::test(start_paused = true)]
async fn a_charge_whose_reply_comes_late_is_not_made_twice() {
    let (store, limit, admitted) = missing_every_other_deadline(1, 40).await;
    assert_eq!((admitted, store.used(&limit)), (40, 40));
}

#[tokio::test(start_paused = true)]
async fn a_backlog_that_was_charged_although_the_reply_came_late_is_not_charged_again() {
    let clock = ManualClock::at(Micros::new(1_000_000_000_000));
    let store = FlakyStore::new(Failing::Slow, clock.clone());
    let node = Fallback::with_clock(store.clone(), clock.clone());
    for algorithm in ratekeeper_core::ALGORITHMS {
        let limit = Limit::new("1000/hour".parse().unwrap(), *algorithm).unwrap();
        let charge = Charge::new(&limit, "k").on_failure(FailureMode::Local);
        let owed = charge.cost(ratekeeper_core::Cost::of(10));
        node.backlog.add(&owed, 1, clock.now());
        // The store is charged the backlog first, and this node decides on the request.
        store.set_up(false);
        let applied = node.apply(Op::Check, &[charge]).await.unwrap();
        assert!(applied.allowed() && applied.is_degraded());
        store.set_up(true);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(store.used(&limit), 11, "{algorithm}");
    }
}

#[tokio::test(start_paused = true)]
async fn reports_above_the_limit_are_charged_in_full_after_an_outage_and_once_after_late_replies() {
    for failing in [Failing::Gone, Failing::Slow] {
        for algorithm in ratekeeper_core::ALGORITHMS {
            let clock = ManualClock::at(Micros::new(1_000_000_000_000));
            let store = FlakyStore::new(failing, clock.clone());
            let node = Fallback::with_clock(store.clone(), clock.clone());
            let limit = Limit::new("1000/day".parse().unwrap(), *algorithm).unwrap();
            let report = Charge::new(&limit, "k").on_failure(FailureMode::Local);
            let report = report.cost(ratekeeper_core::Cost::of(600));
            store.set_up(false);
            for _ in 0..5 {
                let _ = node.apply(Op::Charge, &[report]).await.unwrap();
            }
            store.set_up(true);
            tokio::time::sleep(Duration::from_secs(30)).await;
            // 3000 are charged: a refund of 2001 leaves 1.
            let refund = report.cost(ratekeeper_core::Cost::of(2_001));
            let left = store.apply_now(Op::refund_latest(), &refund);
            assert_eq!(left.remaining(), 1, "{failing:?} {algorithm}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_charge_that_may_have_been_cut_is_not_refunded() {
    let clock = ManualClock::at(Micros::new(1_000_000_000_000));
    let store = FlakyStore::new(Failing::Slow, clock.clone());
    let node = Fallback::with_clock(store.clone(), clock.clone());
    node.fix_nodes(1_000);
    let limit = Limit::fixed_window("1000/day").unwrap();
    let charge = Charge::new(&limit, "k").on_failure(FailureMode::Local);
    let _ = node.apply(Op::Check, &[charge.cost(ratekeeper_core::Cost::of(900))]).await.unwrap();
    store.set_up(false);
    let overdraft = charge.cost(ratekeeper_core::Cost::of(800)).overdraft("10".parse().unwrap());
    assert!(!node.apply(Op::Check, &[overdraft]).await.unwrap().allowed(), "its share is used up");
    store.set_up(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(store.used(&limit), 1_000, "110 of the 800 were charged, and are not refunded");
}

#[tokio::test(start_paused = true)]
async fn a_late_charge_for_a_request_that_was_denied_is_refunded() {
    // A share of two, which the store's first decisions use up.
    let (store, limit, admitted) = missing_every_other_deadline(500, 40).await;
    assert_eq!((admitted, store.used(&limit)), (21, 21));
}

#[tokio::test(start_paused = true)]
async fn what_was_admitted_without_the_store_is_charged_when_it_is_back() {
    let clock = ManualClock::at(Micros::new(1_000_000_000_000));
    let store = FlakyStore::new(Failing::Gone, clock.clone());
    let node = Fallback::with_clock(store.clone(), clock);
    let limit = Limit::token_bucket("1000/hour").unwrap();
    store.set_up(false);
    for _ in 0..10 {
        let charge = Charge::new(&limit, "k").on_failure(FailureMode::Local);
        let applied = node.apply(Op::Check, &[charge]).await.unwrap();
        assert!(applied.allowed() && applied.degraded().is_some());
    }
    assert_eq!((store.used(&limit), node.stats().backlog_keys), (0, 1));
    store.set_up(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stats = node.stats();
    assert_eq!((store.used(&limit), stats.backlog_keys, stats.backlog_charged), (10, 0, 10));
}

#[tokio::test(start_paused = true)]
async fn a_node_without_requests_notices_that_the_store_is_up_again() {
    let clock = ManualClock::at(Micros::new(1_000_000_000_000));
    let store = FlakyStore::new(Failing::Gone, clock.clone());
    let node = Fallback::with_clock(store.clone(), clock);
    let limit = Limit::token_bucket("1000/hour").unwrap();
    store.set_up(false);
    for _ in 0..10 {
        let charge = Charge::new(&limit, "k").on_failure(FailureMode::Local);
        let _ = node.apply(Op::Check, &[charge]).await.unwrap();
    }
    assert!(!matches!(node.state(), StoreState::Up));
    store.set_up(true);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(matches!(node.state(), StoreState::Up), "{:?}", node.state());
}

/// A case in which nodes notice late that the store is up.
#[test]
fn nodes_that_notice_late_add_no_more_than_their_shares() {
    for seed in 0..40 {
        let phases_ms = vec![199, 255, 66, 144, 185, 121, 17, 278, 88, 1, 12, 16, 227];
        let limit = Limit::token_bucket("400/s burst 100").unwrap();
        let case = Case { limit, failing: Failing::Gone, nodes: 3, phases_ms, seed };
        let most = most_beyond_flow(&run(&case), 0.4);
        assert!(most <= 303.0, "{most}");
    }
}
