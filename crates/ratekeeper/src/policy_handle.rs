//! The active policy, and how it is replaced.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use ratekeeper_core::Micros;
use ratekeeper_policy::{LimitRule, Policy, PolicyErrors, StoreSettings};

use crate::engine::Engine;
use crate::files::{self, Loader};
use crate::policy_files::{PolicyFiles, read_policy};
use crate::telemetry::{LimitCounters, Telemetry};

/// How often a watched policy file is checked for changes.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long reading a policy file may take.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The active policy. It is replaced as a whole; a request sees one from beginning to end.
#[derive(Debug)]
pub struct ActivePolicy {
    policy: Policy,
    /// By the id of the limit.
    counters: Vec<Arc<LimitCounters>>,
}

impl ActivePolicy {
    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn counters(&self, rule: &LimitRule) -> &LimitCounters {
        &self.counters[rule.id()]
    }
}

/// Holds the active policy and replaces it. Usage is kept under the names of limits, so it carries over.
pub struct PolicyHandle {
    active: ArcSwap<ActivePolicy>,
    status: Mutex<LoadStatus>,
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
}

/// Which configuration is active, and what became of attempts to replace it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadStatus {
    /// How many versions have been active so far.
    pub version: u64,
    /// When the active one was loaded.
    pub loaded_at: Micros,
    /// How many versions were rejected.
    pub failures: u64,
    /// Why the last one was rejected, if no other has been loaded since.
    pub last_error: Option<String>,
    /// When that was.
    pub failed_at: Option<Micros>,
}

impl LoadStatus {
    /// Notes that a configuration was activated.
    pub fn record_success(&mut self, now: Micros) {
        let Self { version, failures, .. } = *self;
        *self = Self { version: version + 1, loaded_at: now, failures, ..Self::default() };
    }

    /// Notes that a configuration was rejected.
    pub fn record_failure(&mut self, error: String, now: Micros) {
        self.failures += 1;
        (self.last_error, self.failed_at) = (Some(error), Some(now));
    }
}

impl std::fmt::Debug for PolicyHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyHandle")
            .field("policy", self.active().policy())
            .finish_non_exhaustive()
    }
}

impl PolicyHandle {
    pub(crate) fn new(policy: Policy, engine: Arc<Engine>, telemetry: Arc<Telemetry>) -> Self {
        engine.set_failure_mode(policy.store().on_failure);
        let counters = telemetry.counters_of(&policy);
        let status = LoadStatus { version: 1, loaded_at: engine.now(), ..LoadStatus::default() };
        Self {
            active: ArcSwap::from_pointee(ActivePolicy { policy, counters }),
            status: Mutex::new(status),
            engine,
            telemetry,
        }
    }

    /// Returns the active policy.
    pub fn active(&self) -> Arc<ActivePolicy> {
        self.active.load_full()
    }

    /// Returns which policy is active, and what became of attempts to replace it.
    pub fn status(&self) -> LoadStatus {
        self.lock_status().clone()
    }

    /// Activates another policy. Requests that are being served end under the old one.
    ///
    /// # Errors
    ///
    /// If the store is another one: that takes a restart, and the old policy stays active.
    pub fn replace(&self, policy: Policy) -> Result<(), PolicyLoadError> {
        self.load(Ok(policy))
    }

    /// Activates a policy that was parsed, or rejects one that could not be. A rejection changes nothing but
    /// [`PolicyHandle::status`].
    ///
    /// # Errors
    ///
    /// If the policy is invalid, or its store is another one.
    pub fn load(&self, policy: Result<Policy, PolicyErrors>) -> Result<(), PolicyLoadError> {
        let loaded = policy.map_err(PolicyLoadError::from).and_then(|policy| self.activate(policy));
        let now = self.engine.now();
        let mut status = self.lock_status();
        match &loaded {
            Ok(()) => status.record_success(now),
            Err(error) => status.record_failure(error.to_string(), now),
        }
        loaded
    }

    fn activate(&self, policy: Policy) -> Result<(), PolicyLoadError> {
        if !is_same_store(self.active().policy().store(), policy.store()) {
            return Err(PolicyLoadError::StoreChanged);
        }
        self.engine.set_failure_mode(policy.store().on_failure);
        let counters = self.telemetry.counters_of(&policy);
        self.active.store(Arc::new(ActivePolicy { policy, counters }));
        Ok(())
    }

    /// Reads a policy file and activates it. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or the policy is rejected. The old one stays active.
    pub fn reload(&self, path: impl AsRef<Path>) -> Result<(), PolicyLoadError> {
        let path = path.as_ref();
        self.load(read_policy(path, &PolicyFiles::beside(path)))
    }

    fn lock_status(&self) -> MutexGuard<'_, LoadStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a policy file, and the files that it refers to, every second for as long as there is this
    /// handle, and loads it again when one has changed. Calls `observer` with the result of each load.
    /// Files are read on a thread of their own, within five seconds. Must be called in a tokio runtime.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use ratekeeper::PolicyLimiter;
    ///
    /// let limiter = PolicyLimiter::open("policy.yaml")?;
    /// limiter.policy().watch("policy.yaml", |loaded| match loaded {
    ///     Ok(()) => println!("a new policy is active"),
    ///     Err(error) => eprintln!("the old policy stays active:\n{error}"),
    /// });
    /// # Ok(()) }
    /// ```
    pub fn watch(
        self: &Arc<Self>,
        path: impl AsRef<Path>,
        observer: impl Fn(Result<(), PolicyLoadError>) + Send + 'static,
    ) {
        let (handle, path) = (Arc::downgrade(self), path.as_ref().to_path_buf());
        let mut known = PolicyFiles::beside(&path);
        // Finds out which files the policy refers to.
        let _ = read_policy(&path, &known);
        tokio::spawn(async move {
            let (loader, mut is_late) = (Loader::default(), false);
            loop {
                tokio::time::sleep(WATCH_INTERVAL).await;
                let Some(handle) = handle.upgrade() else { return };
                let (file, before) = (path.clone(), known.clone());
                let read = move || (is_late || before.have_changed()).then(|| read_again(&file));
                match loader.load(READ_TIMEOUT, read).await {
                    Ok(files::Loaded { value: None, .. }) => {}
                    Ok(files::Loaded { value: Some((policy, files)), .. }) => {
                        (known, is_late) = (files, false);
                        observer(handle.load(policy));
                    }
                    // It still hangs, which was reported.
                    Err(_) if is_late => {}
                    Err(error) => {
                        is_late = true;
                        let name = path.display().to_string();
                        observer(handle.load(Err(PolicyErrors::unreadable(&name, error))));
                    }
                }
            }
        });
    }
}

/// A policy file as it is now, and the files that it refers to.
fn read_again(path: &Path) -> (Result<Policy, PolicyErrors>, PolicyFiles) {
    let files = PolicyFiles::beside(path);
    (read_policy(path, &files), files)
}

/// Compares what is fixed when a store is opened. The failure mode can change at any time.
fn is_same_store(old: &StoreSettings, new: &StoreSettings) -> bool {
    let fixed = |settings: &StoreSettings| StoreSettings {
        on_failure: Default::default(),
        ..settings.clone()
    };
    fixed(old) == fixed(new)
}

/// Why a policy was not activated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyLoadError {
    /// The policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyErrors),
    /// The address of its store is invalid.
    #[cfg(feature = "redis")]
    #[error("store: {0}")]
    Store(#[from] ratekeeper_stores::RedisUrlError),
    /// It has a store that this program was built without.
    #[error("store: this program was built without the feature \"redis\"")]
    NoRedis,
    /// Its store is another one.
    #[error(
        "the store's settings have changed, which takes a restart; the old policy stays active"
    )]
    StoreChanged,
}
