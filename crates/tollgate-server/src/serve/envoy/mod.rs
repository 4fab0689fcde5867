//! The Envoy door: decisions for proxies that ask over Envoy's rate limit protocol, by files of
//! envoyproxy/ratelimit.
//!
//! A request's way: `service` (gRPC) or `json` reads it, `turns` finds its limits and charges them
//! all or none, `answer` says what came of it. `files` takes up changed files, `environment` is how
//! users of envoyproxy/ratelimit have set it up.

mod answer;
mod environment;
mod files;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod json;
mod near_limit;
mod proto;
mod reset;
mod service;
#[cfg(test)]
mod tests;
mod turns;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tollgate::policy::Answers;
use tollgate::policy::envoy::{EnvoyConfig, EnvoyErrors};
use tollgate::{ChargesError, Gate};

pub(crate) use environment::{Environment, Place};
pub(crate) use reset::ResetError;
pub(crate) use service::serve;

use crate::metrics::{Labels, Page};
use files::EnvoyFiles;
use near_limit::NearLimit;
use proto::{RateLimitRequest, RateLimitResponse};
use turns::Turn;

/// Decides about descriptors.
pub(crate) struct EnvoyDoor {
    gate: Gate,
    config: ArcSwap<EnvoyConfig>,
    files: Option<EnvoyFiles>,
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
    /// When a limit counts as nearly used up.
    pub(crate) near_limit: NearLimit,
}

#[derive(Default)]
struct Counters {
    ok: AtomicU64,
    over_limit: AtomicU64,
    near_limit: AtomicU64,
    shadow_over_limit: AtomicU64,
    invalid: AtomicU64,
}

/// What the door has answered so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DoorStats {
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    /// Let pass, but not many more will be.
    pub(crate) near_limit: u64,
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
    /// A door with the limits of a folder.
    pub(crate) fn open(
        folder: &Path,
        gate: Gate,
        settings: DoorSettings,
    ) -> Result<Self, EnvoyErrors> {
        let (files, config) = EnvoyFiles::open(folder)?;
        Ok(Self { files: Some(files), ..Self::new(gate, config, settings) })
    }

    fn new(gate: Gate, config: EnvoyConfig, settings: DoorSettings) -> Self {
        let config = ArcSwap::from_pointee(config);
        Self { gate, config, files: None, settings, counters: Counters::default() }
    }

    /// Decides by what is new in the folder from now on. Counts are kept, and a bad set of files
    /// changes nothing.
    pub(crate) fn reload_if_changed(&self) {
        if let Some(config) = self.files.as_ref().and_then(EnvoyFiles::reload_if_changed) {
            self.replace(config);
        }
    }

    /// Reads the folder again, whether it has changed or not.
    pub(crate) fn reload(&self) {
        if let Some(config) = self.files.as_ref().and_then(EnvoyFiles::reload) {
            self.replace(config);
        }
    }

    fn replace(&self, config: EnvoyConfig) {
        self.config.store(Arc::new(config));
    }

    /// What is wrong with the files as they are now, if the limits in force are older ones.
    pub(crate) fn error(&self) -> Option<String> {
        self.files.as_ref().and_then(EnvoyFiles::error)
    }

    /// The limits that are in force.
    pub(crate) fn config(&self) -> Arc<EnvoyConfig> {
        self.config.load_full()
    }

    pub(crate) fn stats(&self) -> DoorStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { ok, over_limit, near_limit, shadow_over_limit, invalid } = &self.counters;
        DoorStats {
            ok: read(ok),
            over_limit: read(over_limit),
            near_limit: read(near_limit),
            shadow_over_limit: read(shadow_over_limit),
            invalid: read(invalid),
        }
    }

    /// The numbers of the door, for those who run it.
    pub(crate) fn tell_metrics(&self, page: &mut Page) {
        let DoorStats { ok, over_limit, near_limit, shadow_over_limit, invalid } = self.stats();
        let answered = |answer, count| (Labels(vec![("answer", answer)]), count);
        page.counter(
            "tollgate_envoy_requests_total",
            "Requests for Envoy, by what they were answered.",
            [answered("ok", ok), answered("over_limit", over_limit), answered("invalid", invalid)],
        );
        page.counter(
            "tollgate_envoy_near_limit_total",
            "Requests that were let pass when a limit was nearly used up.",
            [(Labels::default(), near_limit)],
        );
        page.counter(
            "tollgate_envoy_shadow_over_limit_total",
            "Requests that a limit in shadow mode would have refused.",
            [(Labels::default(), shadow_over_limit)],
        );
        page.gauge(
            "tollgate_envoy_config_is_current",
            "0 if the files as they are now cannot be used, and older limits are in force.",
            [(Labels::default(), u8::from(self.error().is_none()))],
        );
    }

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
        let is_near = |turn: &Turn<'_>| {
            turn.decision.is_some_and(|decision| self.settings.near_limit.is_near(&decision))
        };
        if !answer.is_over_limit() && turns.iter().any(is_near) {
            self.counters.near_limit.fetch_add(1, Ordering::Relaxed);
        }
        if turns.iter().any(|turn| turn.is_shadow && turn.is_over_limit()) {
            self.counters.shadow_over_limit.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer)
    }
}
