//! The Redis store when the network or the servers fail: every call ends by its deadline with a precise
//! error, nothing panics, and the store recovers by itself.

mod redis_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_core::{Cost, Limit};
use ratekeeper_stores::redis::ConnectionStats;
use ratekeeper_stores::{
    Charge, Op, RedisConfig, RedisStore, SharedStore, Store, StoreError, Verdict,
};
use ratekeeper_testkit::{Fault, FaultProxy, RedisCluster, RedisSentinel, RedisServer, TIMEOUT};
use redis_support::{
    ACL, ACL_SENTINEL, NO_TIME, as_user, block_on, make_user, store_with_long_deadline, used,
};
use tokio::task::JoinHandle;

/// The time limit of any call, far above the deadlines of the stores.
const CALL_LIMIT: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_millis(200);

fn store_with_short_deadline(url: &str) -> RedisStore {
    RedisConfig::new(url).with_deadline(DEADLINE).open().unwrap()
}

fn large_limit() -> Limit {
    Limit::sliding_counter("1000000/day").unwrap()
}

/// Sends one check, and panics if it does not end in time.
async fn check(store: &RedisStore, limit: &Limit, key: &str) -> Result<Verdict, StoreError> {
    let charge = [Charge::new(limit, key)];
    let call = store.apply(Op::Check, &charge, NO_TIME);
    tokio::time::timeout(CALL_LIMIT, call).await.expect("a call ends in time")
}

/// Sends checks until one succeeds.
async fn recover(store: &RedisStore, limit: &Limit, key: &str) -> Verdict {
    let recovered = async {
        loop {
            match check(store, limit, key).await {
                Ok(verdict) => return verdict,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    within_limit(recovered).await
}

async fn within_limit<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIMEOUT, future).await.expect("the expected event within the timeout")
}

/// A server behind a faulty network, and a store that is connected to it.
struct FaultySetup {
    proxy: FaultProxy,
    store: RedisStore,
    limit: Limit,
    _server: RedisServer,
}

impl FaultySetup {
    fn start() -> FaultySetup {
        let server = RedisServer::start();
        let proxy = FaultProxy::start(server.port());
        let (store, limit) = (store_with_short_deadline(&proxy.url()), large_limit());
        let _ = block_on(recover(&store, &limit, "ann"));
        FaultySetup { proxy, store, limit, _server: server }
    }

    /// Returns the errors of several checks under a fault.
    fn errors(&self, fault: Fault) -> Vec<StoreError> {
        self.proxy.set(fault);
        let check = |_| block_on(check(&self.store, &self.limit, "ann")).unwrap_err();
        (0..5).map(check).collect()
    }

    fn recovers(&self) -> ConnectionStats {
        let _ = block_on(recover(&self.store, &self.limit, "ann"));
        for _ in 0..20 {
            let _ =
                block_on(check(&self.store, &self.limit, "ann")).expect("the store has recovered");
        }
        self.store.connection_stats()
    }
}

#[test]
fn a_slow_network_exceeds_the_deadline() {
    let setup = FaultySetup::start();
    for error in setup.errors(Fault::Delay(4 * DEADLINE)) {
        assert_eq!(error, StoreError::Deadline(DEADLINE));
    }
    setup.proxy.set(Fault::None);
    setup.recovers();
}

#[test]
fn a_closed_connection_is_unreachable_and_reconnected() {
    let setup = FaultySetup::start();
    for error in setup.errors(Fault::Cut) {
        assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
        let source = std::error::Error::source(&error).expect("the client library's error");
        assert!(source.is::<redis::RedisError>(), "{source:?}");
    }
    setup.proxy.set(Fault::None);
    let stats = setup.recovers();
    assert_eq!((stats.connected, stats.lost), (2, 1), "{stats:?}");
    assert!(stats.refused >= 3, "{stats:?}");
}

#[test]
fn a_black_hole_exceeds_the_deadline_and_drops_the_connection() {
    let setup = FaultySetup::start();
    for error in setup.errors(Fault::BlackHole) {
        assert_eq!(error, StoreError::Deadline(DEADLINE));
    }
    setup.proxy.set(Fault::None);
    let stats = setup.recovers();
    assert_eq!((stats.connected, stats.lost), (2, 1), "{stats:?}");
}

#[test]
fn garbage_is_an_error_and_drops_the_connection() {
    let setup = FaultySetup::start();
    for error in setup.errors(Fault::Garbage) {
        assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    }
    setup.proxy.set(Fault::None);
    let stats = setup.recovers();
    assert_eq!((stats.connected, stats.lost), (2, 1), "{stats:?}");
}

#[test]
fn a_half_open_connection_is_replaced() {
    let setup = FaultySetup::start();
    setup.proxy.set(Fault::HalfOpen);
    let stats = setup.recovers();
    assert_eq!((stats.connected, stats.lost, stats.refused), (2, 1, 0), "{stats:?}");
    assert_eq!(setup.proxy.connections(), 2);
}

#[test]
fn a_paused_server_exceeds_the_deadline() {
    let server = RedisServer::start();
    let (store, limit) = (store_with_short_deadline(&server.url()), large_limit());
    let _ = block_on(recover(&store, &limit, "ann"));
    server.pause();
    for _ in 0..6 {
        let error = block_on(check(&store, &limit, "ann")).unwrap_err();
        assert_eq!(error, StoreError::Deadline(DEADLINE));
    }
    server.resume();
    let _ = block_on(recover(&store, &limit, "ann"));
}

#[test]
fn a_short_stall_under_load_keeps_the_connection() {
    let setup = FaultySetup::start();
    setup.proxy.set(Fault::BlackHole);
    let calls = (0..50).map(|_| {
        let (store, limit) = (setup.store.clone(), setup.limit.clone());
        async move { check(&store, &limit, "ann").await.unwrap_err() }
    });
    block_on(async {
        let calls: Vec<_> = calls.map(tokio::spawn).collect();
        for call in calls {
            assert_eq!(call.await.unwrap(), StoreError::Deadline(DEADLINE));
        }
    });
    assert_eq!(setup.store.connection_stats().lost, 0);
}

#[test]
fn a_connection_error_found_after_the_deadline_is_still_reported() {
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    let proxy = FaultProxy::start(server.port());
    proxy.set(Fault::Delay(3 * DEADLINE));
    let store = store_with_short_deadline(&format!("redis://:wrong@127.0.0.1:{}", proxy.port()));
    let reported = async {
        while !matches!(
            check(&store, &large_limit(), "ann").await.unwrap_err(),
            StoreError::Misconfigured(_)
        ) {}
    };
    block_on(within_limit(reported));
}

#[test]
fn a_store_outlives_the_runtime_that_connects_it() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let (store, limit) = (store_with_short_deadline(&proxy.url()), large_limit());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    proxy.set(Fault::BlackHole);
    assert!(runtime().block_on(check(&store, &limit, "ann")).is_err());
    proxy.set(Fault::None);
    let _ = runtime().block_on(recover(&store, &limit, "ann"));
    let _ = runtime().block_on(recover(&store, &limit, "ann"));
}

/// Tasks that check one key continuously, and the counts of their outcomes.
struct Load {
    is_done: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    denied: Arc<AtomicU64>,
    errors: Arc<std::sync::Mutex<Vec<StoreError>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(store: &RedisStore, limit: &Limit, key: &'static str) -> Load {
        let mut load = Load {
            is_done: Arc::default(),
            admitted: Arc::default(),
            denied: Arc::default(),
            errors: Arc::default(),
            tasks: Vec::new(),
        };
        load.tasks = block_on(async { (0..4).map(|_| load.task(store, limit, key)).collect() });
        load
    }

    fn task(&self, store: &RedisStore, limit: &Limit, key: &'static str) -> JoinHandle<()> {
        let (store, limit) = (store.clone(), limit.clone());
        let (admitted, denied) = (self.admitted.clone(), self.denied.clone());
        let (is_done, errors) = (self.is_done.clone(), self.errors.clone());
        tokio::spawn(async move {
            while !is_done.load(Ordering::Relaxed) {
                match check(&store, &limit, key).await {
                    Ok(verdict) if verdict.allowed() => admitted.fetch_add(1, Ordering::Relaxed),
                    Ok(_) => denied.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        errors.lock().unwrap().push(error);
                        0
                    }
                };
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }

    /// Waits until this many more requests are admitted.
    fn wait_for(&self, more: u64) {
        wait_for("requests are admitted", &self.admitted, more);
    }

    fn wait_for_denials(&self) {
        wait_for("the limit is reached", &self.denied, 20);
    }

    /// Ends the load, and returns the number of admitted requests and the errors.
    fn end(self) -> (u64, Vec<StoreError>) {
        self.is_done.store(true, Ordering::Relaxed);
        block_on(async {
            for task in self.tasks {
                task.await.unwrap();
            }
        });
        let errors = std::mem::take(&mut *self.errors.lock().unwrap());
        (self.admitted.load(Ordering::Relaxed), errors)
    }
}

fn wait_for(what: &str, count: &AtomicU64, more: u64) {
    let goal = count.load(Ordering::Relaxed) + more;
    ratekeeper_testkit::wait_until(what, || count.load(Ordering::Relaxed) >= goal);
}

#[test]
fn flushed_scripts_are_loaded_again_without_errors() {
    let server = RedisServer::start();
    let (store, limit) = (store_with_long_deadline(&server.url(), "ratekeeper"), large_limit());
    let load = Load::start(&store, &limit, "ann");
    for _ in 0..10 {
        load.wait_for(20);
        server.command(&["SCRIPT", "FLUSH"]);
    }
    load.wait_for(20);
    let (admitted, errors) = load.end();
    assert_eq!(errors, []);
    assert!(store.connection_stats().scripts_loaded >= 10, "{:?}", store.connection_stats());
    assert_eq!(block_on(used(&store, Charge::new(&limit, "ann"))), admitted);
}

#[test]
fn a_server_that_lost_its_data_starts_from_zero() {
    let server = RedisServer::start();
    let (store, limit) =
        (store_with_short_deadline(&server.url()), Limit::sliding_log("5/day").unwrap());
    block_on(async {
        for _ in 0..5 {
            assert!(recover(&store, &limit, "ann").await.allowed());
        }
        assert!(!check(&store, &limit, "ann").await.unwrap().allowed());
    });
    server.restart();
    assert!(block_on(recover(&store, &limit, "ann")).allowed());
    for left in [3, 2, 1, 0] {
        assert_eq!(block_on(check(&store, &limit, "ann")).unwrap().remaining(), left);
    }
    assert!(!block_on(check(&store, &limit, "ann")).unwrap().allowed());
    assert_eq!(store.connection_stats().connected, 2);
}

#[test]
fn a_server_out_of_memory_is_an_error_until_memory_is_freed() {
    let full = ["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"];
    let server = RedisServer::start_with(&full);
    let (store, limit) =
        (store_with_short_deadline(&server.url()), Limit::token_bucket("1/day").unwrap());
    assert!(block_on(recover(&store, &limit, "ann")).allowed());
    let big = "x".repeat(100_000);
    let is_full = |i: u32| server.command(&["SET", &format!("big{i}"), &big]).contains("OOM");
    assert!((0..100).any(is_full));
    // The remaining memory is filled by limiter states.
    let fill = async |i: u32| check(&store, &limit, &format!("bob{i}")).await.err();
    let error = (0..100_000).find_map(|i| block_on(fill(i))).expect("it is out of memory");
    assert!(
        matches!(&error, StoreError::Refused(why) if why.message().contains("OOM")),
        "{error:?}"
    );
    assert!(!block_on(check(&store, &limit, "ann")).unwrap().allowed(), "a denial needs no memory");
    server.command(&["FLUSHALL"]);
    assert!(block_on(check(&store, &limit, "bob")).unwrap().allowed());
    assert_eq!(store.connection_stats().lost, 0, "the connection stays open");
}

#[test]
fn a_read_only_replica_is_an_error_until_it_is_promoted() {
    let master = RedisServer::start();
    let of = ["--replicaof", "127.0.0.1", &master.port().to_string()];
    let replica = RedisServer::start_with(&of);
    let (store, limit) = (store_with_short_deadline(&replica.url()), large_limit());
    let refusal = async {
        loop {
            match check(&store, &limit, "ann").await.unwrap_err() {
                StoreError::Refused(why) if why.message().contains("read only replica") => return,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    block_on(within_limit(refusal));
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let _ = block_on(recover(&store, &limit, "ann"));
}

/// A quota large enough that some of it remains after a failover under load.
const DAILY: u64 = 3_000;

fn daily() -> Limit {
    Limit::token_bucket("3000/day").unwrap()
}

/// Asserts that at most the limit was admitted on the old master, and at most the limit on the new one,
/// to which the last charges may not have been replicated.
fn assert_bounded(admitted: u64, errors: &[StoreError]) {
    println!("admitted {admitted} of {DAILY} with {} errors", errors.len());
    assert!(admitted <= 2 * DAILY, "{admitted}");
    let is_transient = |error: &StoreError| !error.is_permanent();
    assert!(errors.iter().all(is_transient), "{errors:?}");
}

#[test]
fn the_store_follows_a_sentinel_failover_under_load() {
    let sentinel = RedisSentinel::start();
    sentinel.servers().iter().for_each(|server| make_user(server, &[ACL, ACL_SENTINEL]));
    let (store, limit) = (store_with_short_deadline(&as_user(&sentinel.url())), daily());
    let _ = block_on(recover(&store, &limit, "ann"));
    let load = Load::start(&store, &limit, "ann");
    load.wait_for(100);
    sentinel.kill_master();
    load.wait_for(100);
    load.wait_for_denials();
    let (admitted, errors) = load.end();
    assert_bounded(admitted, &errors);
    let stats = store.connection_stats();
    assert!(stats.connected >= 2 && stats.lost >= 1, "{stats:?}");
}

fn slot_of(cluster: &RedisCluster, key: &str) -> u16 {
    cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", &format!("{{={key}}}")]).parse().unwrap()
}

/// Starts a cluster whose nodes keep serving when another one is down.
fn independent_nodes() -> RedisCluster {
    let cluster = RedisCluster::start();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    cluster
}

/// Returns the node of this key, and a key of another node.
fn two_shards(cluster: &RedisCluster, key: &str) -> (usize, &'static str) {
    let home = |key: &str| cluster.master_of_slot(slot_of(cluster, key));
    let node = home(key);
    let keys = ["bob", "carl", "dora", "emil", "frida"];
    (node, keys.into_iter().find(|key| home(key) != node).expect("a key on another node"))
}

#[test]
fn the_store_follows_a_cluster_failover_while_other_shards_keep_serving() {
    let cluster = independent_nodes();
    let (store, limit) = (store_with_short_deadline(&cluster.url()), daily());
    let (killed, other) = two_shards(&cluster, "ann");
    let _ = block_on(recover(&store, &limit, "ann"));
    let load = Load::start(&store, &limit, "ann");
    let others = Load::start(&store, &large_limit(), other);
    load.wait_for(100);
    cluster.kill_node(killed);
    let before = others.admitted.load(Ordering::Relaxed);
    load.wait_for(100);
    let meanwhile = others.admitted.load(Ordering::Relaxed) - before;
    load.wait_for_denials();
    let (admitted, errors) = load.end();
    let (_, others_errors) = others.end();
    println!("others: {meanwhile} admitted meanwhile, {} errors", others_errors.len());
    assert_bounded(admitted, &errors);
    assert!(meanwhile > 0 && others_errors.is_empty(), "{meanwhile} {others_errors:?}");
}

#[test]
fn the_store_follows_the_failover_of_a_paused_node_while_other_shards_keep_serving() {
    let cluster = independent_nodes();
    let (store, limit) = (store_with_short_deadline(&cluster.url()), large_limit());
    let (paused, other) = two_shards(&cluster, "ann");
    let _ = block_on(recover(&store, &limit, "ann"));
    let _ = block_on(recover(&store, &limit, other));
    let others = Load::start(&store, &limit, other);
    cluster.nodes()[paused].pause();
    let _ = block_on(recover(&store, &limit, "ann"));
    others.wait_for(100);
    let (admitted, errors) = others.end();
    println!(
        "others: {admitted} admitted, {} errors; {:?}",
        errors.len(),
        store.connection_stats()
    );
    assert_eq!(errors, [], "a paused shard does not delay the others");
    assert!(store.connection_stats().lost >= 1, "{:?}", store.connection_stats());
}

#[test]
fn a_slot_that_moves_under_load_loses_no_charge() {
    let cluster = RedisCluster::start();
    let (store, limit) = (store_with_long_deadline(&cluster.url(), "ratekeeper"), daily());
    let slot = slot_of(&cluster, "ann");
    let _ = block_on(recover(&store, &limit, "ann"));
    let load = Load::start(&store, &limit, "ann");
    load.wait_for(100);
    for _ in 0..3 {
        let to = (cluster.master_of_slot(slot) + 1) % 3;
        cluster.begin_move_slot(slot, to);
        load.wait_for(100);
        cluster.finish_move_slot(slot, to);
        load.wait_for(100);
    }
    load.wait_for_denials();
    let (admitted, errors) = load.end();
    assert_eq!(errors, []);
    assert_eq!(admitted, DAILY - 1, "one was admitted before");
}

#[test]
fn the_deadline_covers_all_steps_of_a_decision() {
    let FaultySetup { proxy, store, _server, .. } = FaultySetup::start();
    let log = Limit::sliding_log("1000/day").unwrap();
    block_on(async {
        let admitted = check(&store, &log, "ann").await.unwrap();
        let refund = Op::Refund { charged_at: admitted.at() };
        let charges = [Charge::new(&log, "ann")];
        assert!(store.apply(refund, &charges, NO_TIME).await.is_ok(), "the scripts are loaded");
        // Each step ends within the deadline, but a refund of a log takes two steps.
        proxy.set(Fault::Delay(DEADLINE * 3 / 5));
        assert!(check(&store, &log, "ann").await.is_ok(), "one step is in time");
        let late = store.apply(refund, &charges, NO_TIME).await;
        assert_eq!(late.unwrap_err(), StoreError::Deadline(DEADLINE));
    });
}

/// A debt of a log is read, computed and swapped. The reply to the swap is the one that says so.
#[test]
fn a_late_reply_to_a_swap_says_that_it_was_charged() {
    let FaultySetup { proxy, _server, .. } = FaultySetup::start();
    // Long, so that the first step is in time on a busy machine too.
    let deadline = CALL_LIMIT;
    let store = RedisConfig::new(&proxy.url()).with_deadline(deadline).open().unwrap();
    let log = Limit::sliding_log("1000/day").unwrap();
    block_on(async {
        let charges = [Charge::new(&log, "ann").cost(Cost::of(10))];
        assert!(store.apply(Op::Charge, &charges, NO_TIME).await.is_ok(), "the scripts are loaded");
        proxy.set(Fault::Delay(deadline * 3 / 5));
        let failure = store.try_apply(Op::Charge, &charges, NO_TIME).await.unwrap_err();
        assert_eq!(failure.error, StoreError::Deadline(deadline));
        let charged_at = within_limit(failure.late.expect("a reply to wait for")).await;
        proxy.set(Fault::None);
        let left = recover(&store, &log, "ann").await.remaining();
        assert_eq!((charged_at.is_some(), left), (true, 979), "charged twice, as said, and 1");
    });
}
