//! The policy file of a running server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use ratekeeper::files::{FileStamps, LoadError};
use ratekeeper::policy::NoSources;
use ratekeeper::shared::StoreState;
use ratekeeper::{Policy, PolicyErrors, PolicyFiles, PolicyLimiter, PolicyLoadError, read_policy};

use super::{LoadState, LoadStatus, Reload};
use crate::failure::Failure;
use crate::top::Top;

/// How long leaving the store may take. A store that does not respond is not waited for.
const RETURN_TIMEOUT: Duration = Duration::from_secs(2);

/// The policy of a server that is started without one.
const NO_LIMITS: &str = "version: 1\nlimits: []\n";

/// The active policy, and the file that it comes from, if there is one.
pub(crate) struct PolicyFile {
    limiter: PolicyLimiter,
    origin: Origin,
    loads: LoadState,
    top: Arc<Top>,
    program: Program,
}

/// The program that applies a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The gateway, which forwards requests and sees their end.
    Gateway,
    /// The decision server, which only decides about them.
    Serve,
}

impl Program {
    /// Logs the dependencies that have no effect in this program.
    fn log_dependencies_without_effect(self, policy: &Policy) {
        for dependency in policy.dependencies() {
            let name = dependency.name();
            if self != Self::Gateway {
                tracing::warn!(
                    dependency = name,
                    "a dependency has no effect here: this server calls none; use the gateway or the library"
                );
            } else if !dependency.is_for_gateway() {
                tracing::warn!(
                    dependency = name,
                    "this dependency has no effect here: it is for programs that use it by name; for the \
                     gateway, give it a \"match\" or \"per: upstream\""
                );
            }
        }
    }

    /// Logs the limits that have no effect in this program.
    fn log_limits_without_effect(self, policy: &Policy) {
        self.log_dependencies_without_effect(policy);
        if self == Self::Gateway {
            return;
        }
        if !policy.request_json().is_empty() {
            tracing::warn!(
                "request_json has no effect here: this server sees no bodies of requests, so such an identity is \
                 missing, and such a match applies to every request; use the gateway or the tower layer"
            );
        }
        for rule in policy.limits() {
            let limit = rule.name();
            if rule.is_concurrency() {
                tracing::warn!(
                    limit,
                    "a concurrency limit has no effect here: this server does not see when a request \
                     ends; use the gateway, the tower layer, or /v1/acquire"
                );
            }
            for field in rule.response_fields() {
                tracing::warn!(
                    limit,
                    field,
                    "this field has no effect here: this server sees no responses; use the gateway \
                     or the tower layer"
                );
            }
        }
    }
}

/// Where a policy comes from.
struct Origin {
    file: Option<PathBuf>,
    /// The policy without a file.
    default: String,
    /// Proxies that the command line trusts, in addition to those of the file.
    trusted: Vec<IpNet>,
}

impl PolicyFile {
    pub(crate) fn open(
        path: Option<&Path>,
        trusted: &[IpNet],
        program: Program,
    ) -> Result<Self, Failure> {
        Self::open_or(path, NO_LIMITS.into(), trusted, program)
    }

    /// Opens a policy without limits and without a file, over the store at this address and with this prefix
    /// of keys.
    pub(crate) fn over_store(
        url: &str,
        prefix: Option<&str>,
        trusted: &[IpNet],
    ) -> Result<Self, Failure> {
        // Any string in JSON is one in YAML.
        let (url, prefix) = (serde_json::Value::from(url), prefix.map(serde_json::Value::from));
        let prefix = prefix.map(|prefix| format!(", prefix: {prefix}")).unwrap_or_default();
        let default = format!("{NO_LIMITS}store: {{ url: {url}{prefix} }}\n");
        Self::open_or(None, default, trusted, Program::Serve)
    }

    fn open_or(
        path: Option<&Path>,
        default: String,
        trusted: &[IpNet],
        program: Program,
    ) -> Result<Self, Failure> {
        let (file, trusted) = (path.map(Path::to_path_buf), trusted.to_vec());
        let origin = Origin { file, default, trusted };
        let (policy, stamps) = origin.read();
        let policy = policy.map_err(Failure::input)?;
        program.log_limits_without_effect(&policy);
        let limiter = PolicyLimiter::new(policy).map_err(Failure::input)?;
        // No request to a listener or to the gateway has any.
        limiter.policy().declare_custom_identities(&[]).map_err(Failure::input)?;
        log_store_changes(&limiter);
        let top = Arc::new(Top::default());
        let observed = Arc::clone(&top);
        limiter.telemetry().on_decision(move |decision| observed.observe(decision));
        Ok(Self { limiter, origin, loads: LoadState::loaded(stamps), top, program })
    }

    /// The most frequent keys, of the policy's limits among others.
    pub(crate) fn top(&self) -> &Arc<Top> {
        &self.top
    }

    pub(crate) fn limiter(&self) -> &PolicyLimiter {
        &self.limiter
    }

    pub(crate) fn status(&self) -> LoadStatus {
        self.loads.status()
    }

    /// Releases what this process holds in a shared store, before it exits.
    pub(crate) async fn return_leases(&self) {
        let _ = tokio::time::timeout(RETURN_TIMEOUT, self.limiter.engine().return_leases()).await;
    }
}

impl Reload for PolicyFile {
    type Value = Result<Policy, PolicyErrors>;
    type Error = PolicyLoadError;

    fn what(&self) -> &'static str {
        "policy"
    }

    fn is_from_file(&self) -> bool {
        self.origin.file.is_some()
    }

    fn state(&self) -> &LoadState {
        &self.loads
    }

    fn source(&self) -> String {
        self.origin.file.as_ref().map_or("no policy".into(), |path| path.display().to_string())
    }

    fn read(&self) -> (Self::Value, FileStamps) {
        self.origin.read()
    }

    fn activate(&self, policy: Self::Value) -> Result<String, PolicyLoadError> {
        self.limiter.policy().load(policy)?;
        let active = self.limiter.policy().active();
        self.program.log_limits_without_effect(active.policy());
        Ok(format!("limits={}", active.policy().limits().len()))
    }

    fn note_failure(&self, error: &LoadError) {
        // The library counts it too.
        let _ = self.limiter.policy().load(Err(PolicyErrors::unreadable(&self.source(), error)));
    }
}

impl Origin {
    fn read(&self) -> (Result<Policy, PolicyErrors>, FileStamps) {
        let (policy, stamps) = match &self.file {
            Some(path) => {
                let sources = PolicyFiles::of(path);
                (read_policy(path, &sources), sources.stamps())
            }
            None => {
                let policy = Policy::parse("no policy", &self.default, &NoSources);
                // It comes from no file.
                (policy.map(Policy::without_warnings), FileStamps::default())
            }
        };
        (policy.map(|policy| policy.with_trusted_proxies(&self.trusted)), stamps)
    }
}

fn log_store_changes(limiter: &PolicyLimiter) {
    limiter.engine().on_store_change(|state| match state {
        StoreState::Down(error) => {
            tracing::error!(%error, "the store is down; each limit applies its failure mode");
        }
        StoreState::Partial { shards_down, error } => {
            tracing::error!(shards_down, %error, "some shards of the store are down");
        }
        StoreState::Up => tracing::info!("the store is up"),
        _ => {}
    });
}
