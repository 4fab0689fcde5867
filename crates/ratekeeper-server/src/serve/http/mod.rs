//! The HTTP API: decisions in JSON, and forward-auth for proxies.

mod ask;
mod auth;
mod check;
mod connection;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod held;
mod hold;
mod limits;
mod measured;
mod peek;
mod permit_id;
mod reply;
mod reset;
mod routes;

use std::sync::Arc;

use ratekeeper::{Clock, Decision, Op, PolicyLimiter, SystemClock};

use super::grpc::rls::RateLimitService;
use super::meters::Meters;
use crate::tokens::Tokens;
use ask::Check;
use held::Held;

pub(crate) use connection::HttpApiHandler;

/// What requests of the HTTP API need.
pub(crate) struct HttpApi {
    gate: PolicyLimiter,
    /// Reservations and permits that callers hold.
    held: Held,
    /// Decides about Envoy's descriptors, if there are limits for them.
    envoy: Option<Arc<RateLimitService>>,
    /// The tokens of which requests need one.
    tokens: Arc<Tokens>,
    meters: Arc<Meters>,
}

impl HttpApi {
    pub(crate) fn new(
        gate: PolicyLimiter,
        tokens: Arc<Tokens>,
        envoy: Option<Arc<RateLimitService>>,
        meters: Arc<Meters>,
    ) -> Arc<Self> {
        Arc::new(Self { gate, held: Held::default(), envoy, tokens, meters })
    }

    /// Tells of a decision that no policy knows of, if this is one.
    fn note(&self, op: Op, check: &Check, decision: &Decision) {
        if op == Op::Check {
            self.tell(check.limit.name(), &check.key, decision.allowed());
        }
    }

    fn tell(&self, name: &str, key: &str, is_allowed: bool) {
        self.meters.top.count(name, key.as_bytes(), !is_allowed, self.gate.engine().now());
    }

    /// Releases what was held for too long.
    pub(crate) fn sweep(&self) {
        self.held.sweep(self.now_us());
    }

    fn now_us(&self) -> u64 {
        SystemClock.now().get()
    }
}
