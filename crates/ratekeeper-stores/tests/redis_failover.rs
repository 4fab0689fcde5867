//! Masters that are replaced while they are paused, or while they are in use. Charges on a replaced
//! master are lost, so no node may use it any longer.

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
/// Requests that each node has to admit before a failover, and after it.
const SOME: u64 = 50;
const KEY: &str = "ann";

fn quota() -> Limit {
    Limit::fixed_window("1000000/day").unwrap()
}

/// A node that sends checks continuously, and counts admitted requests.
struct Node {
    store: RedisStore,
    admitted: Arc<AtomicU64>,
    /// Locked during a check; locking it pauses the node.
    pause: Arc<Mutex<()>>,
    load: tokio::task::AbortHandle,
}

impl Node {
    fn start(url: &str) -> Node {
        let store = RedisConfig::new(url).with_deadline(Duration::from_millis(50)).open().unwrap();
        let (admitted, pause) = (Arc::<AtomicU64>::default(), Arc::<Mutex<()>>::default());
        let checks = check_continuously(store.clone(), admitted.clone(), pause.clone());
        let load = block_on(async { tokio::spawn(checks).abort_handle() });
        Node { store, admitted, pause, load }
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::SeqCst)
    }

    /// Waits until this many more requests are admitted.
    fn wait_for(&self, more: u64) {
        let before = self.admitted();
        wait_until("a node admits requests", || self.admitted() >= before + more);
    }
}

async fn check_continuously(store: RedisStore, admitted: Arc<AtomicU64>, pause: Arc<Mutex<()>>) {
    let limit = quota();
    loop {
        let guard = pause.lock().await;
        let checked = check(&store, Charge::new(&limit, KEY)).await;
        let is_admitted = checked.is_ok_and(|verdict| verdict.allowed());
        admitted.fetch_add(u64::from(is_admitted), Ordering::SeqCst);
        drop(guard);
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

/// Asserts that every admitted request is counted on the current masters. A request that was admitted by
/// a replaced master would be missing.
fn assert_no_charge_is_lost(url: &str, nodes: &[Node]) {
    let admitted: u64 = nodes.iter().map(Node::admitted).sum();
    let store = redis_support::store_with_long_deadline(url, "ratekeeper");
    let counted = block_on(used(&store, Charge::new(&quota(), KEY)));
    println!("{admitted} admitted, {counted} counted");
    assert!(admitted <= counted, "{admitted} admitted, {counted} counted");
}

/// Denies the commands that make the server a replica, so that it stays a master after a failover.
fn deny_demotion(server: &RedisServer) {
    server.command(&["ACL", "SETUSER", "default", "-replicaof", "-slaveof"]);
}

fn master_of(sentinel: &RedisSentinel) -> &RedisServer {
    let port = sentinel.master_port();
    sentinel.servers().iter().find(|server| server.port() == port).unwrap()
}

/// Pauses a server while no check is in flight and the replicas are in sync.
fn stop_when_replicated(nodes: &[Node], replicated: impl Fn(), server: &RedisServer) {
    let guards: Vec<_> = nodes.iter().map(|node| block_on(node.pause.lock())).collect();
    replicated();
    server.pause();
    drop(guards);
}

#[test]
fn a_paused_master_that_resumes_after_a_failover_is_not_used() {
    let sentinel = RedisSentinel::start();
    let old = master_of(&sentinel);
    deny_demotion(old);
    let nodes = start_nodes(&sentinel.url());
    let idle = RedisConfig::new(&sentinel.url()).open().unwrap();
    wait_until("the idle node is connected", || block_on(idle.ping()).is_ok());
    stop_when_replicated(&nodes, || sentinel.wait_until_replicated(), old);
    wait_until("a replica is promoted", || sentinel.master_port() != old.port());
    // Pending connections to it are established now.
    old.resume();
    nodes.iter().for_each(|node| node.wait_for(SOME));
    wait_until("the idle node is connected again", || block_on(idle.ping()).is_ok());
    assert!(idle.connection_stats().connected > 1, "{:?}", idle.connection_stats());
    assert!(old.command(&["ROLE"]).starts_with("master"), "it has not been reconfigured");
    assert_no_charge_is_lost(&sentinel.url(), &nodes);
}

#[test]
fn a_late_reply_of_a_replaced_master_is_rejected() {
    let sentinel = RedisSentinel::start();
    let old = master_of(&sentinel);
    deny_demotion(old);
    let store = redis_support::store_with_long_deadline(&sentinel.url(), "ratekeeper");
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
    // The old master admits the request, but its count is lost.
    let error = late.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("no longer the master"), "{error}");
    assert!(!error.is_permanent());
    assert!(block_on(check(&store, Charge::new(&quota(), KEY))).is_ok());
}

#[test]
fn a_connection_to_a_replaced_master_is_closed() {
    let sentinel = RedisSentinel::start();
    let old = master_of(&sentinel);
    deny_demotion(old);
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
    assert!(!calls(), "no node uses it any more");
}

#[test]
fn a_paused_cluster_node_that_resumes_after_a_failover_is_not_used() {
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
    assert_no_charge_is_lost(&cluster.url(), &nodes);
}
