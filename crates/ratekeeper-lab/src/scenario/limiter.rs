//! Nodes that decide, with their clocks and the store that they share.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ratekeeper_core::{Cost, Decision, FailureMode, Limit, Micros};
use ratekeeper_stores::{Charge, LeasedStore, MemoryStore, Op, Store, StoreError, Verdict};

use super::setup::{LimiterMode, LimiterSetup, StoreSetup};
use crate::random::Random;
use crate::service::fraction;

/// Scenarios begin at a full day, so that windows begin with them.
const START_US: u64 = 20_000 * 86_400_000_000;
/// How often leases are returned by nodes without requests.
const RETURN_EVERY_US: u64 = 100_000;
const KEYS_MIN: usize = 1_024;

/// What the limiter decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) is_admitted: bool,
    pub(super) retry_after: Option<Duration>,
    /// How long the request is held back: for the decision, and by a leaky bucket.
    pub(super) held_us: u64,
}

pub(super) struct Limiter<'s> {
    setup: &'s LimiterSetup,
    store_setup: &'s StoreSetup,
    /// The limit, and the part of it that a node has.
    limit: Limit,
    share: Limit,
    changes: std::slice::Iter<'s, (u64, Limit)>,
    next_change: Option<&'s (u64, Limit)>,
    store: Arc<LabStore>,
    nodes: Vec<Node>,
    /// What was admitted without the store, by key.
    owed: HashMap<String, u64>,
    random: Random,
    /// Leases start tasks, which need a runtime; they never run.
    runtime: tokio::runtime::Runtime,
}

struct Node {
    skew_us: i64,
    round_trip_us: u64,
    memory: MemoryStore,
    leased: LeasedStore<Arc<LabStore>>,
    last_used_us: u64,
}

/// The shared store in virtual time.
struct LabStore {
    memory: MemoryStore,
    is_gone: AtomicBool,
}

impl Store for LabStore {
    async fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        match self.is_gone.load(Ordering::Relaxed) {
            true => Err(StoreError::Deadline(Duration::ZERO)),
            false => self.memory.apply(op, charges, now).await,
        }
    }

    async fn reset(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.memory.reset(charge);
        Ok(())
    }

    async fn usage_ttl(&self, charge: &Charge<'_>, now: Micros) -> Result<Duration, StoreError> {
        Ok(self.memory.usage_ttl(charge, now))
    }
}

impl<'s> Limiter<'s> {
    pub(super) fn new(
        setup: &'s LimiterSetup,
        store_setup: &'s StoreSetup,
        keys: u64,
        seed: u64,
    ) -> Self {
        let capacity = (keys as usize * 4).max(KEYS_MIN);
        let store = LabStore {
            memory: MemoryStore::with_capacity(capacity),
            is_gone: AtomicBool::new(false),
        };
        let store = Arc::new(store);
        let node = |node: &super::setup::NodeSetup| Node {
            skew_us: node.skew_us,
            round_trip_us: node.round_trip_us,
            memory: MemoryStore::with_capacity(capacity),
            leased: LeasedStore::new(store.clone()),
            last_used_us: 0,
        };
        let nodes: Vec<_> = setup.nodes.iter().map(node).collect();
        let mut changes = setup.changes.iter();
        let next_change = changes.next();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        Self {
            setup,
            store_setup,
            share: setup.limit.share_of_nodes(nodes.len() as u32),
            limit: setup.limit.clone(),
            changes,
            next_change,
            store,
            nodes,
            owed: HashMap::new(),
            random: Random::new(seed),
            runtime: runtime.expect("a runtime without drivers"),
        }
    }

    /// Decides a request at a node.
    pub(super) fn decide(&mut self, key: &str, now_us: u64) -> Decided {
        self.change_limit(now_us);
        let key = if self.setup.is_per_key { key } else { "all" };
        let node = self.pick_node();
        let decided = match self.setup.mode {
            LimiterMode::Local => self.decide_in_memory(node, key, now_us, false),
            LimiterMode::Divided => self.decide_in_memory(node, key, now_us, true),
            LimiterMode::Shared | LimiterMode::Leased => self.decide_with_store(node, key, now_us),
        };
        self.nodes[node].last_used_us = now_us;
        decided
    }

    fn change_limit(&mut self, now_us: u64) {
        while let Some((_, limit)) = self.next_change.filter(|(at_us, _)| *at_us <= now_us) {
            self.limit = limit.clone();
            self.share = limit.share_of_nodes(self.nodes.len() as u32);
            self.next_change = self.changes.next();
        }
    }

    fn pick_node(&mut self) -> usize {
        let nodes = self.nodes.len() as u64;
        match self.setup.hot_node {
            Some(share) if nodes > 1 => match fraction(&mut self.random) < share {
                true => 0,
                false => 1 + self.random.below(nodes - 1) as usize,
            },
            _ => self.random.below(nodes) as usize,
        }
    }

    fn decide_in_memory(&self, node: usize, key: &str, now_us: u64, is_share: bool) -> Decided {
        let node = &self.nodes[node];
        let limit = if is_share { &self.share } else { &self.limit };
        let now = Micros::new((START_US + now_us).saturating_add_signed(node.skew_us));
        Decided::of(&node.memory.check(&Charge::new(limit, key), now), 0)
    }

    fn decide_with_store(&mut self, node: usize, key: &str, now_us: u64) -> Decided {
        let round_trip_us = self.nodes[node].round_trip_us;
        let latency_us = self.store_setup.latency_us(now_us).map(|us| us + round_trip_us);
        let in_time = latency_us.filter(|us| *us <= self.store_setup.deadline_us);
        self.store.is_gone.store(in_time.is_none(), Ordering::Relaxed);
        if in_time.is_some() {
            self.pay_owed(key, now_us);
        }
        let decided = match self.setup.mode {
            LimiterMode::Leased => self.decide_leased(node, key, now_us, in_time),
            _ => in_time.map(|took_us| {
                let charge = Charge::new(&self.limit, key);
                let now = Micros::new(START_US + now_us);
                Decided::of(&self.store.memory.check(&charge, now), took_us)
            }),
        };
        decided.unwrap_or_else(|| self.fall_back(node, key, now_us))
    }

    fn decide_leased(
        &mut self,
        node: usize,
        key: &str,
        now_us: u64,
        call_us: Option<u64>,
    ) -> Option<Decided> {
        let _context = self.runtime.enter();
        let now = Micros::new(START_US + now_us);
        for idle in &mut self.nodes {
            if idle.last_used_us > 0 && idle.last_used_us + RETURN_EVERY_US < now_us {
                // What cannot be returned expires.
                let _ = ready(idle.leased.return_all(now));
                idle.last_used_us = 0;
            }
        }
        let leased = &self.nodes[node].leased;
        let calls_before = leased.stats(now).store_calls;
        let verdict =
            ready(leased.apply(Op::Check, &[Charge::new(&self.limit, key)], now))?.ok()?;
        let has_called = leased.stats(now).store_calls > calls_before;
        let took_us = if has_called { call_us.unwrap_or_default() } else { 0 };
        Some(Decided {
            is_admitted: verdict.allowed(),
            retry_after: verdict.retry_after(),
            held_us: took_us,
        })
    }

    /// Decides without the store, after the deadline.
    fn fall_back(&mut self, node: usize, key: &str, now_us: u64) -> Decided {
        let took_us = self.store_setup.deadline_us;
        let admitted = Decided { is_admitted: true, retry_after: None, held_us: took_us };
        let decided = match self.setup.on_store_failure {
            FailureMode::Local => {
                let decided = self.decide_in_memory(node, key, now_us, true);
                Decided { held_us: decided.held_us + took_us, ..decided }
            }
            FailureMode::Open => admitted,
            _ => Decided { is_admitted: false, ..admitted },
        };
        if decided.is_admitted {
            *self.owed.entry(key.to_string()).or_default() += 1;
        }
        decided
    }

    /// Charges what was admitted without the store, up to the whole limit.
    fn pay_owed(&mut self, key: &str, now_us: u64) {
        let Some(owed) = self.owed.remove(key) else { return };
        let cost = Cost::new(owed.min(self.limit.quota())).unwrap_or(Cost::ONE);
        let charge = Charge::new(&self.limit, key).cost(cost);
        // One charge of one limit is always valid.
        let _ = self.store.memory.apply_now(Op::Charge, &[charge], Micros::new(START_US + now_us));
    }
}

impl Decided {
    fn of(decision: &Decision, took_us: u64) -> Self {
        let delay_us = decision.delay().as_micros() as u64;
        Self {
            is_admitted: decision.allowed(),
            retry_after: decision.retry_after(),
            held_us: took_us + delay_us,
        }
    }
}

/// Returns the result of a future that never has to wait.
fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
