//! The HTTP API: decisions in JSON, and forward-auth for proxies.

mod check;
mod connection;
mod described_request;
mod error;
mod forward_auth;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hold_table;
mod instrument;
mod json_fields;
mod peek;
mod permit_id;
mod permits;
mod request;
mod reservations;
mod reset;
mod response;
mod routes;

use std::sync::Arc;
use std::time::Duration;

use ratekeeper::{Clock, Decision, Op, PolicyLimiter, SystemClock};

use super::grpc::rls::RateLimitService;
use super::request_metrics::RequestMetrics;
use crate::tokens::Tokens;
use hold_table::HoldTable;
use request::RateCheck;

pub(crate) use connection::HttpApiHandler;

/// What the requests of the HTTP API share.
pub(crate) struct HttpApi {
    limiter: PolicyLimiter,
    /// Reservations and permits that callers hold.
    holds: HoldTable,
    /// Decides about Envoy's descriptors, if there are limits for them.
    envoy: Option<Arc<RateLimitService>>,
    /// The tokens of which requests need one.
    tokens: Arc<Tokens>,
    metrics: Arc<RequestMetrics>,
}

impl HttpApi {
    pub(crate) fn new(
        limiter: PolicyLimiter,
        tokens: Arc<Tokens>,
        envoy: Option<Arc<RateLimitService>>,
        metrics: Arc<RequestMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self { limiter, holds: HoldTable::default(), envoy, tokens, metrics })
    }

    /// Whether the server is to get requests.
    fn is_ready(&self) -> bool {
        self.envoy.as_ref().is_none_or(|envoy| envoy.is_ready())
    }

    /// Drops reservations and permits that have expired.
    pub(crate) fn sweep(&self) {
        self.holds.sweep(self.now_us());
    }

    /// Counts a decision by a limit of the caller, which the policy's telemetry does not see.
    fn count_decision(&self, op: Op, check: &RateCheck, decision: &Decision) {
        if op == Op::Check {
            self.count_key(check.limit.name(), &check.key, decision.allowed());
        }
    }

    fn count_key(&self, limit_name: &str, key: &str, is_allowed: bool) {
        let now = self.limiter.engine().now();
        self.metrics.top.count(limit_name, key.as_bytes(), !is_allowed, now);
    }

    /// Returns the time at which a hold that begins now expires.
    fn deadline_us(&self, hold_time: Duration) -> u64 {
        self.now_us() + u64::try_from(hold_time.as_micros()).unwrap_or(u64::MAX)
    }

    fn now_us(&self) -> u64 {
        SystemClock.now().get()
    }
}
