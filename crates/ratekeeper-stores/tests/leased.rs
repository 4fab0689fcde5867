//! Leases never exceed the limit, and use nearly all of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_core::{Algorithm, Cost, Limit, Micros};
use ratekeeper_stores::{Charge, LeasedStore, MemoryStore, Op, RedisConfig, Snapshot, Store};
use ratekeeper_testkit::RedisServer;

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

fn over_redis() -> LeasedStore<ratekeeper_stores::RedisStore> {
    static STORES: AtomicU64 = AtomicU64::new(0);
    let number = STORES.fetch_add(1, Ordering::Relaxed);
    let config = RedisConfig::new(&REDIS.url()).with_prefix(&format!("leased{number}"));
    let config = config.with_given_time().with_deadline(Duration::from_secs(10));
    LeasedStore::new(config.open().unwrap())
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

ratekeeper_stores::conformance!(
    over_memory,
    LeasedStore::new(MemoryStore::with_capacity(1_000)),
    block_on
);
ratekeeper_stores::conformance!(redis, over_redis(), block_on);

/// Runs a future in virtual time, so that no lease is returned in the background unless a test sleeps.
fn in_virtual_time<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap().block_on(future)
}

const LEASABLE: [Algorithm; 3] =
    [Algorithm::FixedWindow, Algorithm::SlidingCounter, Algorithm::TokenBucket];
const START: u64 = 1_700_000_000_000_000;
const FULL_HOUR: u64 = 1_700_002_800_000_000;

type Nodes = Vec<LeasedStore<Arc<MemoryStore>>>;

fn nodes(n: usize, store: &Arc<MemoryStore>) -> Nodes {
    (0..n).map(|_| LeasedStore::new(store.clone())).collect()
}

async fn is_admitted(node: &impl Store, limit: &Limit, cost: u64, now: u64) -> bool {
    let charge = Charge::new(limit, "hot").cost(Cost::new(cost).unwrap());
    node.apply(Op::Check, &[charge], Micros::new(now)).await.unwrap().allowed()
}

/// A request at a node some time after the previous event, the crash of a node, or the return of its leases.
#[derive(Clone, Debug)]
enum Event {
    Request { after_us: u64, node: usize, cost: u64 },
    Crash { node: usize },
    Return { node: usize },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let request = (prop_oneof![9 => 0..300u64, 1 => 0..300_000u64], 0..3usize, 1..4u64)
        .prop_map(|(after_us, node, cost)| Event::Request { after_us, node, cost });
    let crash = (0..3usize).prop_map(|node| Event::Crash { node });
    let returning = (0..3usize).prop_map(|node| Event::Return { node });
    prop::collection::vec(prop_oneof![200 => request, 1 => crash, 1 => returning], 1..3_000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The core alone admits every request that the nodes admit, at the same time.
    #[test]
    fn the_nodes_together_never_exceed_the_limit(
        events in events(),
        count in prop_oneof![Just(7u64), Just(60), Just(500)],
        period_ms in prop_oneof![Just(10u64), Just(50), Just(700)],
    ) {
        let rate = |period: &str| format!("{count}/{period}").parse().unwrap();
        let limit = |algorithm| Limit::new(rate(&format!("{period_ms}ms")), algorithm).unwrap();
        let calendar = Limit::new(rate("calendar hour"), Algorithm::FixedWindow).unwrap();
        for limit in LEASABLE.map(limit).into_iter().chain([calendar]) {
            in_virtual_time(async {
                let shared = Arc::new(MemoryStore::with_capacity(100));
                let mut nodes = nodes(3, &shared);
                let mut model = Snapshot::fresh(&limit);
                let mut now = FULL_HOUR - 100_000;
                for event in &events {
                    match *event {
                        Event::Request { after_us, node, cost } => {
                            now += after_us;
                            if is_admitted(&nodes[node], &limit, cost, now).await {
                                let cost = Cost::new(cost).unwrap();
                                let decision = model.check(&limit, cost, Micros::new(now));
                                assert!(decision.allowed(), "{limit} at {now}");
                            }
                        }
                        Event::Crash { node } => nodes[node] = LeasedStore::new(shared.clone()),
                        Event::Return { node } => nodes[node].return_all(Micros::new(now)).await,
                    }
                }
            });
        }
    }
}

/// Sends requests at nodes with these rates per second, and returns how many were admitted in total.
async fn send_at_rates(limit: &Limit, rates: &[u64], seconds: u64) -> (u64, Nodes) {
    let shared = Arc::new(MemoryStore::with_capacity(100));
    let nodes = nodes(rates.len(), &shared);
    let mut arrivals: Vec<(u64, usize)> = Vec::new();
    for (node, rate) in rates.iter().enumerate() {
        arrivals.extend((0..rate * seconds).map(|i| (i * 1_000_000 / rate, node)));
    }
    arrivals.sort_unstable();
    let mut admitted = 0;
    for (at, node) in arrivals {
        admitted += u64::from(is_admitted(&nodes[node], limit, 1, START + at).await);
    }
    (admitted, nodes)
}

#[test]
fn nodes_of_very_different_rates_use_nearly_the_whole_limit() {
    for algorithm in LEASABLE {
        let limit = Limit::new("1000/s".parse().unwrap(), algorithm).unwrap();
        in_virtual_time(async {
            let (admitted, nodes) = send_at_rates(&limit, &[100, 1_000, 10_000], 20).await;
            // A bucket starts full, so it admits its burst in addition to its rate.
            let most = match algorithm {
                Algorithm::TokenBucket => 20_000 + 1_000,
                _ => 20_000,
            };
            assert!(admitted <= most, "{algorithm}: {admitted}");
            assert!(admitted * 100 >= 20_000 * 95, "{algorithm}: {admitted} of 20000");
            let now = Micros::new(START + 20_000_000);
            let store_calls: u64 = nodes.iter().map(|node| node.stats(now).store_calls).sum();
            assert!(
                store_calls * 3 < 222_000,
                "{algorithm}: {store_calls} calls for 222000 requests"
            );
        });
    }
}

#[test]
fn a_node_leases_no_more_than_the_bound() {
    for algorithm in LEASABLE {
        let limit = Limit::new("10000/s".parse().unwrap(), algorithm).unwrap();
        let bound = LeasedStore::<MemoryStore>::unspent_max(&limit);
        assert_eq!(bound, 625);
        in_virtual_time(async {
            let shared = Arc::new(MemoryStore::with_capacity(100));
            let node = LeasedStore::new(shared);
            let mut most = 0;
            for i in 0..50_000 {
                let now = START + i * 50;
                is_admitted(&node, &limit, 1, now).await;
                most = most.max(node.stats(Micros::new(now)).unspent);
            }
            assert!(most > 1 && most <= bound, "{algorithm}: {most} of at most {bound}");
        });
    }
}

#[test]
fn unspent_leases_are_returned() {
    for algorithm in LEASABLE {
        let limit = Limit::new("1000/hour".parse().unwrap(), algorithm).unwrap();
        in_virtual_time(async {
            let shared = Arc::new(MemoryStore::with_capacity(100));
            let nodes = nodes(2, &shared);
            for i in 0..100 {
                assert!(is_admitted(&nodes[0], &limit, 1, START + i).await);
            }
            let held = nodes[0].stats(Micros::new(START + 100)).unspent;
            assert!(held > 0, "{algorithm}: the key is leased");
            // Without requests, unspent leases are returned in the background.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let later = Micros::new(START + 1_000_100);
            assert_eq!(nodes[0].stats(later).keys, 0);
            assert_eq!(nodes[0].stats(later).refunded, held);
            let left =
                nodes[1].apply(Op::Peek, &[Charge::new(&limit, "hot")], later).await.unwrap();
            assert!((900..=901).contains(&left.remaining()), "{algorithm}: {}", left.remaining());
        });
    }
}

#[test]
fn a_denial_is_cached_until_exactly_its_retry_after() {
    let limit = Limit::token_bucket("100/s").unwrap();
    in_virtual_time(async {
        let node = LeasedStore::new(Arc::new(MemoryStore::with_capacity(100)));
        let mut now = START;
        while is_admitted(&node, &limit, 1, now).await {}
        let denied = node.apply(Op::Check, &[Charge::new(&limit, "hot")], Micros::new(now)).await;
        let wait = denied.unwrap().retry_after().unwrap().as_micros() as u64;
        let store_calls = node.stats(Micros::new(now)).store_calls;
        for _ in 0..1_000 {
            assert!(!is_admitted(&node, &limit, 1, now + wait - 1).await);
        }
        assert_eq!(node.stats(Micros::new(now)).store_calls, store_calls, "no call to the store");
        now += wait;
        assert!(is_admitted(&node, &limit, 1, now).await);
    });
}

#[test]
fn a_reset_discards_unspent_leases() {
    let limit = Limit::token_bucket("1000/hour").unwrap();
    in_virtual_time(async {
        let node = LeasedStore::new(Arc::new(MemoryStore::with_capacity(100)));
        for i in 0..100 {
            assert!(is_admitted(&node, &limit, 1, START + i).await);
        }
        node.reset(&Charge::new(&limit, "hot")).await.unwrap();
        let mut admitted = 0;
        while is_admitted(&node, &limit, 1, START + 200).await {
            admitted += 1;
        }
        assert_eq!(admitted, 1_000);
    });
}
