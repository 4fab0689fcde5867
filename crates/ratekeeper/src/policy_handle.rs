//! The active policy, and how it is replaced.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use ratekeeper_core::Micros;
use ratekeeper_policy::{LimitRule, Policy, PolicyErrors, StoreSettings};

use crate::dependency::{Dependency, DependencyRegistry, PolicyDependencies, UnknownDependency};
use crate::engine::Engine;
use crate::files::{FileStamps, Reloader};
use crate::policy_files::{PolicyFiles, read_policy};
use crate::refusals::RefusalLog;
use crate::telemetry::{LimitCounters, Telemetry};

/// How often a watched policy file is checked for changes.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The active policy. It is replaced as a whole; a request sees one from beginning to end.
///
/// ```
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// let active = limiter.policy().active();
/// assert_eq!(active.policy().limits().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ActivePolicy {
    policy: Policy,
    /// By the id of the limit.
    counters: Vec<Arc<LimitCounters>>,
    version: u64,
    dependencies: PolicyDependencies,
}

impl ActivePolicy {
    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns how many policies have been active before, and this one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the dependency of this name.
    ///
    /// # Errors
    ///
    /// If the policy has none, or it is one for each upstream.
    pub fn dependency(&self, name: &str) -> Result<&Dependency, UnknownDependency> {
        self.dependencies.get(name)
    }

    /// Returns the dependencies that protect an upstream of a gateway, by its index in
    /// [`PolicyHandle::declare_upstreams`].
    pub fn upstream_dependencies(&self, index: usize) -> &[Dependency] {
        self.dependencies.of_upstream(index)
    }

    /// Returns all dependencies, for metrics: those with one for each upstream last.
    pub fn dependencies(&self) -> impl Iterator<Item = &Dependency> {
        self.dependencies.all()
    }

    pub(crate) fn counters(&self, rule: &LimitRule) -> &LimitCounters {
        &self.counters[rule.id()]
    }
}

/// Holds the active policy and replaces it. Usage is kept under the names of limits, so it carries over.
///
/// ```
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// limiter.policy().replace(Policy::one_line("200/minute per ip")?)?;
/// assert_eq!(limiter.policy().status().version, 2);
/// assert_eq!(limiter.policy().active().policy().limits().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PolicyHandle {
    active: ArcSwap<ActivePolicy>,
    status: Mutex<LoadStatus>,
    /// The file of [`PolicyLimiter::open`](crate::PolicyLimiter::open), and how it was when it was read.
    opened: OnceLock<(PathBuf, FileStamps)>,
    /// The custom identities that each user of the policy supplies.
    supplied: Mutex<Vec<Vec<String>>>,
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
    refusals: Arc<RefusalLog>,
    dependencies: DependencyRegistry,
}

/// Which configuration is active, and the result of the last attempts to replace it.
///
/// ```
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// limiter.policy().reload("missing.yaml").unwrap_err();
/// let status = limiter.policy().status();
/// assert_eq!((status.version, status.failures), (1, 1));
/// assert!(status.last_error.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    pub(crate) fn new(
        policy: Policy,
        engine: Arc<Engine>,
        telemetry: Arc<Telemetry>,
        refusals: Arc<RefusalLog>,
    ) -> Self {
        refusals.configure(policy.refusals());
        engine.set_failure_mode(policy.store().on_failure);
        engine.set_protection(&policy);
        log_warnings(&policy);
        let counters = telemetry.counters_of(&policy);
        let registry = DependencyRegistry::new(Arc::clone(&engine));
        let dependencies = registry.of_policy(&policy);
        let status = LoadStatus { version: 1, loaded_at: engine.now(), ..LoadStatus::default() };
        Self {
            active: ArcSwap::from_pointee(ActivePolicy {
                policy,
                counters,
                version: 1,
                dependencies,
            }),
            status: Mutex::new(status),
            opened: OnceLock::new(),
            supplied: Mutex::default(),
            engine,
            telemetry,
            refusals,
            dependencies: registry,
        }
    }

    /// Returns the active policy.
    pub fn active(&self) -> Arc<ActivePolicy> {
        self.active.load_full()
    }

    /// Returns the active policy without counting a reference, for as long as a request takes.
    #[cfg(feature = "client")]
    pub(crate) fn borrow_active(&self) -> arc_swap::Guard<Arc<ActivePolicy>> {
        self.active.load()
    }

    /// Returns which policy is active, and the result of the last attempts to replace it.
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

    /// Declares all custom identities that a user of this policy supplies. From now on, a policy that has
    /// others is rejected. [`RatekeeperLayer`](crate::RatekeeperLayer) declares its own.
    ///
    /// # Errors
    ///
    /// If the active policy has others.
    pub fn declare_custom_identities(&self, names: &[&str]) -> Result<(), PolicyLoadError> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let checked = check_supplied(self.active().policy(), &names);
        let mut supplied = self.lock_supplied();
        if !supplied.contains(&names) {
            supplied.push(names);
        }
        checked
    }

    /// Declares the upstreams of a gateway, by name: each has a dependency of its own for a rule with
    /// `per: upstream`. Only the first call has an effect.
    pub fn declare_upstreams(&self, names: impl IntoIterator<Item = Arc<str>>) {
        self.dependencies.set_upstreams(names.into_iter().collect());
        self.active().dependencies.set_upstreams(&self.dependencies);
    }

    fn activate(&self, policy: Policy) -> Result<(), PolicyLoadError> {
        if !is_same_store(self.active().policy().store(), policy.store()) {
            return Err(PolicyLoadError::StoreChanged);
        }
        self.lock_supplied().iter().try_for_each(|names| check_supplied(&policy, names))?;
        self.engine.set_failure_mode(policy.store().on_failure);
        self.refusals.configure(policy.refusals());
        self.engine.set_protection(&policy);
        log_warnings(&policy);
        let counters = self.telemetry.counters_of(&policy);
        let version = self.lock_status().version + 1;
        let dependencies = self.dependencies.of_policy(&policy);
        let active = ActivePolicy { policy, counters, version, dependencies };
        self.active.store(Arc::new(active));
        Ok(())
    }

    /// Reads a policy file and activates it. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or the policy is rejected. The old one stays active.
    pub fn reload(&self, path: impl AsRef<Path>) -> Result<(), PolicyLoadError> {
        let path = path.as_ref();
        self.load(read_policy(path, &PolicyFiles::of(path)))
    }

    fn lock_supplied(&self) -> MutexGuard<'_, Vec<Vec<String>>> {
        self.supplied.lock().unwrap_or_else(PoisonError::into_inner)
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
        let opened = self.opened.get().filter(|(opened, _)| *opened == path);
        let stamps = opened.map(|(_, stamps)| stamps.clone());
        let name = path.display().to_string();
        let read = move || read_stamped(&path);
        tokio::spawn(async move {
            let is_read = stamps.is_some();
            let reloader = Reloader::new(stamps.unwrap_or_default());
            if !is_read {
                // Finds out which files the policy refers to.
                let _ = reloader.reload(read.clone()).await;
            }
            loop {
                tokio::time::sleep(WATCH_INTERVAL).await;
                let Some(handle) = handle.upgrade() else { return };
                match reloader.reload_if_changed(read.clone()).await {
                    None => {}
                    Some(Ok(loaded)) => observer(handle.load(loaded.value)),
                    // Reported already.
                    Some(Err(error)) if error.is_repeated => {}
                    Some(Err(error)) => {
                        observer(handle.load(Err(PolicyErrors::unreadable(&name, error))));
                    }
                }
            }
        });
    }

    /// Notes the file that the policy was read from, and how it was then.
    pub(crate) fn set_opened(&self, path: &Path, stamps: FileStamps) {
        let _ = self.opened.set((path.to_path_buf(), stamps));
    }
}

fn check_supplied(policy: &Policy, names: &[String]) -> Result<(), PolicyLoadError> {
    let is_supplied = |name: &&str| names.iter().any(|known| known == name);
    match policy.custom_identities().find(|name| !is_supplied(name)) {
        Some(name) => Err(PolicyLoadError::CustomIdentity(name.to_string())),
        None => Ok(()),
    }
}

/// Reads a policy file, and returns the stamps of it and of the files that it refers to.
pub(crate) fn read_stamped(path: &Path) -> (Result<Policy, PolicyErrors>, FileStamps) {
    let files = PolicyFiles::of(path);
    (read_policy(path, &files), files.stamps())
}

/// Logs what is valid in a policy that becomes active but may be a mistake.
fn log_warnings(policy: &Policy) {
    #[cfg(feature = "tower")]
    for warning in policy.warnings() {
        let (line, column) = (warning.line(), warning.column());
        tracing::warn!(line, column, "policy: {}", warning.message());
    }
    #[cfg(not(feature = "tower"))]
    let _ = policy;
}

/// Compares what is fixed when a store is opened. The failure mode can change at any time.
fn is_same_store(old: &StoreSettings, new: &StoreSettings) -> bool {
    let fixed = |settings: &StoreSettings| StoreSettings {
        on_failure: Default::default(),
        ..settings.clone()
    };
    fixed(old) == fixed(new)
}

/// The same text as `Display`, because it is what `main` prints of an error that it returns.
impl std::fmt::Debug for PolicyLoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Why a policy was not activated.
///
/// ```
/// use ratekeeper::{PolicyLimiter, PolicyLoadError};
///
/// match PolicyLimiter::open("missing.yaml") {
///     Err(PolicyLoadError::Policy(errors)) => println!("{errors}"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
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
    #[error(
        "store: this program was built without the feature \"redis\"; build it with that, or remove the store"
    )]
    NoRedis,
    /// Its store is another one.
    #[error(
        "the store's settings have changed, which takes a restart; the old policy stays active"
    )]
    StoreChanged,
    /// It has a custom identity that nothing supplies.
    #[error(
        "nothing supplies the custom identity \"{0}\": a program supplies it with \
         RatekeeperLayer::identify or Outbound::identify; elsewhere, take it from a header, a cookie or a token"
    )]
    CustomIdentity(String),
}
