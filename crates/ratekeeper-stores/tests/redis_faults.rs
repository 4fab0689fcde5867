//! The Redis store when the network or the servers fail: every call ends in time with an error that
//! says what is wrong, nothing panics, and when the fault is gone all is well by itself.

mod redis_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_core::Limit;
use ratekeeper_stores::redis::ConnectionStats;
use ratekeeper_stores::{Charge, Op, RedisConfig, RedisStore, Store, StoreError, Verdict};
use ratekeeper_testkit::{Fault, FaultProxy, RedisCluster, RedisSentinel, RedisServer, TIMEOUT};
use redis_support::{ACL, ACL_SENTINEL, NO_TIME, as_user, block_on, make_user, patient, used};
use tokio::task::JoinHandle;

/// How long any call may take, whatever happens. The deadlines here are far below.
const CALL_LIMIT: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_millis(200);

fn hasty(url: &str) -> RedisStore {
    RedisConfig::new(url).with_deadline(DEADLINE).open().unwrap()
}

fn roomy() -> Limit {
    Limit::sliding_counter("1000000/day").unwrap()
}

/// One check, which ends whatever happens.
async fn check(store: &RedisStore, limit: &Limit, key: &str) -> Result<Verdict, StoreError> {
    let charge = [Charge::new(limit, key)];
    let call = store.apply(Op::Check, &charge, NO_TIME);
    tokio::time::timeout(CALL_LIMIT, call).await.expect("a call ends in time")
}

/// Checks until one succeeds: nothing else is done to recover.
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
    tokio::time::timeout(TIMEOUT, future).await.expect("what should happen happens")
}

/// A server behind a network that fails, and a store that has been there before.
struct Shaky {
    proxy: FaultProxy,
    store: RedisStore,
    limit: Limit,
    _server: RedisServer,
}

impl Shaky {
    fn start() -> Shaky {
        let server = RedisServer::start();
        let proxy = FaultProxy::start(server.port());
        let (store, limit) = (hasty(&proxy.url()), roomy());
        let _ = block_on(recover(&store, &limit, "ann"));
        Shaky { proxy, store, limit, _server: server }
    }

    /// What goes wrong under a fault, several times over.
    fn errors(&self, fault: Fault) -> Vec<StoreError> {
        self.proxy.set(fault);
        let check = |_| block_on(check(&self.store, &self.limit, "ann")).unwrap_err();
        (0..5).map(check).collect()
    }

    fn recovers(&self) -> ConnectionStats {
        let _ = block_on(recover(&self.store, &self.limit, "ann"));
        for _ in 0..20 {
            let _ = block_on(check(&self.store, &self.limit, "ann")).expect("it is well again");
        }
        self.store.connection_stats()
    }
}

#[test]
fn a_network_that_is_too_slow_is_a_missed_deadline() {
    let shaky = Shaky::start();
    for error in shaky.errors(Fault::Delay(4 * DEADLINE)) {
        assert_eq!(error, StoreError::Deadline(DEADLINE));
    }
    shaky.proxy.set(Fault::None);
    shaky.recovers();
}

#[test]
fn a_cut_connection_is_told_and_made_anew() {
    let shaky = Shaky::start();
    for error in shaky.errors(Fault::Cut) {
        assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    }
    shaky.proxy.set(Fault::None);
    let stats = shaky.recovers();
    assert_eq!((stats.connected, stats.lost), (2, 1), "{stats:?}");
    assert!(stats.refused >= 3, "{stats:?}");
}

#[test]
fn a_black_hole_is_a_missed_deadline_and_the_connection_given_up() {
    let shaky = Shaky::start();
    for error in shaky.errors(Fault::BlackHole) {
        assert_eq!(error, StoreError::Deadline(DEADLINE));
    }
    shaky.proxy.set(Fault::None);
    let stats = shaky.recovers();
    assert_eq!((stats.connected, stats.lost), (2, 1), "{stats:?}");
}

#[test]
fn garbage_is_an_error_and_the_connection_given_up() {
    let shaky = Shaky::start();
    for error in shaky.errors(Fault::Garbage) {
        assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    }
    shaky.proxy.set(Fault::None);
    let stats = shaky.recovers();
    assert_eq!((stats.connected, stats.lost), (2, 1), "{stats:?}");
}

#[test]
fn a_connection_that_is_only_half_there_is_replaced() {
    let shaky = Shaky::start();
    shaky.proxy.set(Fault::HalfOpen);
    let stats = shaky.recovers();
    assert_eq!((stats.connected, stats.lost, stats.refused), (2, 1, 0), "{stats:?}");
    assert_eq!(shaky.proxy.connections(), 2);
}

#[test]
fn a_server_that_hangs_is_a_missed_deadline() {
    let server = RedisServer::start();
    let (store, limit) = (hasty(&server.url()), roomy());
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
fn a_moments_silence_under_load_does_not_cost_the_connection() {
    let shaky = Shaky::start();
    shaky.proxy.set(Fault::BlackHole);
    let calls = (0..50).map(|_| {
        let (store, limit) = (shaky.store.clone(), shaky.limit.clone());
        async move { check(&store, &limit, "ann").await.unwrap_err() }
    });
    block_on(async {
        let calls: Vec<_> = calls.map(tokio::spawn).collect();
        for call in calls {
            assert_eq!(call.await.unwrap(), StoreError::Deadline(DEADLINE));
        }
    });
    assert_eq!(shaky.store.connection_stats().lost, 0);
}

#[test]
fn what_is_wrong_is_told_even_if_it_takes_longer_than_the_deadline_to_find_out() {
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    let proxy = FaultProxy::start(server.port());
    proxy.set(Fault::Delay(3 * DEADLINE));
    let store = hasty(&format!("redis://:wrong@127.0.0.1:{}", proxy.port()));
    let told = async {
        while !matches!(
            check(&store, &roomy(), "ann").await.unwrap_err(),
            StoreError::Misconfigured(_)
        ) {}
    };
    block_on(within_limit(told));
}

#[test]
fn a_store_outlives_the_runtime_that_was_connecting_it() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let (store, limit) = (hasty(&proxy.url()), roomy());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    proxy.set(Fault::BlackHole);
    assert!(runtime().block_on(check(&store, &limit, "ann")).is_err());
    proxy.set(Fault::None);
    let _ = runtime().block_on(recover(&store, &limit, "ann"));
    let _ = runtime().block_on(recover(&store, &limit, "ann"));
}

/// Tasks that check one key as fast as they can, and what becomes of it.
struct Load {
    is_over: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    denied: Arc<AtomicU64>,
    errors: Arc<std::sync::Mutex<Vec<StoreError>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(store: &RedisStore, limit: &Limit, key: &'static str) -> Load {
        let mut load = Load {
            is_over: Arc::default(),
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
        let (is_over, errors) = (self.is_over.clone(), self.errors.clone());
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
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

    /// Waits until so many more requests were let through.
    fn wait_for(&self, more: u64) {
        wait_for("requests are let through", &self.admitted, more);
    }

    fn wait_for_denials(&self) {
        wait_for("the limit is reached", &self.denied, 20);
    }

    /// How many requests were let through, and what went wrong.
    fn end(self) -> (u64, Vec<StoreError>) {
        self.is_over.store(true, Ordering::Relaxed);
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
fn forgotten_scripts_are_sent_again_and_nobody_notices() {
    let server = RedisServer::start();
    let (store, limit) = (patient(&server.url(), "ratekeeper"), roomy());
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
fn a_server_that_lost_its_data_counts_anew() {
    let server = RedisServer::start();
    let (store, limit) = (hasty(&server.url()), Limit::sliding_log("5/day").unwrap());
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
fn a_full_server_refuses_until_there_is_room() {
    let full = ["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"];
    let server = RedisServer::start_with(&full);
    let (store, limit) = (hasty(&server.url()), Limit::token_bucket("1/day").unwrap());
    assert!(block_on(recover(&store, &limit, "ann")).allowed());
    let big = "x".repeat(100_000);
    let is_full = |i: u32| server.command(&["SET", &format!("big{i}"), &big]).contains("OOM");
    assert!((0..100).any(is_full));
    // What is left is filled by the states themselves.
    let fill = async |i: u32| check(&store, &limit, &format!("bob{i}")).await.err();
    let error = (0..100_000).find_map(|i| block_on(fill(i))).expect("it is full");
    assert!(matches!(&error, StoreError::Refused(why) if why.contains("OOM")), "{error:?}");
    assert!(!block_on(check(&store, &limit, "ann")).unwrap().allowed(), "a denial needs no room");
    server.command(&["FLUSHALL"]);
    assert!(block_on(check(&store, &limit, "bob")).unwrap().allowed());
    assert_eq!(store.connection_stats().lost, 0, "the connection is not at fault");
}

#[test]
fn a_replica_refuses_until_it_is_promoted() {
    let master = RedisServer::start();
    let of = ["--replicaof", "127.0.0.1", &master.port().to_string()];
    let replica = RedisServer::start_with(&of);
    let (store, limit) = (hasty(&replica.url()), roomy());
    let refusal = async {
        loop {
            match check(&store, &limit, "ann").await.unwrap_err() {
                StoreError::Refused(why) if why.contains("read only replica") => return,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    block_on(within_limit(refusal));
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let _ = block_on(recover(&store, &limit, "ann"));
}

/// A limit of which a few hundred requests a second leave something for after a failover.
const DAILY: u64 = 3_000;

fn daily() -> Limit {
    Limit::token_bucket("3000/day").unwrap()
}

/// At most the limit on the old master, and at most the limit on the new one, which may have missed
/// the last charges.
fn assert_bounded(admitted: u64, errors: &[StoreError]) {
    println!("admitted {admitted} of {DAILY} with {} errors on the way", errors.len());
    assert!(admitted <= 2 * DAILY, "{admitted}");
    let is_passing = |error: &StoreError| !error.is_permanent();
    assert!(errors.iter().all(is_passing), "{errors:?}");
}

#[test]
fn a_master_that_dies_under_load_is_followed_to_the_next_one() {
    let sentinel = RedisSentinel::start();
    sentinel.servers().iter().for_each(|server| make_user(server, &[ACL, ACL_SENTINEL]));
    let (store, limit) = (hasty(&as_user(&sentinel.url())), daily());
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

/// A cluster whose nodes go on when another is gone.
fn independent_nodes() -> RedisCluster {
    let cluster = RedisCluster::start();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    cluster
}

/// The node where a key lives, and a key that lives elsewhere.
fn two_shards(cluster: &RedisCluster, key: &str) -> (usize, &'static str) {
    let home = |key: &str| cluster.master_of_slot(slot_of(cluster, key));
    let node = home(key);
    let people = ["bob", "carl", "dora", "emil", "frida"];
    (node, people.into_iter().find(|key| home(key) != node).expect("somebody lives elsewhere"))
}

#[test]
fn a_node_that_dies_under_load_is_followed_to_its_replica_while_the_others_go_on() {
    let cluster = independent_nodes();
    let (store, limit) = (hasty(&cluster.url()), daily());
    let (doomed, other) = two_shards(&cluster, "ann");
    let _ = block_on(recover(&store, &limit, "ann"));
    let load = Load::start(&store, &limit, "ann");
    let others = Load::start(&store, &roomy(), other);
    load.wait_for(100);
    cluster.kill_node(doomed);
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
fn a_node_that_hangs_is_followed_to_its_replica_while_the_others_go_on() {
    let cluster = independent_nodes();
    let (store, limit) = (hasty(&cluster.url()), roomy());
    let (hung, other) = two_shards(&cluster, "ann");
    let _ = block_on(recover(&store, &limit, "ann"));
    let _ = block_on(recover(&store, &limit, other));
    let others = Load::start(&store, &limit, other);
    cluster.nodes()[hung].pause();
    let _ = block_on(recover(&store, &limit, "ann"));
    others.wait_for(100);
    let (admitted, errors) = others.end();
    println!(
        "others: {admitted} admitted, {} errors; {:?}",
        errors.len(),
        store.connection_stats()
    );
    assert_eq!(errors, [], "a shard that hangs holds up no other");
    assert!(store.connection_stats().lost >= 1, "{:?}", store.connection_stats());
}

#[test]
fn a_slot_that_moves_under_load_loses_no_charge() {
    let cluster = RedisCluster::start();
    let (store, limit) = (patient(&cluster.url(), "ratekeeper"), daily());
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
    assert_eq!(admitted, DAILY - 1, "one was let through before");
}

#[test]
fn the_deadline_is_for_the_whole_decision_and_not_for_each_of_its_steps() {
    let Shaky { proxy, store, _server, .. } = Shaky::start();
    let log = Limit::sliding_log("1000/day").unwrap();
    block_on(async {
        let admitted = check(&store, &log, "ann").await.unwrap();
        let refund = Op::Refund { charged_at: admitted.at() };
        let charges = [Charge::new(&log, "ann")];
        assert!(store.apply(refund, &charges, NO_TIME).await.is_ok(), "the scripts are known");
        // Each step answers within the deadline, but a refund of a log takes two of them.
        proxy.set(Fault::Delay(DEADLINE * 3 / 5));
        assert!(check(&store, &log, "ann").await.is_ok(), "one step is in time");
        let late = store.apply(refund, &charges, NO_TIME).await;
        assert_eq!(late.unwrap_err(), StoreError::Deadline(DEADLINE));
    });
}
