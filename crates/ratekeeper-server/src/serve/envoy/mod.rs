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
mod limit_meters;
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
use ratekeeper::NearLimit;
use ratekeeper::files::LoadError;
use ratekeeper::policy::ResponseSettings;
use ratekeeper::policy::envoy::{EnvoyConfig, EnvoyErrors};
use ratekeeper::{ChargesError, PolicyLimiter};
use serde_json::{Value, json};

pub(crate) use environment::{Environment, Place};
pub(crate) use reset::ResetError;
pub(crate) use service::Worker;

use super::meters::{Meters, Outcome, Tally};
use crate::metrics::{Labels, Page, one};
use crate::reload::{Reload, ReloadState, When};
use crate::trace::{self, About, Parent, Question};
use files::{EnvoyFiles, Fresh};
use limit_meters::{LimitMeters, count};
use proto::{RateLimitRequest, RateLimitResponse};
use turns::Turn;

/// Decides about descriptors.
pub(crate) struct EnvoyDoor {
    gate: PolicyLimiter,
    config: ArcSwap<EnvoyConfig>,
    files: Option<EnvoyFiles>,
    reload: ReloadState,
    settings: DoorSettings,
    counters: Counters,
    limit_meters: ArcSwap<LimitMeters>,
    meters: Arc<Meters>,
}

/// How the door answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct DoorSettings {
    /// Which headers Envoy is to add to what callers get; none if absent.
    pub(crate) headers: Option<ResponseSettings>,
    /// Does every limit only count?
    pub(crate) is_shadow: bool,
    /// From where on a limit is nearly used up.
    pub(crate) near_limit: NearLimit,
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

/// Counts are kept, and a bad set of files changes nothing.
impl Reload for EnvoyDoor {
    type Fresh = Fresh;

    fn state(&self) -> &ReloadState {
        &self.reload
    }

    fn read(&self, when: When) -> Option<Fresh> {
        self.files.as_ref()?.read(when)
    }

    fn apply(&self, fresh: Fresh) -> bool {
        let files = self.files.as_ref();
        let config = files.and_then(|files| files.take_up(fresh, self.gate.engine().now()));
        config.map(|config| self.replace(config)).is_some()
    }

    fn reject(&self, error: &LoadError, is_first: bool) {
        let now = self.gate.engine().now();
        self.files.iter().for_each(|files| files.reject(error, is_first, now));
    }
}

impl EnvoyDoor {
    /// A door with the limits of a folder.
    pub(crate) fn open(
        folder: &Path,
        gate: PolicyLimiter,
        settings: DoorSettings,
    ) -> Result<Self, EnvoyErrors> {
        let (files, config) = EnvoyFiles::open(folder, gate.engine().now())?;
        Ok(Self { files: Some(files), ..Self::new(gate, config, settings) })
    }

    fn new(gate: PolicyLimiter, config: EnvoyConfig, settings: DoorSettings) -> Self {
        let limit_meters =
            ArcSwap::from_pointee(LimitMeters::new(&config, &LimitMeters::default()));
        let config = ArcSwap::from_pointee(config);
        let (counters, meters) = (Counters::default(), Arc::default());
        let reload = ReloadState::default();
        Self { gate, config, files: None, reload, settings, counters, limit_meters, meters }
    }

    /// The same, with what it does for everybody to see.
    pub(crate) fn watched_by(self, meters: &Arc<Meters>) -> Self {
        Self { meters: Arc::clone(meters), ..self }
    }

    fn replace(&self, config: EnvoyConfig) {
        self.limit_meters.store(Arc::new(LimitMeters::new(&config, &self.limit_meters.load())));
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

    /// The numbers of the door, for those who run it.
    pub(crate) fn tell_metrics(&self, page: &mut Page) {
        let DoorStats { ok, over_limit, shadow_over_limit, invalid } = self.stats();
        let answered = |answer, count| (Labels(vec![("answer", answer)]), count);
        page.counter(
            "ratekeeper_envoy_requests_total",
            "Requests for Envoy, by what they were answered.",
            [answered("ok", ok), answered("over_limit", over_limit), answered("invalid", invalid)],
        );
        page.counter(
            "ratekeeper_envoy_shadow_over_limit_total",
            "Requests that a limit in shadow mode would have refused.",
            [(Labels::default(), shadow_over_limit)],
        );
        self.limit_meters.load().tell(page);
        let limits = self.config.load().limits().len();
        page.gauge("ratekeeper_envoy_limits", "Limits of descriptors in force.", one(limits));
        if let Some(files) = &self.files {
            files.tell_metrics(page);
        }
    }

    /// The limits in force and what is wrong with the files, for those who run it.
    pub(crate) fn tell(&self) -> Value {
        let config = self.config.load();
        let (domains, limits) = (config.domains(), config.limits().len());
        let files = self.files.as_ref().map(EnvoyFiles::loaded).unwrap_or_default();
        json!({
            "domains": domains,
            "limits": limits,
            "version": files.version,
            "loaded_at_us": files.loaded_at.get(),
            "failures": files.failures,
            "error": files.last_error,
            "failed_at_us": files.failed_at.map(|at| at.get()),
        })
    }

    /// A request's body in JSON, as for `/json`: the status and the body of the answer.
    pub(crate) async fn answer_json(&self, body: &[u8]) -> (u16, String) {
        json::answer(self, body).await
    }

    /// The same over gRPC, counted and timed.
    async fn decide_measured(
        &self,
        request: &RateLimitRequest,
        parent: Option<Parent>,
    ) -> Result<RateLimitResponse, Invalid> {
        let (began, mut about) = (self.gate.engine().now(), About::default());
        let decided = self.decide(request, &mut about).await;
        let outcome = match &decided {
            Ok(answer) => Outcome::of(!answer.is_over_limit()),
            Err(_) => Outcome::Error,
        };
        let ended = self.gate.engine().now();
        self.meters.grpc.record(&Tally::one(outcome), ended.since(began));
        if trace::is_on() {
            let About { limit, is_degraded } = about;
            let (door, limit, outcome) = ("grpc", limit.as_deref(), outcome.name());
            trace::tell(&Question { door, limit, outcome, is_degraded, began, ended, parent });
        }
        decided
    }

    async fn decide(
        &self,
        request: &RateLimitRequest,
        about: &mut About,
    ) -> Result<RateLimitResponse, Invalid> {
        let decided = self.try_decide(request, about).await;
        if decided.is_err() {
            self.count_invalid();
        }
        decided
    }

    fn count_invalid(&self) {
        self.counters.invalid.fetch_add(1, Ordering::Relaxed);
    }

    async fn try_decide(
        &self,
        request: &RateLimitRequest,
        about: &mut About,
    ) -> Result<RateLimitResponse, Invalid> {
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
        self.note(&turns, !answer.is_over_limit());
        if trace::is_on() {
            *about = turns::about(&turns);
        }
        Ok(answer)
    }

    /// Counts what the limits have said. One that was not charged because another refused has said
    /// nothing.
    fn note(&self, turns: &[Turn<'_>], passes: bool) {
        let (meters, now) = (self.limit_meters.load(), self.gate.engine().now());
        for turn in turns.iter().filter(|turn| turn.is_take()) {
            let (meter, is_over) = (meters.of(turn.limit), turn.is_over_limit());
            match (is_over, turn.is_shadow) {
                (true, true) => count(&meter.shadow_denied),
                (true, false) => count(&meter.denied),
                (false, _) if passes => count(&meter.allowed),
                (false, _) => continue,
            }
            let is_near = |decision| self.settings.near_limit.is_near(decision);
            if passes && turn.decision.as_ref().is_some_and(is_near) {
                count(&meter.near_limit);
            }
            let is_denied = is_over && !turn.is_shadow;
            self.meters.top.count(turn.limit.label(), turn.key.as_bytes(), is_denied, now);
        }
    }
}
