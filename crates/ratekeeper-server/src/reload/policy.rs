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
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The policy of a server that is started without one.
const NO_LIMITS: &str = "version: 1\nlimits: []\n";

/// The active policy, and the file that it comes from, if there is one.
pub(crate) struct PolicyFile {
    limiter: PolicyLimiter,
    origin: Origin,
    loads: LoadState,
    top: Arc<Top>,
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
    pub(crate) fn open(path: Option<&Path>, trusted: &[IpNet]) -> Result<Self, Failure> {
        Self::open_or(path, NO_LIMITS.into(), trusted)
    }

    /// Opens a policy without limits and without a file, over the store at this address.
    pub(crate) fn over_store(url: &str, trusted: &[IpNet]) -> Result<Self, Failure> {
        // Any string in JSON is one in YAML.
        let url = serde_json::Value::from(url);
        Self::open_or(None, format!("{NO_LIMITS}store: {{ url: {url} }}\n"), trusted)
    }

    fn open_or(path: Option<&Path>, default: String, trusted: &[IpNet]) -> Result<Self, Failure> {
        let (file, trusted) = (path.map(Path::to_path_buf), trusted.to_vec());
        let origin = Origin { file, default, trusted };
        let (policy, stamps) = origin.read();
        let policy = policy.map_err(Failure::input)?;
        log_warnings(&policy);
        let limiter = PolicyLimiter::new(policy).map_err(Failure::input)?;
        log_store_changes(&limiter);
        let top = Arc::new(Top::default());
        let observed = Arc::clone(&top);
        limiter.telemetry().on_decision(move |decision| observed.observe(decision));
        Ok(Self { limiter, origin, loads: LoadState::loaded(stamps), top })
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
    pub(crate) async fn leave(&self) {
        let _ = tokio::time::timeout(LEAVE_TIMEOUT, self.limiter.engine().return_leases()).await;
    }
}

impl Reload for PolicyFile {
    type Value = Result<Policy, PolicyErrors>;
    type Error = PolicyLoadError;

    const WHAT: &'static str = "policy";

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
        log_warnings(active.policy());
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
                let sources = PolicyFiles::beside(path);
                (read_policy(path, &sources), sources.stamps())
            }
            None => (Policy::parse("no policy", &self.default, &NoSources), FileStamps::default()),
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

fn log_warnings(policy: &Policy) {
    for warning in policy.warnings() {
        let (line, column) = (warning.line(), warning.column());
        tracing::warn!(line, column, "policy: {}", warning.message());
    }
}
