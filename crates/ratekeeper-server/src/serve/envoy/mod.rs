//! Envoy's rate limit service (RLS), with limits from files of envoyproxy/ratelimit.
//!
//! `service` (gRPC) or `json` decodes a request, `turns` resolves its limits and charges them all or none,
//! and `answer` makes the response. `files` reads the files, and `environment` the environment variables
//! of envoyproxy/ratelimit.

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

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use ratekeeper::NearLimit;
use ratekeeper::files::FileStamps;
use ratekeeper::policy::ResponseSettings;
use ratekeeper::policy::envoy::{EnvoyConfig, EnvoyErrors};
use ratekeeper::{ChargesError, PolicyLimiter};
use serde_json::{Value, json};

pub(crate) use environment::{Environment, Place};
pub(crate) use reset::ResetError;
pub(crate) use service::GrpcHandler;

use super::meters::{Meters, Outcome, Tally};
use crate::metrics::{Labels, Page, one};
use crate::reload::{LoadState, LoadStatus, Reload};
use crate::trace::{self, About, Parent, Question};
use limit_meters::{LimitMeters, count};
use proto::{RateLimitRequest, RateLimitResponse};
use turns::Turn;

/// Decides about descriptors.
pub(crate) struct RateLimitService {
    gate: PolicyLimiter,
    config: ArcSwap<EnvoyConfig>,
    /// Where the limits come from, except in tests.
    folder: Option<PathBuf>,
    loads: LoadState,
    settings: RateLimitSettings,
    counters: Counters,
    limit_meters: ArcSwap<LimitMeters>,
    meters: Arc<Meters>,
}

/// How the service responds.
#[derive(Clone, Debug, Default)]
pub(crate) struct RateLimitSettings {
    /// The headers that Envoy adds to the responses of clients; none if absent.
    pub(crate) headers: Option<ResponseSettings>,
    /// Whether all limits are in shadow mode.
    pub(crate) is_shadow: bool,
    /// From which usage on a limit counts as nearly used up.
    pub(crate) near_limit: NearLimit,
}

#[derive(Default)]
struct Counters {
    ok: AtomicU64,
    over_limit: AtomicU64,
    shadow_over_limit: AtomicU64,
    invalid: AtomicU64,
}

/// The responses so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimitStats {
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    /// Allowed by a limit in shadow mode.
    pub(crate) shadow_over_limit: u64,
    pub(crate) invalid: u64,
}

/// Why a request is invalid. Envoy then applies its failure mode.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid(pub(crate) String);

impl From<ChargesError> for Invalid {
    fn from(error: ChargesError) -> Self {
        Self(error.to_string())
    }
}

/// Counts are kept, and files with an error change nothing.
impl Reload for RateLimitService {
    type Value = Result<EnvoyConfig, String>;

    const WHAT: &'static str = "Envoy rate limits";

    fn state(&self) -> &LoadState {
        &self.loads
    }

    fn source(&self) -> String {
        self.folder.as_ref().map_or("no folder".into(), |folder| folder.display().to_string())
    }

    fn read(&self) -> (Self::Value, FileStamps) {
        let Some(folder) = &self.folder else {
            return (Err("there is no folder".into()), FileStamps::default());
        };
        let (config, stamps) = files::read(folder);
        (config.map_err(|errors| errors.to_string()), stamps)
    }

    fn activate(&self, config: Self::Value) -> Result<String, String> {
        let config = config?;
        let (domains, limits) = (config.domains().len(), config.limits().len());
        self.replace(config);
        Ok(format!("domains={domains} limits={limits}"))
    }
}

impl RateLimitService {
    /// Returns a service with the limits of a folder.
    pub(crate) fn open(
        folder: &Path,
        gate: PolicyLimiter,
        settings: RateLimitSettings,
    ) -> Result<Self, EnvoyErrors> {
        let (config, stamps) = files::read(folder);
        let (folder, loads) = (Some(folder.to_path_buf()), LoadState::loaded(stamps));
        Ok(Self { folder, loads, ..Self::new(gate, config?, settings) })
    }

    fn new(gate: PolicyLimiter, config: EnvoyConfig, settings: RateLimitSettings) -> Self {
        let limit_meters =
            ArcSwap::from_pointee(LimitMeters::new(&config, &LimitMeters::default()));
        let config = ArcSwap::from_pointee(config);
        let (counters, meters) = (Counters::default(), Arc::default());
        let loads = LoadState::loaded(FileStamps::default());
        Self { gate, config, folder: None, loads, settings, counters, limit_meters, meters }
    }

    /// Records what it does in these metrics.
    pub(crate) fn measured_by(self, meters: &Arc<Meters>) -> Self {
        Self { meters: Arc::clone(meters), ..self }
    }

    fn replace(&self, config: EnvoyConfig) {
        self.limit_meters.store(Arc::new(LimitMeters::new(&config, &self.limit_meters.load())));
        self.config.store(Arc::new(config));
    }

    /// Returns the active limits.
    pub(crate) fn config(&self) -> Arc<EnvoyConfig> {
        self.config.load_full()
    }

    pub(crate) fn stats(&self) -> RateLimitStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { ok, over_limit, shadow_over_limit, invalid } = &self.counters;
        RateLimitStats {
            ok: read(ok),
            over_limit: read(over_limit),
            shadow_over_limit: read(shadow_over_limit),
            invalid: read(invalid),
        }
    }

    /// Writes the metrics of the service.
    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let RateLimitStats { ok, over_limit, shadow_over_limit, invalid } = self.stats();
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
        page.gauge("ratekeeper_envoy_limits", "Active limits of descriptors.", one(limits));
        if self.folder.is_some() {
            self.write_load_metrics(page);
        }
    }

    fn write_load_metrics(&self, page: &mut Page) {
        let LoadStatus { loaded_at, failures, error, failed_at, .. } = self.loads.status();
        let help = "Whether the last load of the files succeeded.";
        page.gauge("ratekeeper_envoy_config_ok", help, one(u8::from(error.is_none())));
        let help = "When the active limits were loaded.";
        let at = loaded_at.get() / 1_000_000;
        page.gauge("ratekeeper_envoy_config_loaded_timestamp_seconds", help, one(at));
        let help = "When the last load failed; 0 if it succeeded.";
        let failed_at = failed_at.map_or(0, |at| at.get() / 1_000_000);
        page.gauge("ratekeeper_envoy_config_failed_timestamp_seconds", help, one(failed_at));
        let help = "Loads of the files that failed.";
        page.counter("ratekeeper_envoy_config_failures_total", help, one(failures));
    }

    /// Returns the active limits and the last load, for the admin listener.
    pub(crate) fn status(&self) -> Value {
        let config = self.config.load();
        let (domains, limits) = (config.domains(), config.limits().len());
        let LoadStatus { version, loaded_at, failures, error, failed_at } = self.loads.status();
        json!({
            "domains": domains,
            "limits": limits,
            "version": version,
            "loaded_at_us": loaded_at.get(),
            "failures": failures,
            "error": error,
            "failed_at_us": failed_at.map(|at| at.get()),
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
