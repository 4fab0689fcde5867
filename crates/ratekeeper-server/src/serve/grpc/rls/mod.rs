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
mod limit_headers;
mod limit_metrics;
mod metadata;
mod metrics;
pub(super) mod proto;
mod quota;
mod record;
mod reset;
mod response;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ratekeeper::files::FileStamps;
use ratekeeper::policy::ResponseSettings;
use ratekeeper::policy::envoy::{EnvoyConfig, EnvoyErrors, MatchedLimits};
use ratekeeper::{Micros, NearLimit, PolicyLimiter};
use serde_json::{Value, json};
use tokio::sync::watch;

pub(crate) use descriptors::GlobalModes;
pub(crate) use environment::{BindAddress, Environment, IgnoredVariable};
pub(crate) use error::RateLimitRequestError;
pub(crate) use files::ConfigFolder;
pub(super) use kuadrant::KuadrantError;
pub(crate) use limit_headers::LimitHeaders;
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
    /// Without it, only descriptors that bring their own limit are limited.
    folder: Option<ConfigFolder>,
    loads: LoadState,
    /// Whether there are limits, or need not be any.
    is_ready: watch::Sender<bool>,
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
    /// The same, as envoyproxy/ratelimit does.
    pub(crate) limit_headers: Option<LimitHeaders>,
    /// Whether responses have dynamic metadata.
    pub(crate) has_dynamic_metadata: bool,
    pub(crate) modes: GlobalModes,
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

    fn is_from_file(&self) -> bool {
        self.folder.is_some()
    }

    fn state(&self) -> &LoadState {
        &self.loads
    }

    fn source(&self) -> String {
        self.folder.as_ref().map_or("no folder".into(), ConfigFolder::to_string)
    }

    fn read(&self) -> (Self::Value, FileStamps) {
        match &self.folder {
            Some(folder) => folder.read(),
            None => (Ok(EnvoyConfig::default()), FileStamps::default()),
        }
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
    ConfigFolder::new(folder).read().0
}

impl RateLimitService {
    /// Returns a service with the limits of a folder. Without any, it is not ready.
    pub(crate) fn open(
        folder: ConfigFolder,
        limiter: PolicyLimiter,
        settings: RateLimitSettings,
    ) -> Result<Self, EnvoyErrors> {
        let (config, stamps) = folder.read();
        let config = config?;
        if config.limits().is_empty() {
            tracing::warn!(
                %folder,
                "there is no limit in the files for Envoy: all its requests are allowed, and the server is \
                 not ready"
            );
        }
        let is_ready = watch::Sender::new(!config.limits().is_empty());
        let (folder, loads) = (Some(folder), LoadState::loaded(stamps));
        Ok(Self { folder, loads, is_ready, ..Self::new(limiter, config, settings) })
    }

    /// Returns a service without files, for descriptors that bring their own limit.
    pub(crate) fn without_files(limiter: PolicyLimiter, settings: RateLimitSettings) -> Self {
        Self::new(limiter, EnvoyConfig::default(), settings)
    }

    fn new(limiter: PolicyLimiter, config: EnvoyConfig, settings: RateLimitSettings) -> Self {
        let limit_metrics =
            ArcSwap::from_pointee(LimitMetrics::new(&config, &LimitMetrics::default()));
        Self {
            limiter,
            config: ArcSwap::from_pointee(config),
            folder: None,
            loads: LoadState::loaded(FileStamps::default()),
            is_ready: watch::Sender::new(true),
            settings,
            counters: ResponseCounters::default(),
            limit_metrics,
            metrics: Arc::default(),
        }
    }

    /// Whether there are files; otherwise only descriptors that bring their own limit are limited.
    pub(crate) fn has_files(&self) -> bool {
        self.folder.is_some()
    }

    /// Whether the service is to get requests: it has limits, or needs none.
    pub(crate) fn is_ready(&self) -> bool {
        *self.is_ready.borrow()
    }

    /// Returns a receiver of changes to [`is_ready`](Self::is_ready).
    pub(in crate::serve::grpc) fn watch_ready(&self) -> watch::Receiver<bool> {
        self.is_ready.subscribe()
    }

    /// Returns the service with these request metrics.
    pub(crate) fn with_metrics(self, metrics: &Arc<RequestMetrics>) -> Self {
        Self { metrics: Arc::clone(metrics), ..self }
    }

    fn replace(&self, mut config: EnvoyConfig) {
        self.limit_metrics.store(Arc::new(LimitMetrics::new(&config, &self.limit_metrics.load())));
        config.inherit_looks(&self.config.load());
        let has_limits = !config.limits().is_empty();
        self.config.store(Arc::new(config));
        self.is_ready.send_replace(has_limits);
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
        let modes = self.settings.modes;
        let mut checks = descriptors::checks_of(request, &matched, modes);
        let has_open_quota = self.has_open_quota(&matched);
        descriptors::decide(&self.limiter, &mut checks, has_open_quota).await?;
        let now = self.limiter.engine().now();
        let mut response = response::response(request, &checks, &self.settings, now);
        let is_over_limit = response.is_over_limit();
        let request_id = is_over_limit.then(|| self.limiter.refusals().new_request_id());
        if let Some(id) = &request_id {
            response.add_request_id(id);
        }
        self.count_response(&checks, is_over_limit);
        self.record(&checks, !is_over_limit, request_id.as_ref(), now);
        if trace::is_on() {
            *about = descriptors::decision_info(&checks);
        }
        Ok(response)
    }

    fn count_response(&self, checks: &[DescriptorCheck<'_>], is_over_limit: bool) {
        let ResponseCounters { ok, over_limit, shadow_over_limit, .. } = &self.counters;
        increment(if is_over_limit { over_limit } else { ok });
        if checks.iter().any(|check| check.is_shadow && check.is_over_limit()) {
            increment(shadow_over_limit);
        }
    }

    /// Whether a descriptor in quota mode has no limit.
    fn has_open_quota(&self, matched: &[Option<MatchedLimits<'_>>]) -> bool {
        self.settings.modes.is_quota && matched.iter().any(Option::is_none)
    }
}
