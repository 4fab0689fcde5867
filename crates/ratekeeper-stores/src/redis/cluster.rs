//! A cluster: one connection for each master, so that a failing shard does not block the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::connection::{CallFailure, Connection, ConnectionCounters, error_of};
use super::slots::{SLOTS, slot_of};
use super::url::NodeClients;
use crate::store::StoreError;

/// How long one node may take to return the topology. Then the next one is queried.
const TOPOLOGY_TIMEOUT: Duration = Duration::from_millis(500);
/// The least time between two queries of the topology.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// How often a call follows a slot that is being migrated: ASK, MOVED once it has arrived, and
/// TRYAGAIN while the keys of one call are on two nodes.
const REDIRECTS_MAX: u32 = 8;
/// How long to wait after the first TRYAGAIN; twice as long after each further one.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// A cluster of servers.
pub(super) struct Cluster {
    seeds: Vec<String>,
    clients: NodeClients,
    topology: watch::Sender<State>,
    connections: Mutex<HashMap<String, Arc<Connection>>>,
    is_refreshing: AtomicBool,
    /// Which node is queried first next time.
    next_candidate: AtomicUsize,
    counters: Arc<ConnectionCounters>,
}

#[derive(Clone)]
enum State {
    Unknown,
    Failed(StoreError),
    Known(Arc<Topology>),
}

/// Which master serves which slots.
struct Topology {
    /// For each slot, its shard and one more; 0 if none serves it.
    shard_of_slot: Box<[u16]>,
    /// In the order of their lowest slots.
    shards: Vec<Shard>,
}

#[derive(Clone)]
struct Shard {
    address: String,
    connection: Arc<Connection>,
}

impl Topology {
    fn shard_of(&self, slot: usize) -> Option<usize> {
        usize::from(self.shard_of_slot[slot]).checked_sub(1)
    }
}

impl Cluster {
    pub(super) fn new(
        seeds: Vec<String>,
        clients: NodeClients,
        counters: Arc<ConnectionCounters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            seeds,
            clients,
            topology: watch::Sender::new(State::Unknown),
            connections: Mutex::default(),
            is_refreshing: AtomicBool::new(false),
            next_candidate: AtomicUsize::new(0),
            counters,
        })
    }

    /// How many shards there are; 1 as long as that is not known.
    pub(super) fn shards(&self) -> usize {
        match &*self.topology.borrow() {
            State::Known(topology) => topology.shards.len().max(1),
            _ => 1,
        }
    }

    /// The shard that serves a slot; the first as long as that is not known.
    pub(super) fn shard_of(&self, slot: usize) -> usize {
        match &*self.topology.borrow() {
            State::Known(topology) => topology.shard_of(slot).unwrap_or(0),
            _ => 0,
        }
    }

    /// Sends a command to the master of its key's slot, and follows the slot if it moves.
    pub(super) async fn call(
        self: &Arc<Self>,
        cmd: &Arc<Cmd>,
        deadline: Duration,
    ) -> Result<Result<Value, RedisError>, CallFailure> {
        let (ends, slot) = (Instant::now() + deadline, slot_of(cmd));
        let mut node = self.master_of(slot, deadline).await?;
        let (mut is_asking, mut pause) = (false, TRY_AGAIN_AFTER);
        for _ in 0..REDIRECTS_MAX {
            let left = ends.saturating_duration_since(Instant::now());
            let reply = node.connection.call(cmd, is_asking, left).await;
            let error = match reply {
                Ok(Err(error)) => error,
                Ok(reply) => return Ok(reply),
                Err(failure) => {
                    self.refresh(Some(&node.address));
                    return Err(failure);
                }
            };
            match redirect_of(&error, &node.address) {
                Some(Redirect::Moved(address)) => {
                    self.refresh(Some(&node.address));
                    (node, is_asking) = (self.node(&address)?, false);
                }
                Some(Redirect::Ask(address)) => (node, is_asking) = (self.node(&address)?, true),
                Some(Redirect::TryAgain) => {
                    let until = Instant::now() + pause;
                    if until >= ends {
                        return Err(StoreError::Deadline(deadline).into());
                    }
                    tokio::time::sleep_until(until).await;
                    pause *= 2;
                }
                None => {
                    if is_stale_topology(&error) {
                        self.refresh(Some(&node.address));
                    }
                    return Ok(Err(error));
                }
            }
        }
        Err(StoreError::Refused(format!("slot {slot} is redirected too often").into()).into())
    }

    async fn master_of(
        self: &Arc<Self>,
        slot: usize,
        within: Duration,
    ) -> Result<Shard, StoreError> {
        let known = tokio::time::timeout(within, self.topology()).await;
        let topology = known.unwrap_or(Err(StoreError::Deadline(within)))?;
        let shard = topology.shard_of(slot).map(|shard| topology.shards[shard].clone());
        shard.ok_or_else(|| {
            self.refresh(None);
            StoreError::Refused(format!("no node serves slot {slot}").into())
        })
    }

    /// The topology, once it is known.
    async fn topology(self: &Arc<Self>) -> Result<Arc<Topology>, StoreError> {
        if let State::Known(topology) = &*self.topology.borrow() {
            return Ok(topology.clone());
        }
        let mut states = self.topology.subscribe();
        self.refresh(None);
        loop {
            // A failure from before this call does not count.
            let _ = states.changed().await;
            match &*states.borrow_and_update() {
                State::Known(topology) => return Ok(topology.clone()),
                State::Failed(error) => return Err(error.clone()),
                State::Unknown => {}
            }
        }
    }

    fn node(&self, address: &str) -> Result<Shard, StoreError> {
        let connection = self.connection(address)?;
        Ok(Shard { address: address.to_string(), connection })
    }

    fn connection(&self, address: &str) -> Result<Arc<Connection>, StoreError> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = connections.get(address) {
            return Ok(connection.clone());
        }
        let target = self.clients.target(address).map_err(|error| error_of(&error))?;
        let connection = Connection::new(target, self.counters.clone());
        connections.insert(address.to_string(), connection.clone());
        Ok(connection)
    }

    /// Queries the topology in the background, one query at a time. The node that caused it is queried
    /// last: one that was partitioned may believe that it is still master.
    fn refresh(self: &Arc<Self>, suspect: Option<&str>) {
        if self.is_refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (refresh, suspect) = (Refresh(self.clone()), suspect.map(str::to_string));
        tokio::spawn(async move {
            let cluster = &refresh.0;
            match cluster.find_topology(suspect.as_deref()).await {
                Ok(topology) => {
                    cluster.drop_unused(&topology);
                    cluster.topology.send_replace(State::Known(Arc::new(topology)));
                }
                Err(error) => cluster.topology.send_modify(|state| {
                    // The known topology may still be right for some of the slots.
                    if !matches!(state, State::Known(_)) {
                        *state = State::Failed(error);
                    }
                }),
            }
            tokio::time::sleep(REFRESH_PAUSE).await;
        });
    }

    async fn find_topology(&self, suspect: Option<&str>) -> Result<Topology, StoreError> {
        let mut last = StoreError::Unreachable("no node is known".into());
        for address in self.candidates(suspect) {
            match self.query_topology(&address).await {
                Ok(topology) => return Ok(topology),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// All nodes that are known, those with a connection first.
    fn candidates(&self, suspect: Option<&str>) -> Vec<String> {
        let mut addresses = match &*self.topology.borrow() {
            State::Known(topology) => {
                topology.shards.iter().map(|shard| shard.address.clone()).collect()
            }
            _ => Vec::new(),
        };
        for seed in &self.seeds {
            if !addresses.contains(seed) {
                addresses.push(seed.clone());
            }
        }
        let next_candidate =
            self.next_candidate.fetch_add(1, Ordering::Relaxed) % addresses.len().max(1);
        addresses.rotate_left(next_candidate);
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let is_connected =
            |address: &str| connections.get(address).is_some_and(|l| l.is_connected());
        addresses
            .sort_by_key(|address| (suspect == Some(address.as_str()), !is_connected(address)));
        addresses
    }

    async fn query_topology(&self, address: &str) -> Result<Topology, StoreError> {
        let mut cmd = Cmd::new();
        cmd.arg("CLUSTER").arg("SLOTS");
        let connection = self.connection(address)?;
        let reply = connection.call(&Arc::new(cmd), false, TOPOLOGY_TIMEOUT).await;
        let reply = reply.map_err(|failure| failure.error)?.map_err(|error| error_of(&error))?;
        let ranges = ranges_of(&reply, address).ok_or_else(|| super::invalid_response(&reply))?;
        match ranges.is_empty() {
            true => Err(StoreError::Refused("no node of the cluster serves any slot".into())),
            false => self.topology_of(ranges),
        }
    }

    fn topology_of(&self, mut ranges: Vec<Range>) -> Result<Topology, StoreError> {
        ranges.sort_by_key(|range| range.first);
        let mut shards: Vec<Shard> = Vec::new();
        let mut shard_of_slot = vec![0; SLOTS].into_boxed_slice();
        for Range { first, last, address } in ranges {
            let known = shards.iter().position(|shard| shard.address == address);
            let shard = match known {
                Some(shard) => shard,
                None => {
                    shards.push(self.node(&address)?);
                    shards.len() - 1
                }
            };
            let number = u16::try_from(shard + 1).unwrap_or(u16::MAX);
            shard_of_slot[first..=last].fill(number);
        }
        Ok(Topology { shard_of_slot, shards })
    }

    /// Drops the connections to nodes that are not masters.
    fn drop_unused(&self, topology: &Topology) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections
            .retain(|address, _| topology.shards.iter().any(|shard| shard.address == *address));
    }
}

/// One query of the topology. If it is cancelled because its runtime ends, another may start.
struct Refresh(Arc<Cluster>);

impl Drop for Refresh {
    fn drop(&mut self) {
        self.0.is_refreshing.store(false, Ordering::Release);
    }
}

/// Slots and the address of their master.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: usize,
    last: usize,
    address: String,
}

/// Parses the reply to `CLUSTER SLOTS` of this node.
fn ranges_of(reply: &Value, node: &str) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else { return None };
    let range = |range: &Value| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            Value::SimpleString(host) => host,
            _ => "",
        };
        let is_sound = first <= last && last < SLOTS;
        let address = address_of(host, u16::try_from(*port).ok()?, node);
        is_sound.then_some(Range { first, last, address })
    };
    ranges.iter().map(range).collect()
}

/// The address of a node. One that does not know its own host is at the host it was queried at.
fn address_of(host: &str, port: u16, node: &str) -> String {
    match host {
        "" | "?" => {
            let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
            format!("{host}:{port}")
        }
        _ if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

enum Redirect {
    Moved(String),
    Ask(String),
    TryAgain,
}

fn redirect_of(error: &RedisError, node: &str) -> Option<Redirect> {
    let address = || {
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        Some(address_of(host, port.parse().ok()?, node))
    };
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved) => address().map(Redirect::Moved),
        ErrorKind::Server(ServerErrorKind::Ask) => address().map(Redirect::Ask),
        ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Redirect::TryAgain),
        _ => None,
    }
}

/// Returns whether the error means that the topology has changed.
fn is_stale_topology(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Io
            | ErrorKind::Server(
                ServerErrorKind::ClusterDown
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::ReadOnly
                    | ServerErrorKind::Moved
            )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let master = Value::Array(vec![host, Value::Int(port)]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn the_masters_of_all_slots_are_read() {
        let reply = Value::Array(vec![
            entry(0, 5460, text("10.0.0.1"), 7000),
            entry(5461, 5461, text(""), 7001),
            entry(5462, 16383, text("fd00::2"), 7002),
            entry(7, 7, Value::Nil, 7003),
        ]);
        let ranges = ranges_of(&reply, "[::1]:9").unwrap();
        let addresses: Vec<_> = ranges.iter().map(|range| range.address.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.1:7000", "[::1]:7001", "[fd00::2]:7002", "[::1]:7003"]);
        assert_eq!((ranges[0].first, ranges[0].last), (0, 5460));
    }

    #[test]
    fn an_invalid_topology_is_rejected() {
        for broken in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![entry(5, 4, text("a"), 1)]),
            Value::Array(vec![entry(0, 16384, text("a"), 1)]),
            Value::Array(vec![entry(-1, 4, text("a"), 1)]),
            Value::Array(vec![entry(0, 4, text("a"), 70_000)]),
        ] {
            assert_eq!(ranges_of(&broken, "a:1"), None, "{broken:?}");
        }
    }
}
