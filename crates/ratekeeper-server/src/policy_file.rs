//! The policy file of a running server, taken up again when it changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use ratekeeper::files::LoadError;
use ratekeeper::policy::NoSources;
use ratekeeper::shared::StoreState;
use ratekeeper::{Policy, PolicyErrors, PolicyLimiter};
use ratekeeper::{PolicyFiles, read_policy};

use crate::failure::Failure;
use crate::reload::{Reload, ReloadState, When};
use crate::top::Top;

const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What a server without a policy keeps: no limit at all.
const NO_LIMITS: &str = "version: 1\nlimits: []\n";

/// A policy that is kept, and the file that it comes from, if it comes from one.
pub(crate) struct PolicyFile {
    gate: PolicyLimiter,
    path: Option<PathBuf>,
    /// What is kept without a file.
    otherwise: String,
    /// Proxies that the command line trusts, beside those of the file.
    trusted: Vec<IpNet>,
    seen: Mutex<Option<PolicyFiles>>,
    reload: ReloadState,
    top: Arc<Top>,
}

impl PolicyFile {
    pub(crate) fn open(path: Option<&Path>, trusted: &[IpNet]) -> Result<Self, Failure> {
        Self::open_or(path, NO_LIMITS.into(), trusted)
    }

    /// Without a file: no limit at all, over the store at this address.
    pub(crate) fn over_store(url: &str, trusted: &[IpNet]) -> Result<Self, Failure> {
        // A text in JSON is one in YAML, whatever is in it.
        let url = serde_json::Value::from(url);
        Self::open_or(None, format!("{NO_LIMITS}store: {{ url: {url} }}\n"), trusted)
    }

    fn open_or(path: Option<&Path>, otherwise: String, trusted: &[IpNet]) -> Result<Self, Failure> {
        let path = path.map(Path::to_path_buf);
        let (policy, seen) = read(path.as_deref(), &otherwise, trusted);
        let policy = policy.map_err(Failure::input)?;
        tell_warnings(&policy);
        let gate = PolicyLimiter::new(policy).map_err(Failure::input)?;
        tell_store_changes(&gate);
        let top = Arc::new(Top::default());
        let of_gate = Arc::clone(&top);
        gate.telemetry().on_decision(move |decision| of_gate.see(decision));
        let (trusted, seen, reload) = (trusted.to_vec(), Mutex::new(seen), ReloadState::default());
        Ok(Self { gate, path, otherwise, trusted, seen, reload, top })
    }

    /// The keys that were asked about most. What a policy decides is among it.
    pub(crate) fn top(&self) -> &Arc<Top> {
        &self.top
    }

    pub(crate) fn gate(&self) -> &PolicyLimiter {
        &self.gate
    }

    /// What is to be done before the process goes. A store that does not answer is not waited for.
    pub(crate) async fn leave(&self) {
        let _ = tokio::time::timeout(LEAVE_WITHIN, self.gate.engine().return_leases()).await;
    }

    fn seen(&self) -> MutexGuard<'_, Option<PolicyFiles>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reload for PolicyFile {
    type Fresh = (Result<Policy, PolicyErrors>, Option<PolicyFiles>);

    fn state(&self) -> &ReloadState {
        &self.reload
    }

    fn read(&self, when: When) -> Option<Self::Fresh> {
        let seen = self.seen().clone();
        let have_changed = || seen.as_ref().is_some_and(PolicyFiles::have_changed);
        (when == When::Always || have_changed())
            .then(|| read(self.path.as_deref(), &self.otherwise, &self.trusted))
    }

    fn apply(&self, (policy, seen): Self::Fresh) -> bool {
        *self.seen() = seen;
        let offered = self.gate.policy().load(policy);
        match &offered {
            Ok(()) => {
                let live = self.gate.policy().active();
                tell_warnings(live.policy());
                let limits = live.policy().limits().len();
                tracing::info!(
                    version = self.gate.policy().status().version,
                    limits,
                    "policy loaded"
                );
            }
            Err(error) => tracing::error!("the policy stays as it was:\n{error}"),
        }
        offered.is_ok()
    }

    fn reject(&self, error: &LoadError, is_first: bool) {
        let name = self.path.as_ref().map_or("no policy".into(), |path| path.display().to_string());
        let offered = self.gate.policy().load(Err(PolicyErrors::unreadable(&name, error)));
        if let (Err(error), true) = (offered, is_first) {
            tracing::error!("the policy stays as it was:\n{error}");
        }
    }
}

/// Says when the store goes and comes back.
fn tell_store_changes(gate: &PolicyLimiter) {
    gate.engine().on_store_change(|state| match state {
        StoreState::Down(error) => {
            tracing::error!(%error, "the store is down; limits do what they were told to do then");
        }
        StoreState::Partial { shards_down, error } => {
            tracing::error!(shards_down, %error, "some shards of the store are down");
        }
        StoreState::Up => tracing::info!("the store answers"),
        _ => {}
    });
}

fn tell_warnings(policy: &Policy) {
    for warning in policy.warnings() {
        let (line, column) = (warning.line(), warning.column());
        tracing::warn!(line, column, "policy: {}", warning.message());
    }
}

fn read(
    path: Option<&Path>,
    otherwise: &str,
    trusted: &[IpNet],
) -> (Result<Policy, PolicyErrors>, Option<PolicyFiles>) {
    let sources = path.map(PolicyFiles::beside);
    let policy = match (path, &sources) {
        (Some(path), Some(sources)) => read_policy(path, sources),
        _ => Policy::parse("no policy", otherwise, &NoSources),
    };
    (policy.map(|policy| policy.with_trusted_proxies(trusted)), sources)
}
