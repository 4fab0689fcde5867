//! Masters that are superseded while they are stopped, or while they are in use: what they go on counting
//! is lost, so nobody may go on asking them.

mod redis_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_core::Limit;
use ratekeeper_stores::{Charge, RedisConfig, RedisStore};
use ratekeeper_testkit::{RedisCluster, RedisSentinel, RedisServer, wait_until};
use redis_support::{block_on, check, used};
use tokio::sync::Mutex;

const NODES: usize = 3;
/// Checks that each node has to get through before a failover, and after it.
const SOME: u64 = 50;
const KEY: &str = "ann";

fn quota() -> Limit {
    Limit::fixed_window("1000000/day").unwrap()
}

/// A node that checks all the time, and counts what was admitted.
struct Node {
    store: RedisStore,
    admitted: Arc<AtomicU64>,
    /// Held during a check: whoever holds it stops the node.
    turn: Arc<Mutex<()>>,
    load: tokio::task::AbortHandle,
}

impl Node {
    fn start(url: &str) -> Node {
        let store = RedisConfig::new(url).with_deadline(Duration::from_millis(50)).open().unwrap();
        let (admitted, turn) = (Arc::<AtomicU64>::default(), Arc::<Mutex<()>>::default());
        let checks = check_all_the_time(store.clone(), admitted.clone(), turn.clone());
        let load = block_on(async { tokio::spawn(checks).abort_handle() });
        Node { store, admitted, turn, load }
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::SeqCst)
    }

    /// Waits for so many more that are admitted.
    fn wait_for(&self, more: u64) {
        let before = self.admitted();
        wait_until("a node goes on", || self.admitted() >= before + more);
    }
}

async fn check_all_the_time(store: RedisStore, admitted: Arc<AtomicU64>, turn: Arc<Mutex<()>>) {
    let limit = quota();
    loop {
        let turn = turn.lock().await;
        let checked = check(&store, Charge::new(&limit, KEY)).await;
        let is_admitted = checked.is_ok_and(|verdict| verdict.allowed());
        admitted.fetch_add(u64::from(is_admitted), Ordering::SeqCst);
        drop(turn);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.load.abort();
    }
}

fn start_nodes(url: &str) -> Vec<Node> {
    let nodes: Vec<_> = (0..NODES).map(|_| Node::start(url)).collect();
    nodes.iter().for_each(|node| node.wait_for(SOME));
    nodes
}

/// All that was admitted is known to the servers that decide now. One that was admitted by a superseded
/// master is missing.
fn assert_none_is_lost(url: &str, nodes: &[Node]) {
    let admitted: u64 = nodes.iter().map(Node::admitted).sum();
    let store = redis_support::patient(url, "ratekeeper");
    let counted = block_on(used(&store, Charge::new(&quota(), KEY)));
    println!("{admitted} admitted, {counted} counted");
    assert!(admitted <= counted, "{admitted} admitted, {counted} counted");
}

/// Nobody may make a replica of it: it takes itself for a master for ever.
fn make_stubborn(server: &RedisServer) {
    server.command(&["ACL", "SETUSER", "default", "-replicaof", "-slaveof"]);
}

fn master_of(sentinel: &RedisSentinel) -> &RedisServer {
    let port = sentinel.master_port();
    sentinel.servers().iter().find(|server| server.port() == port).unwrap()
}

/// Stops a server while no check is under way and the replicas have all that was counted.
fn stop_when_replicated(nodes: &[Node], replicated: impl Fn(), server: &RedisServer) {
    let turns: Vec<_> = nodes.iter().map(|node| block_on(node.turn.lock())).collect();
    replicated();
    server.pause();
    drop(turns);
}

#[test]
fn a_stopped_master_that_comes_back_is_not_used() {
    let sentinel = RedisSentinel::start();
    let old = master_of(&sentinel);
    make_stubborn(old);
    let nodes = start_nodes(&sentinel.url());
    let idle = RedisConfig::new(&sentinel.url()).open().unwrap();
    wait_until("the idle node is connected", || block_on(idle.ping()).is_ok());
    stop_when_replicated(&nodes, || sentinel.wait_until_replicated(), old);
    wait_until("a replica is promoted", || sentinel.master_port() != old.port());
    // Connections to it that were begun meanwhile are completed now.
    old.resume();
    nodes.iter().for_each(|node| node.wait_for(SOME));
    wait_until("the idle node is connected again", || block_on(idle.ping()).is_ok());
    assert!(idle.connection_stats().connected > 1, "{:?}", idle.connection_stats());
    assert!(old.command(&["ROLE"]).starts_with("master"), "it has not been reconfigured");
    assert_none_is_lost(&sentinel.url(), &nodes);
}

#[test]
fn a_late_reply_of_a_superseded_master_is_not_believed() {
    let sentinel = RedisSentinel::start();
    let old = master_of(&sentinel);
    make_stubborn(old);
    let store = redis_support::patient(&sentinel.url(), "ratekeeper");
    let _ = block_on(check(&store, Charge::new(&quota(), KEY))).unwrap();
    old.pause();
    let (sending, sent) = std::sync::mpsc::channel();
    let late = {
        let store = store.clone();
        std::thread::spawn(move || {
            sending.send(()).unwrap();
            block_on(check(&store, Charge::new(&quota(), KEY)))
        })
    };
    sent.recv().unwrap();
    wait_until("a replica is promoted", || sentinel.master_port() != old.port());
    old.resume();
    // The old master admits it, and counts it where nobody looks.
    let error = late.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("no longer the master"), "{error}");
    assert!(!error.is_permanent());
    assert!(block_on(check(&store, Charge::new(&quota(), KEY))).is_ok());
}

#[test]
fn a_connection_to_a_superseded_master_is_dropped() {
    let sentinel = RedisSentinel::start();
    let old = master_of(&sentinel);
    make_stubborn(old);
    let nodes = start_nodes(&sentinel.url());
    let before: u64 = nodes.iter().map(|node| node.store.connection_stats().connected).sum();
    assert_eq!(before, NODES as u64);
    sentinel.sentinels()[0].command(&["SENTINEL", "FAILOVER", "ratekeeper"]);
    wait_until("all nodes have left the old master", || {
        nodes.iter().all(|node| node.store.connection_stats().connected > 1)
    });
    nodes.iter().for_each(|node| node.wait_for(SOME));
    assert!(old.command(&["ROLE"]).starts_with("master"), "it has not been reconfigured");
    let calls = || old.command(&["INFO", "commandstats"]).contains("cmdstat_evalsha");
    assert!(calls(), "it was used before");
    old.command(&["CONFIG", "RESETSTAT"]);
    nodes.iter().for_each(|node| node.wait_for(SOME));
    assert!(!calls(), "nobody uses it any more");
}

#[test]
fn a_stopped_cluster_node_that_comes_back_is_not_used() {
    let cluster = RedisCluster::start();
    let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", &format!("{{={KEY}}}")]);
    let slot = slot.parse().unwrap();
    let nodes = start_nodes(&cluster.url());
    let old = cluster.master_of_slot(slot);
    stop_when_replicated(&nodes, || cluster.wait_until_replicated(), &cluster.nodes()[old]);
    assert_ne!(cluster.master_of_slot(slot), old);
    cluster.nodes()[old].resume();
    nodes.iter().for_each(|node| node.wait_for(SOME));
    cluster.wait_until_whole();
    nodes.iter().for_each(|node| node.wait_for(SOME));
    assert_none_is_lost(&cluster.url(), &nodes);
}
