//! A Redis Cluster of three masters and three replicas.

use std::process::Command;
use std::thread;

use crate::process::output;
use crate::programs;
use crate::redis::{RedisServer, wait_until_replicated};
use crate::resp::Reply;
use crate::wait::wait_until;

const NODES: usize = 6;
const OPTIONS: [&str; 6] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1500",
    "--repl-diskless-sync-delay",
    "0",
];

/// A cluster that serves all slots, each by a master with a replica.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts six servers and forms a cluster.
    pub fn start() -> RedisCluster {
        let nodes = thread::scope(|scope| {
            let start = || RedisServer::start_with(&OPTIONS);
            let starting: Vec<_> = (0..NODES).map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|node| node.join().expect("a node starts")).collect()
        });
        let cluster = RedisCluster { nodes };
        cluster.create();
        cluster.wait_until_whole();
        cluster
    }

    fn create(&self) {
        let mut cli = Command::new(programs::redis_cli());
        cli.args(["--cluster", "create"]).args(self.hosts());
        cli.args(["--cluster-replicas", "1", "--cluster-yes"]);
        output(&mut cli).unwrap_or_else(|error| panic!("cannot create the cluster: {error}"));
    }

    /// Waits until all nodes that run report a healthy cluster and are connected to their masters.
    pub fn wait_until_whole(&self) {
        wait_until("the cluster serves all slots", || {
            self.up().all(|node| node.poll(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        });
        wait_until("the replicas are connected to their masters", || self.up().all(is_connected));
    }

    /// Waits until the replicas have the data that their masters have now. The last writes of a master
    /// that is killed before are lost.
    pub fn wait_until_replicated(&self) {
        wait_until_replicated(&self.nodes);
    }

    fn up(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.is_up())
    }

    fn hosts(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect()
    }

    /// Returns `redis+cluster://` and the addresses of all nodes.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", self.hosts().join(","))
    }

    /// Returns all nodes. Initially, the first three are masters.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the index of the node that serves `slot`. Waits while there is none, as after
    /// [`kill_node`](Self::kill_node).
    pub fn master_of_slot(&self, slot: u16) -> usize {
        let mut master = None;
        wait_until("a master serves the slot", || {
            let claims = self.nodes.iter().enumerate().filter(|(_, node)| node.is_up());
            let claims = claims.filter_map(|(index, node)| Some((claim(node, slot)?, index)));
            master = claims.max().map(|(_, index)| index);
            master.is_some()
        });
        master.expect("waited for")
    }

    /// Kills a node. If it was a master, its replica takes over after a while.
    pub fn kill_node(&self, index: usize) {
        self.nodes[index].kill();
    }

    /// Moves a slot with its keys to another master.
    pub fn move_slot(&self, slot: u16, to: usize) {
        self.begin_move_slot(slot, to);
        self.finish_move_slot(slot, to);
    }

    /// Begins to move a slot: its master redirects keys that it does not have with ASK, and the other one
    /// accepts them after ASKING.
    pub fn begin_move_slot(&self, slot: u16, to: usize) {
        let from = self.master_of_slot(slot);
        assert_ne!(from, to, "slot {slot} is there already");
        self.set_slot(to, slot, "IMPORTING", &self.id(from));
        self.set_slot(from, slot, "MIGRATING", &self.id(to));
    }

    /// Moves the keys of the slot, and announces the new master to all masters.
    pub fn finish_move_slot(&self, slot: u16, to: usize) {
        let from = self.master_of_slot(slot);
        while self.move_some_keys(slot, from, to) {}
        let id = self.id(to);
        self.set_slot(to, slot, "NODE", &id);
        self.set_slot(from, slot, "NODE", &id);
        for other in (0..NODES).filter(|&other| other != to && other != from) {
            if self.is_master(other) {
                self.set_slot(other, slot, "NODE", &id);
            }
        }
    }

    fn move_some_keys(&self, slot: u16, from: usize, to: usize) -> bool {
        let slot = slot.to_string();
        let keys = self.call(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).into_items();
        let port = self.nodes[to].port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let mut args: Vec<Vec<u8>> = migrate.iter().map(|arg| arg.as_bytes().to_vec()).collect();
        args.extend(keys.into_iter().filter_map(Reply::into_data));
        if args.len() == migrate.len() {
            return false;
        }
        self.call(from, &args);
        true
    }

    fn set_slot(&self, node: usize, slot: u16, state: &str, id: &str) {
        self.call(node, &["CLUSTER", "SETSLOT", &slot.to_string(), state, id]);
    }

    fn id(&self, node: usize) -> String {
        self.call(node, &["CLUSTER", "MYID"]).text()
    }

    fn is_master(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.is_up() && node.replication("role").is_some_and(|role| role == "master")
    }

    fn call(&self, node: usize, args: &[impl AsRef<[u8]>]) -> Reply {
        self.nodes[node].call(args).unwrap_or_else(|error| panic!("node {node}: {error}"))
    }
}

/// Returns whether a node is a master, or a replica that is connected to its master.
fn is_connected(node: &RedisServer) -> bool {
    let info = node.poll(&["INFO", "replication"]);
    info.contains("role:master") || info.contains("master_link_status:up")
}

/// Returns the epoch of a node's claim to serve `slot`, if it has one.
fn claim(node: &RedisServer, slot: u16) -> Option<u64> {
    let nodes = node.poll(&["CLUSTER", "NODES"]);
    let myself = nodes.lines().find(|line| line.contains("myself"))?;
    let fields: Vec<_> = myself.split_whitespace().collect();
    let serves = fields.iter().skip(8).any(|slots| contains(slots, slot));
    if serves { fields.get(6)?.parse().ok() } else { None }
}

/// Returns whether `5` or `0-5460` contains `slot`. `[5->-…]`, a slot that is moved, contains none.
fn contains(slots: &str, slot: u16) -> bool {
    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
    let range = first.parse().ok().zip(last.parse().ok());
    range.is_some_and(|(first, last): (u16, u16)| (first..=last).contains(&slot))
}
