//! The HTTP API: decisions in JSON, and forward-auth for proxies.

mod check;
mod connection;
mod described_request;
mod error;
mod forward_auth;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod instrument;
mod json_fields;
mod peek;
mod permits;
mod request;
mod reservations;
mod reset;
mod response;
mod routes;

use std::sync::Arc;

use ratekeeper::{Clock, Decision, Engine, Op, PolicyLimiter, SystemClock};

use super::grpc::rls::RateLimitService;
use super::request_metrics::RequestMetrics;
use crate::tokens::Tokens;
use request::RateCheck;

pub(crate) use connection::HttpApiHandler;
pub(crate) use described_request::DescribedRequest;
pub(crate) use error::RequestError;

/// What the requests of the HTTP API share.
pub(crate) struct HttpApi {
    limiter: PolicyLimiter,
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
        Arc::new(Self { limiter, envoy, tokens, metrics })
    }

    /// Whether the server is to get requests.
    fn is_ready(&self) -> bool {
        self.envoy.as_ref().is_none_or(|envoy| envoy.is_ready())
    }

    fn engine(&self) -> &Engine {
        self.limiter.engine()
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

    fn now_us(&self) -> u64 {
        SystemClock.now().get()
    }
}
