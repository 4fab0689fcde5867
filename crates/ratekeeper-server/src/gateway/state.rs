//! What the connections of a gateway share: all of them, and those of one worker.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::{HeaderName, HeaderValue};
use ratekeeper::{ActivePolicy, Dependency};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio_rustls::TlsConnector;

use super::access_log::{AccessLogger, NOTHING_LOST};
use super::options::{BoundOptions, HealthOptions, TimeoutOptions};
use super::pool::Pool;
use super::upstream::{EjectionRule, Tried, UpstreamAddress, UpstreamHealth, pick};
use crate::listener::{ConnectionLimit, Drain, FileDescriptors, InFlightLimit, Ticks};
use crate::metrics::{Labels, Page, one};
use crate::reload::PolicyFile;
use ratekeeper::RequestIds;

/// What all workers share.
pub(super) struct GatewayState {
    pub(super) upstreams: Vec<Upstream>,
    pub(super) ejection: EjectionRule,
    pub(super) health: HealthOptions,
    pub(super) timeouts: TimeoutOptions,
    pub(super) bounds: BoundOptions,
    pub(super) policy: Arc<PolicyFile>,
    pub(super) request_id_header: HeaderName,
    pub(super) access_log: Option<AccessLogger>,
    pub(super) drain: Drain,
    pub(super) ticks: Ticks,
    pub(super) connections: Arc<ConnectionLimit>,
    pub(super) in_flight: Arc<InFlightLimit>,
    pub(super) descriptors: FileDescriptors,
    pub(super) overloads: Overloads,
}

/// The limit at which a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overload {
    InFlight,
    UpstreamConnections,
    Descriptors,
}

const OVERLOADS: [(&str, Overload); 3] = [
    ("in_flight", Overload::InFlight),
    ("upstream_connections", Overload::UpstreamConnections),
    ("file_descriptors", Overload::Descriptors),
];

/// How many requests were rejected at each.
#[derive(Default)]
pub(super) struct Overloads([AtomicU64; OVERLOADS.len()]);

pub(super) struct Upstream {
    pub(super) address: UpstreamAddress,
    pub(super) tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Its address as a `Host` header, for requests without one.
    pub(super) host: HeaderValue,
    pub(super) name: Arc<str>,
    pub(super) health: UpstreamHealth,
    /// The connections that are in use.
    pub(super) in_use: Arc<InFlightLimit>,
}

/// State of one worker.
pub(super) struct WorkerState {
    pub(super) gateway: Arc<GatewayState>,
    pub(super) pools: Vec<Pool>,
    pub(super) ids: RequestIds,
    next_start: AtomicUsize,
}

impl GatewayState {
    /// Whether the forwarding headers of this peer are used.
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        self.policy.limiter().policy().active().policy().client_ip().is_trusted(peer)
    }

    /// Whether an upstream gets requests: its health checks pass, it is not ejected, and its circuit breakers are
    /// not open.
    pub(super) fn is_available(&self, policy: &ActivePolicy, index: usize) -> bool {
        let is_healthy = self.upstreams[index].health.is_available(|| self.ticks.now_us());
        let mut dependencies = policy.upstream_dependencies(index).iter();
        is_healthy && dependencies.all(|dependency| dependency.check_breaker().is_ok())
    }

    /// Returns each upstream, and whether it gets requests, as JSON.
    pub(super) fn upstream_status(&self) -> Value {
        let policy = self.policy.limiter().policy().active();
        let upstreams = self.upstreams.iter().enumerate().map(|(index, upstream)| {
            json!({
                "name": &*upstream.name,
                "is_up": self.is_available(&policy, index),
                "is_failing": upstream.health.is_failing(),
                "connections": upstream.in_use.in_use(),
            })
        });
        upstreams.collect()
    }

    /// Counts a request that was rejected at a limit.
    pub(super) fn note_overload(&self, overload: Overload) {
        self.overloads.0[overload as usize].fetch_add(1, Ordering::Relaxed);
        if overload == Overload::Descriptors {
            tracing::warn!(
                "no file descriptors are left for connections; raise the limit (ulimit -n)"
            );
        }
    }

    pub(super) fn write_metrics(&self, page: &mut Page) {
        let help = "Open connections of clients.";
        page.gauge("ratekeeper_gateway_connections", help, one(self.connections.open()));
        let help = "Requests in flight.";
        page.gauge("ratekeeper_gateway_requests_in_flight", help, one(self.in_flight.in_use()));
        let in_use = self.upstreams.iter().map(|upstream| {
            (Labels(vec![("upstream", &*upstream.name)]), upstream.in_use.in_use())
        });
        let help = "Connections to upstreams in use.";
        page.gauge("ratekeeper_gateway_upstream_connections", help, in_use);
        let connections = Some(("connections", self.connections.over_limit()));
        let requests = OVERLOADS.map(|(reason, overload)| {
            let count = self.overloads.0[overload as usize].load(Ordering::Relaxed);
            let is_shared = overload == Overload::Descriptors;
            let connections = if is_shared { self.connections.without_descriptor() } else { 0 };
            (reason, count + connections)
        });
        let rejected = connections.into_iter().chain(requests);
        let rejected = rejected.map(|(reason, count)| (Labels(vec![("reason", reason)]), count));
        let help = "Connections and requests that were rejected because there were too many.";
        page.counter("ratekeeper_gateway_rejected_total", help, rejected);
        let lost = self.access_log.as_ref().map(AccessLogger::lost).unwrap_or(NOTHING_LOST);
        let lost = lost.map(|(reason, lines)| (Labels(vec![("reason", reason)]), lines));
        let help = "Lines of the access log that were lost.";
        page.counter("ratekeeper_gateway_access_log_lost_total", help, lost);
        let policy = self.policy.limiter().policy().active();
        let up = self.upstreams.iter().enumerate().map(|(index, upstream)| {
            let is_available = u8::from(self.is_available(&policy, index));
            (Labels(vec![("upstream", &*upstream.name)]), is_available)
        });
        page.gauge("ratekeeper_gateway_upstream_up", "Whether the upstream gets requests.", up);
    }
}

impl WorkerState {
    pub(super) fn new(gateway: Arc<GatewayState>, index: usize) -> Self {
        let idle_max = usize::from(gateway.bounds.upstream_pool);
        let pool = |_: &Upstream| Pool::new(idle_max, gateway.timeouts.upstream_idle);
        let pools = gateway.upstreams.iter().map(pool).collect();
        // Workers that start with different upstreams spread the first requests.
        Self { pools, ids: RequestIds::default(), next_start: AtomicUsize::new(index), gateway }
    }

    /// Returns where to start to look for an upstream for one request.
    pub(super) fn next_start(&self) -> usize {
        self.next_start.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn pick(&self, policy: &ActivePolicy, start: usize, tried: Tried) -> Option<usize> {
        let count = self.gateway.upstreams.len();
        pick(count, start, tried, |index| self.gateway.is_available(policy, index))
    }

    pub(super) fn note_failure(&self, policy: &ActivePolicy, index: usize, why: &str) {
        let GatewayState { upstreams, ejection, ticks, .. } = &*self.gateway;
        let upstream = &upstreams[index];
        // Only the first in a row: there may be many.
        if !upstream.health.is_failing() {
            tracing::warn!(upstream = %upstream.name, error = why, "upstream failed");
        }
        // A circuit breaker of the policy takes the place of ejection.
        let has_breaker = policy.upstream_dependencies(index).iter().any(Dependency::has_breaker);
        let ejection = EjectionRule { is_off: has_breaker, ..*ejection };
        if let Some(lasting) = upstream.health.fail(ejection, ticks.now_us()) {
            tracing::warn!(upstream = %upstream.name, ?lasting, error = why, "upstream ejected");
        }
    }
}
