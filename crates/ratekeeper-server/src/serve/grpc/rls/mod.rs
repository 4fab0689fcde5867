//! Envoy's rate limit service (RLS), with limits from files of envoyproxy/ratelimit.
//!
//! The gRPC handler or `json` decodes a request, `descriptors` resolves its limits and charges them all or
//! none, and `response` makes the response. `kuadrant` reserves for descriptors. `files` reads the files, and `environment` the environment
//! variables of envoyproxy/ratelimit.

mod descriptors;
mod environment;
mod error;
mod files;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod json;
mod kuadrant;
mod limit_metrics;
mod metrics;
pub(super) mod proto;
mod reset;
mod response;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use ratekeeper::files::FileStamps;
use ratekeeper::policy::ResponseSettings;
use ratekeeper::policy::envoy::{EnvoyConfig, EnvoyErrors};
use ratekeeper::{Micros, NearLimit, PolicyLimiter};
use serde_json::{Value, json};

pub(crate) use environment::{BindAddress, Environment};
pub(crate) use error::RateLimitRequestError;
pub(super) use kuadrant::KuadrantError;
pub(crate) use reset::ResetError;

use crate::reload::{LoadState, LoadStatus, Reload};
use crate::serve::request_metrics::{Outcome, RequestMetrics, Tally};
use crate::trace::{self, DecisionInfo, DecisionSpan, Parent};
use descriptors::DescriptorCheck;
use limit_metrics::{LimitMetrics, increment};
use metrics::ResponseCounters;
use proto::{RateLimitRequest, RateLimitResponse};

/// Decides requests of Envoy by their descriptors.
pub(crate) struct RateLimitService {
    limiter: PolicyLimiter,
    config: ArcSwap<EnvoyConfig>,
    /// The folder of the files. Only tests have none.
    folder: Option<PathBuf>,
    loads: LoadState,
    settings: RateLimitSettings,
    counters: ResponseCounters,
    limit_metrics: ArcSwap<LimitMetrics>,
    pub(super) metrics: Arc<RequestMetrics>,
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

/// Usage carries over, and files with an error change nothing.
impl Reload for RateLimitService {
    type Value = Result<EnvoyConfig, EnvoyErrors>;
    type Error = EnvoyLoadError;

    fn what(&self) -> &'static str {
        "Envoy rate limits"
    }

    fn state(&self) -> &LoadState {
        &self.loads
    }

    fn source(&self) -> String {
        self.folder.as_ref().map_or("no folder".into(), |folder| folder.display().to_string())
    }

    fn read(&self) -> (Self::Value, FileStamps) {
        files::read(self.folder.as_deref().unwrap_or(Path::new("")))
    }

    fn activate(&self, config: Self::Value) -> Result<String, EnvoyLoadError> {
        let config = config?;
        let (domains, limits) = (config.domains().len(), config.limits().len());
        if limits == 0 && !self.config.load().limits().is_empty() {
            return Err(EnvoyLoadError::NoLimits(self.source()));
        }
        self.replace(config);
        Ok(format!("domains={domains} limits={limits}"))
    }
}

/// Why new files are not activated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvoyLoadError {
    #[error(transparent)]
    Files(#[from] EnvoyErrors),
    /// Most likely the files are gone, and not all limits with them.
    #[error("{0}: there are no limits any more; to remove all of them, restart the server")]
    NoLimits(String),
}

/// Reads the limits in a folder as [`RateLimitService::open`] does.
pub(crate) fn read_config(folder: &Path) -> Result<EnvoyConfig, EnvoyErrors> {
    files::read(folder).0
}

impl RateLimitService {
    /// Returns a service with the limits of a folder.
    pub(crate) fn open(
        folder: &Path,
        limiter: PolicyLimiter,
        settings: RateLimitSettings,
    ) -> Result<Self, EnvoyErrors> {
        let (config, stamps) = files::read(folder);
        if config.as_ref().is_ok_and(|config| config.limits().is_empty()) {
            let folder = folder.display();
            tracing::warn!(%folder, "there are no limits for Envoy, so that all its requests are allowed");
        }
        let (folder, loads) = (Some(folder.to_path_buf()), LoadState::loaded(stamps));
        Ok(Self { folder, loads, ..Self::new(limiter, config?, settings) })
    }

    fn new(limiter: PolicyLimiter, config: EnvoyConfig, settings: RateLimitSettings) -> Self {
        let limit_metrics =
            ArcSwap::from_pointee(LimitMetrics::new(&config, &LimitMetrics::default()));
        let config = ArcSwap::from_pointee(config);
        let (counters, metrics) = (ResponseCounters::default(), Arc::default());
        let loads = LoadState::loaded(FileStamps::default());
        Self { limiter, config, folder: None, loads, settings, counters, limit_metrics, metrics }
    }

    /// Returns the service with these request metrics.
    pub(crate) fn with_metrics(self, metrics: &Arc<RequestMetrics>) -> Self {
        Self { metrics: Arc::clone(metrics), ..self }
    }

    fn replace(&self, config: EnvoyConfig) {
        self.limit_metrics.store(Arc::new(LimitMetrics::new(&config, &self.limit_metrics.load())));
        config.inherit_looks(&self.config.load());
        self.config.store(Arc::new(config));
    }

    /// Returns the active limits.
    pub(crate) fn config(&self) -> Arc<EnvoyConfig> {
        self.config.load_full()
    }

    /// Returns the active limits and the last load, for the admin listener.
    pub(crate) fn status(&self) -> Value {
        let config = self.config.load();
        let (domains, limits) = (config.domains(), config.limits().len());
        let LoadStatus { version, loaded_at, failures, last_error, failed_at, .. } =
            self.loads.status();
        json!({
            "domains": domains,
            "limits": limits,
            "version": version,
            "loaded_at_us": loaded_at.get(),
            "failures": failures,
            "error": last_error,
            "failed_at_us": failed_at.map(|at| at.get()),
        })
    }

    /// Returns the present time by the engine's clock.
    pub(super) fn now(&self) -> Micros {
        self.limiter.engine().now()
    }

    /// Decides a request in JSON, as for `/json`. Returns the status and the body of the response.
    pub(crate) async fn respond_json(&self, body: &[u8]) -> (u16, String) {
        json::respond(self, body).await
    }

    /// Decides a request of gRPC, with its metrics and its span.
    pub(super) async fn decide_measured(
        &self,
        request: &RateLimitRequest,
        parent: Option<Parent>,
    ) -> Result<RateLimitResponse, RateLimitRequestError> {
        let (began, mut about) = (self.limiter.engine().now(), DecisionInfo::default());
        let decided = self.decide(request, &mut about).await;
        let outcome = match &decided {
            Ok(response) => Outcome::of(!response.is_over_limit()),
            Err(_) => Outcome::Error,
        };
        let ended = self.limiter.engine().now();
        self.metrics.grpc.record(&Tally::one(outcome), ended.since(began));
        if trace::is_on() {
            let (protocol, info, outcome) = ("grpc", &about, outcome.name());
            trace::record(&DecisionSpan { protocol, info, outcome, began, ended, parent });
        }
        decided
    }

    async fn decide(
        &self,
        request: &RateLimitRequest,
        about: &mut DecisionInfo,
    ) -> Result<RateLimitResponse, RateLimitRequestError> {
        let decided = self.try_decide(request, about).await;
        if decided.is_err() {
            self.count_invalid();
        }
        decided
    }

    fn count_invalid(&self) {
        increment(&self.counters.invalid);
    }

    async fn try_decide(
        &self,
        request: &RateLimitRequest,
        about: &mut DecisionInfo,
    ) -> Result<RateLimitResponse, RateLimitRequestError> {
        descriptors::check_request(request)?;
        let config = self.config.load();
        let matched = config.resolve(&request.domain, &request.descriptors);
        let mut checks = descriptors::checks_of(request, &matched, self.settings.is_shadow);
        descriptors::decide(&self.limiter, &mut checks).await?;
        let response = response::response(&checks, request.descriptors.len(), &self.settings);
        let is_over_limit = response.is_over_limit();
        let ResponseCounters { ok, over_limit, shadow_over_limit, .. } = &self.counters;
        increment(if is_over_limit { over_limit } else { ok });
        if checks.iter().any(|check| check.is_shadow && check.is_over_limit()) {
            increment(shadow_over_limit);
        }
        self.record(&checks, !is_over_limit);
        if trace::is_on() {
            *about = descriptors::decision_info(&checks);
        }
        Ok(response)
    }

    /// Counts the decisions of the limits. A limit that was not charged because another one denied the
    /// request has made no decision.
    fn record(&self, checks: &[DescriptorCheck<'_>], is_allowed: bool) {
        let (metrics, now) = (self.limit_metrics.load(), self.limiter.engine().now());
        for check in checks.iter().filter(|check| check.is_charge()) {
            let (counters, is_over) = (metrics.of(check.limit), check.is_over_limit());
            match (is_over, check.is_shadow) {
                (true, true) => increment(&counters.shadow_denied),
                (true, false) => increment(&counters.denied),
                (false, _) if is_allowed => increment(&counters.allowed),
                (false, _) => continue,
            }
            let is_near = |decision| self.settings.near_limit.is_near(decision);
            if is_allowed && check.decision.as_ref().is_some_and(is_near) {
                increment(&counters.near_limit);
            }
            let is_denied = is_over && !check.is_shadow;
            self.metrics.top.count(check.limit.label(), check.key.as_bytes(), is_denied, now);
        }
    }
}
