//! Bounds on how much is in flight while the store fails and recovers, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_core::{FailureMode, Micros};

use super::flaky_store::{Failing, FlakyStore, failing, phases};
use super::{AcquireError, Fallback, FleetLimit, SharedPermit};
use crate::clock::ManualClock;

const TTL: Duration = Duration::from_millis(300);

struct Fleet {
    clock: ManualClock,
    store: FlakyStore,
    nodes: Vec<Arc<Fallback<FlakyStore>>>,
    limit: FleetLimit,
}

impl Fleet {
    fn new(failing: Failing, nodes: usize, max: u64, on_failure: FailureMode) -> Self {
        let clock = ManualClock::at(Micros::new(1_000_000_000_000));
        let store = FlakyStore::new(failing, clock.clone());
        let fleet: Vec<_> =
            (0..nodes).map(|_| Fallback::with_clock(store.clone(), clock.clone())).collect();
        fleet.iter().for_each(|node| node.fix_nodes(nodes as u32));
        let limit = FleetLimit { name: "jobs".into(), max, ttl: TTL, on_failure };
        Self { clock, store, nodes: fleet, limit }
    }

    async fn acquire(&self, node: usize) -> Result<SharedPermit, AcquireError> {
        self.nodes[node].acquire_permit(&self.limit, b"k").await
    }

    async fn wait_ms(&self, ms: u64) {
        for _ in 0..ms {
            self.clock.advance(Duration::from_millis(1));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
    }
}

struct Case {
    failing: Failing,
    nodes: usize,
    max: u64,
    phases_ms: Vec<u64>,
    /// Which node gets a request when, and which request ends.
    seed: u64,
}

/// What happened in a case.
struct Run {
    /// The most that was in flight at a time.
    most: u64,
    /// What was in flight in the end, and what the store knew of.
    in_flight: usize,
    known: usize,
}

fn run(case: &Case) -> Run {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
        let fleet = Fleet::new(case.failing, case.nodes, case.max, FailureMode::Local);
        let (mut held, mut most, mut random) = (Vec::new(), 0, case.seed | 1);
        for (i, phase_ms) in case.phases_ms.iter().enumerate() {
            fleet.store.set_up(i % 2 == 0);
            for _ in 0..*phase_ms {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // More requests begin than end, so that the limit is always in use.
                for node in [random >> 20, random >> 40] {
                    held.extend(fleet.acquire(node as usize % case.nodes).await.ok());
                }
                if random % 8 == 0 && !held.is_empty() {
                    drop(held.swap_remove(random as usize / 8 % held.len()));
                }
                most = most.max(held.len() as u64);
                fleet.wait_ms(1).await;
            }
        }
        fleet.store.set_up(true);
        fleet.wait_ms(5_000).await;
        Run { most, in_flight: held.len(), known: fleet.store.held().len() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_store_that_flaps_lets_at_most_thrice_the_limit_be_in_flight(
        failing in failing(), nodes in 1..6_usize, max in 1..20_u64, phases_ms in phases(),
        seed in any::<u64>(),
    ) {
        let run = run(&Case { failing, nodes, max, phases_ms, seed });
        // Each share is at least one.
        let shares = max.max(nodes as u64);
        prop_assert!(run.most <= 2 * max + shares, "{} of {max}", run.most);
        prop_assert_eq!(run.known, run.in_flight, "the store knows of all that are held");
    }

    #[test]
    fn outages_that_no_permit_expires_in_let_at_most_twice_the_limit_be_in_flight(
        failing in failing(), nodes in 1..6_usize, max in 1..20_u64, seed in any::<u64>(),
        downs in prop::collection::vec(1..100_u64, 1..5),
    ) {
        let phases_ms = downs.iter().flat_map(|down| [400, *down]).collect();
        let run = run(&Case { failing, nodes, max, phases_ms, seed });
        let shares = max.max(nodes as u64);
        prop_assert!(run.most <= max + shares, "{} of {max}", run.most);
        prop_assert_eq!(run.known, run.in_flight);
    }
}

#[test]
fn a_store_that_is_up_lets_no_more_than_the_limit_be_in_flight() {
    let case = Case { failing: Failing::Gone, nodes: 3, max: 7, phases_ms: vec![2_000], seed: 5 };
    assert_eq!(run(&case).most, 7);
}

#[tokio::test(start_paused = true)]
async fn a_node_grants_its_share_less_what_the_store_granted_it() {
    let fleet = Fleet::new(Failing::Gone, 2, 10, FailureMode::Local);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(fleet.acquire(0).await.unwrap());
    }
    assert!(held.iter().all(|permit| permit.degraded().is_none()));
    fleet.store.set_up(false);
    for _ in 0..2 {
        let permit = fleet.acquire(0).await.unwrap();
        assert_eq!(permit.degraded().expect("decided without the store").nodes, 2);
        held.push(permit);
    }
    let refused = fleet.acquire(0).await.unwrap_err();
    assert!(matches!(refused, AcquireError::ShareHeld { share: 5, .. }), "{refused}");
    held.pop();
    assert!(fleet.acquire(0).await.is_ok(), "it is released here");
}

#[tokio::test(start_paused = true)]
async fn what_was_granted_without_the_store_is_held_there_when_it_is_back() {
    for failing in [Failing::Gone, Failing::Stalled, Failing::Slow] {
        let fleet = Fleet::new(failing, 1, 2, FailureMode::Open);
        let by_store = fleet.acquire(0).await.unwrap();
        fleet.store.set_up(false);
        let mut here = Vec::new();
        for _ in 0..4 {
            here.push(fleet.acquire(0).await.unwrap());
        }
        fleet.wait_ms(1_000).await;
        assert!(by_store.is_lost(), "it has expired: {failing:?}");
        fleet.store.set_up(true);
        fleet.wait_ms(3_000).await;
        assert_eq!(fleet.store.held().len(), 5, "above the limit: {failing:?}");
        let lost = here.iter().chain([&by_store]).filter(|permit| permit.is_lost()).count();
        assert_eq!(lost, 3, "as many as are above the limit");
        let refused = fleet.acquire(0).await.unwrap_err();
        assert!(matches!(refused, AcquireError::NoPermits { max: 2, .. }), "{refused}");
        here.clear();
        fleet.wait_ms(1_000).await;
        assert_eq!(fleet.store.held().len(), 1);
        assert!(!by_store.is_lost(), "the limit is kept again");
    }
}

#[tokio::test(start_paused = true)]
async fn before_the_store_knows_of_a_permit_this_node_asks_for_one_fewer() {
    let fleet = Fleet::new(Failing::Gone, 1, 2, FailureMode::Local);
    fleet.store.set_up(false);
    let here = fleet.acquire(0).await.unwrap();
    fleet.store.set_up(true);
    let by_store = fleet.acquire(0).await.unwrap();
    assert!(here.degraded().is_some() && by_store.degraded().is_none());
    assert_eq!(fleet.store.held().len(), 1, "it does not know of the first");
    assert!(matches!(fleet.acquire(0).await, Err(AcquireError::NoPermits { max: 2, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_the_store_granted_too_late_is_released_if_the_request_was_refused() {
    for failing in [Failing::Stalled, Failing::Slow] {
        let fleet = Fleet::new(failing, 1, 2, FailureMode::Closed);
        fleet.store.set_up(false);
        let refused = fleet.acquire(0).await.unwrap_err();
        assert!(matches!(refused, AcquireError::Store(_)), "{refused}");
        fleet.store.set_up(true);
        fleet.wait_ms(200).await;
        assert!(fleet.store.held().is_empty(), "{failing:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_is_held_by_an_id_expires_here_without_the_store() {
    let fleet = Fleet::new(Failing::Gone, 1, 1, FailureMode::Local);
    fleet.store.set_up(false);
    let valid = Duration::from_secs(3);
    let node = &fleet.nodes[0];
    let id = node.hold_permit(&fleet.limit, b"k", valid).await.unwrap();
    assert!(id.is_degraded() && fleet.acquire(0).await.is_err());
    fleet.wait_ms(6_000).await;
    assert!(fleet.acquire(0).await.is_ok());
    assert!(node.release_permit(id).await.is_err());
}
