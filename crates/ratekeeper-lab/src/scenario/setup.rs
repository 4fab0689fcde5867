//! What a scenario consists of.

use std::ops::Range;

use ratekeeper_core::{FailureMode, Limit};

use crate::arrival::Arrival;
use crate::service::{Load, ServiceTime};

/// One run: the scenario, or a variant of it.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) clients: Vec<ClientClass>,
    pub(super) limiter: Option<LimiterSetup>,
    pub(super) store: StoreSetup,
    pub(super) service: Option<ServiceSetup>,
}

/// Clients that do the same.
#[derive(Clone, Debug)]
pub(super) struct ClientClass {
    pub(super) name: String,
    pub(super) source: Source,
    pub(super) keys: u64,
    pub(super) timeout_us: u64,
    pub(super) round_trip_us: u64,
    pub(super) retry: String,
    pub(super) retries_max: u32,
}

/// When new requests come.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// At random, at a rate that changes over time, whatever becomes of the others.
    Open(Load),
    /// Many at once.
    Bursts { size: u64, first_us: u64, every_us: u64 },
    /// From users who wait for the response, and then think.
    Closed { users: u64, think_us: u64 },
    /// As recorded.
    Trace(Vec<Arrival>),
}

/// The limiter in front of the service.
#[derive(Clone, Debug)]
pub(super) struct LimiterSetup {
    pub(super) limit: Limit,
    pub(super) mode: LimiterMode,
    pub(super) is_per_key: bool,
    pub(super) nodes: Vec<NodeSetup>,
    /// The share of the requests that go to the first node, if not the same as to the others.
    pub(super) hot_node: Option<f64>,
    pub(super) on_store_failure: FailureMode,
    /// When the limit changes.
    pub(super) changes: Vec<(u64, Limit)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimiterMode {
    /// All nodes count in one store.
    Shared,
    /// Each node counts by itself, up to the whole limit.
    Local,
    /// Each node counts by itself, up to its share of the limit.
    Divided,
    /// All nodes count in one store, by batches.
    Leased,
}

/// A node of the limiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeSetup {
    /// How far its clock is ahead.
    pub(super) skew_us: i64,
    /// The time to the store and back.
    pub(super) round_trip_us: u64,
}

/// The store that nodes share.
#[derive(Clone, Debug)]
pub(super) struct StoreSetup {
    pub(super) latency_us: u64,
    pub(super) deadline_us: u64,
    pub(super) outages: Vec<Range<u64>>,
    pub(super) slow: Vec<(Range<u64>, u64)>,
}

impl StoreSetup {
    /// Returns how long a call takes; `None` if the store is gone.
    pub(super) fn latency_us(&self, now_us: u64) -> Option<u64> {
        if self.outages.iter().any(|span| span.contains(&now_us)) {
            return None;
        }
        let slow = self.slow.iter().find(|(span, _)| span.contains(&now_us));
        Some(slow.map_or(self.latency_us, |(_, latency_us)| *latency_us))
    }
}

/// The service that requests are for.
#[derive(Clone, Debug)]
pub(super) struct ServiceSetup {
    pub(super) workers: u64,
    pub(super) time: ServiceTime,
    /// The most requests that wait; more are rejected.
    pub(super) queue_max: u64,
    /// When work takes longer, and how many times.
    pub(super) slow: Vec<(Range<u64>, f64)>,
}

impl ServiceSetup {
    pub(super) fn slowness(&self, now_us: u64) -> f64 {
        let slow = self.slow.iter().filter(|(span, _)| span.contains(&now_us));
        slow.map(|(_, factor)| factor).product()
    }
}
