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

use http::HeaderMap;
use ratekeeper::refusals::Decided;
use ratekeeper::tower::X_REQUEST_ID;
use ratekeeper::{Applied, Charge, Clock, Engine, Micros, PolicyLimiter, RequestIds, SystemClock};

use super::grpc::rls::RateLimitService;
use super::recorded::{outcome_of, record_check};
use super::request_metrics::RequestMetrics;
use crate::tokens::Tokens;
use forward_auth::HeaderMapView;
use request::RateCheck;

pub(crate) use connection::HttpApiHandler;
pub(crate) use described_request::DescribedRequest;
pub(crate) use error::RequestError;

/// What the requests of the HTTP API share.
pub(crate) struct HttpApi {
    limiter: PolicyLimiter,
    /// The same limiter, for requests that proxies ask about.
    forward_auth: PolicyLimiter,
    /// Decides about Envoy's descriptors, if there are limits for them.
    envoy: Option<Arc<RateLimitService>>,
    /// The tokens of which requests need one.
    tokens: Arc<Tokens>,
    metrics: Arc<RequestMetrics>,
}

/// Checks by limits of the caller, and the decision on their charges.
#[derive(Clone, Copy)]
struct Checked<'a> {
    checks: &'a [RateCheck],
    charges: &'a [Charge<'a>],
    applied: &'a Applied,
}

impl HttpApi {
    pub(crate) fn new(
        limiter: &PolicyLimiter,
        tokens: Arc<Tokens>,
        envoy: Option<Arc<RateLimitService>>,
        metrics: Arc<RequestMetrics>,
    ) -> Arc<Self> {
        let forward_auth = limiter.for_requests("forward_auth", X_REQUEST_ID.as_str());
        let limiter = limiter.for_requests("http", X_REQUEST_ID.as_str());
        Arc::new(Self { limiter, forward_auth, envoy, tokens, metrics })
    }

    /// Whether the server is to get requests.
    fn is_ready(&self) -> bool {
        self.envoy.as_ref().is_none_or(|envoy| envoy.is_ready())
    }

    fn engine(&self) -> &Engine {
        self.limiter.engine()
    }

    /// Returns the id of a request, or a new one.
    fn request_id(&self, headers: &HeaderMap) -> Arc<str> {
        let own = RequestIds::of_headers(X_REQUEST_ID.as_str(), &HeaderMapView(headers));
        own.unwrap_or_else(|| self.limiter.refusals().new_request_id())
    }

    /// Counts and records the decision on charges by limits of the caller, which the policy's telemetry does not see.
    fn record_check(&self, checked: &Checked<'_>, request_id: Option<&Arc<str>>) {
        let Checked { checks, charges, applied } = *checked;
        let (is_allowed, now) = (applied.allowed(), self.limiter.engine().now());
        // The others were not charged if one is denied.
        let binding = applied.binding();
        let counted = if is_allowed { checks } else { &checks[binding..=binding] };
        for check in counted {
            self.count_key(check.limit.name(), &check.key, is_allowed, now);
        }
        let (limit, key) = (checks[binding].limit.name(), checks[binding].key.as_bytes());
        let decided = Decided::new(limit, key, outcome_of(is_allowed), now).by(request_id, "http");
        record_check(&self.limiter, &decided, charges, applied);
    }

    fn count_key(&self, limit_name: &str, key: &str, is_allowed: bool, now: Micros) {
        self.metrics.top.count(limit_name, key.as_bytes(), outcome_of(is_allowed), now);
    }

    fn now_us(&self) -> u64 {
        SystemClock.now().get()
    }
}
