//! The Envoy door: decisions for proxies that ask over Envoy's rate limit protocol, by files of
//! envoyproxy/ratelimit.
//!
//! A request's way: `service` (gRPC) or `json` reads it, `turns` finds its limits and charges them
//! all or none, `answer` says what came of it. `files` takes up changed files, `environment` is how
//! users of envoyproxy/ratelimit have set it up.

mod answer;
mod environment;
mod files;
#[cfg_attr(not(test), allow(dead_code, reason = "for the HTTP door"))]
mod json;
mod proto;
mod service;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tollgate::policy::Answers;
use tollgate::policy::envoy::EnvoyConfig;
use tollgate::{ChargesError, Gate};

pub(crate) use environment::Environment;
pub(crate) use files::{EnvoyFiles, watch};
pub(crate) use service::serve;

use proto::{RateLimitRequest, RateLimitResponse};

/// Decides about descriptors.
pub(crate) struct EnvoyDoor {
    gate: Gate,
    config: ArcSwap<EnvoyConfig>,
    settings: DoorSettings,
    counters: Counters,
}

/// How the door answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct DoorSettings {
    /// Which headers Envoy is to add to what callers get; none if absent.
    pub(crate) headers: Option<Answers>,
    /// Does every limit only count?
    pub(crate) is_shadow: bool,
}

#[derive(Default)]
struct Counters {
    ok: AtomicU64,
    over_limit: AtomicU64,
    shadow_over_limit: AtomicU64,
    invalid: AtomicU64,
}

/// What the door has answered so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DoorStats {
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    /// Let pass by a limit that only counts.
    pub(crate) shadow_over_limit: u64,
    pub(crate) invalid: u64,
}

/// A request that makes no sense. Envoy is told so, and does what it does when nobody answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid(pub(crate) String);

impl From<ChargesError> for Invalid {
    fn from(error: ChargesError) -> Self {
        Self(error.to_string())
    }
}

impl EnvoyDoor {
    pub(crate) fn new(gate: Gate, config: EnvoyConfig, settings: DoorSettings) -> Self {
        let config = ArcSwap::from_pointee(config);
        Self { gate, config, settings, counters: Counters::default() }
    }

    /// Decides by these limits from now on. Counts are kept.
    pub(crate) fn replace(&self, config: EnvoyConfig) {
        self.config.store(Arc::new(config));
    }

    /// The limits that are in force.
    pub(crate) fn config(&self) -> Arc<EnvoyConfig> {
        self.config.load_full()
    }

    pub(crate) fn stats(&self) -> DoorStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { ok, over_limit, shadow_over_limit, invalid } = &self.counters;
        DoorStats {
            ok: read(ok),
            over_limit: read(over_limit),
            shadow_over_limit: read(shadow_over_limit),
            invalid: read(invalid),
        }
    }

    #[cfg_attr(not(test), allow(dead_code, reason = "for the HTTP door"))]
    /// A request's body in JSON, as for `/json`: the status and the body of the answer.
    pub(crate) async fn answer_json(&self, body: &[u8]) -> (u16, String) {
        json::answer(self, body).await
    }

    async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Invalid> {
        let decided = self.try_decide(request).await;
        if decided.is_err() {
            self.counters.invalid.fetch_add(1, Ordering::Relaxed);
        }
        decided
    }

    async fn try_decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Invalid> {
        turns::check_request(request)?;
        let config = self.config.load();
        let matched = config.resolve(&request.domain, &request.descriptors);
        let mut turns = turns::of(request, &matched, self.settings.is_shadow);
        turns::decide(&self.gate, &mut turns).await?;
        let answer = answer::answer(&turns, request.descriptors.len(), &self.settings);
        let counter = match answer.is_over_limit() {
            true => &self.counters.over_limit,
            false => &self.counters.ok,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if turns.iter().any(|turn| turn.is_shadow && turn.is_over_limit()) {
            self.counters.shadow_over_limit.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer)
    }
}
