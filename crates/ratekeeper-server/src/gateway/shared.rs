//! What all connections know: of the whole gateway, and of their worker.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::{HeaderName, HeaderValue};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::access_log::{AccessLogger, NOTHING_LOST};
use super::options::{Bounds, HealthOptions, Timeouts};
use super::pool::Pool;
use super::request_id::RequestIds;
use super::ticks::Ticks;
use super::upstream::{Address, EjectionRule, Fitness, Tried, pick};
use crate::accept::Room;
use crate::drain::Drain;
use crate::metrics::{Labels, Page, one};
use crate::policy_file::PolicyFile;
use crate::process::Descriptors;
use crate::tls::Tls;

/// What all workers share.
pub(super) struct Shared {
    pub(super) upstreams: Vec<Upstream>,
    pub(super) ejection: EjectionRule,
    pub(super) health: HealthOptions,
    pub(super) timeouts: Timeouts,
    pub(super) bounds: Bounds,
    pub(super) policy: Arc<PolicyFile>,
    pub(super) request_id_header: HeaderName,
    pub(super) access_log: Option<AccessLogger>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) drain: Drain,
    pub(super) ticks: Ticks,
    pub(super) in_flight: Arc<Room>,
    pub(super) descriptors: Descriptors,
    pub(super) overloads: Overloads,
}

/// A bound at which a connection or a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overload {
    Connections,
    InFlight,
    UpstreamConnections,
    Descriptors,
}

const OVERLOADS: [(&str, Overload); 4] = [
    ("connections", Overload::Connections),
    ("in_flight", Overload::InFlight),
    ("upstream_connections", Overload::UpstreamConnections),
    ("file_descriptors", Overload::Descriptors),
];

/// How much was rejected at each.
#[derive(Default)]
pub(super) struct Overloads([AtomicU64; OVERLOADS.len()]);

pub(super) struct Upstream {
    pub(super) address: Address,
    pub(super) tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Its address as a `Host` header, for clients that sent none.
    pub(super) host: HeaderValue,
    pub(super) name: Arc<str>,
    pub(super) fitness: Fitness,
    /// The connections that are in use.
    pub(super) in_use: Arc<Room>,
}

/// What the connections of one worker share.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) pools: Vec<Pool>,
    pub(super) ids: RequestIds,
    turn: AtomicUsize,
}

impl Shared {
    /// Is what this peer says about others believed?
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        self.policy.gate().policy().active().policy().client_ip().is_trusted(peer)
    }

    /// Counts what was rejected at a bound.
    pub(super) fn note_overload(&self, overload: Overload) {
        self.overloads.0[overload as usize].fetch_add(1, Ordering::Relaxed);
        if overload == Overload::Descriptors {
            tracing::warn!(
                "no file descriptors are left for connections; raise the limit (ulimit -n)"
            );
        }
    }

    pub(super) fn tell_metrics(&self, page: &mut Page) {
        let connections = [(Labels::default(), self.drain.live())];
        page.gauge("ratekeeper_gateway_connections", "Connections of clients.", connections);
        let help = "Requests in flight.";
        page.gauge("ratekeeper_gateway_requests_in_flight", help, one(self.in_flight.taken()));
        let in_use = self
            .upstreams
            .iter()
            .map(|upstream| (Labels(vec![("upstream", &*upstream.name)]), upstream.in_use.taken()));
        let help = "Connections to upstreams in use.";
        page.gauge("ratekeeper_gateway_upstream_connections", help, in_use);
        let rejected = OVERLOADS.map(|(reason, overload)| {
            let count = self.overloads.0[overload as usize].load(Ordering::Relaxed);
            (Labels(vec![("reason", reason)]), count)
        });
        let help = "Connections and requests that were rejected because there were too many.";
        page.counter("ratekeeper_gateway_rejected_total", help, rejected);
        let lost = self.access_log.as_ref().map(AccessLogger::lost).unwrap_or(NOTHING_LOST);
        let lost = lost.map(|(reason, lines)| (Labels(vec![("reason", reason)]), lines));
        let help = "Lines of the access log that were lost.";
        page.counter("ratekeeper_gateway_access_log_lost_total", help, lost);
        let now_us = self.ticks.now_us();
        let fit = self.upstreams.iter().map(|upstream| {
            let is_fit = u8::from(upstream.fitness.is_fit(|| now_us));
            (Labels(vec![("upstream", &*upstream.name)]), is_fit)
        });
        page.gauge("ratekeeper_gateway_upstream_up", "Whether it is sent requests.", fit);
    }
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Self {
        let idle_max = usize::from(shared.bounds.upstream_pool);
        let pool = |_: &Upstream| Pool::new(idle_max, shared.timeouts.upstream_idle);
        let pools = shared.upstreams.iter().map(pool).collect();
        // Workers that begin with different upstreams spread the first requests.
        Self { pools, ids: RequestIds::default(), turn: AtomicUsize::new(index), shared }
    }

    /// The number that decides whose turn it is for one request.
    pub(super) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn pick(&self, turn: usize, tried: Tried) -> Option<usize> {
        let Shared { upstreams, ticks, .. } = &*self.shared;
        pick(upstreams.iter().map(|upstream| &upstream.fitness), turn, tried, || ticks.now_us())
    }

    pub(super) fn note_failure(&self, index: usize, why: &str) {
        let Shared { upstreams, ejection, ticks, .. } = &*self.shared;
        let upstream = &upstreams[index];
        // Only the first in a row: there may be many.
        if !upstream.fitness.is_failing() {
            tracing::warn!(upstream = %upstream.name, why, "request failed");
        }
        if let Some(lasting) = upstream.fitness.fail(*ejection, ticks.now_us()) {
            tracing::warn!(upstream = %upstream.name, ?lasting, why, "left out for a while");
        }
    }
}
