//! The layer for clients, and its settings.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ratekeeper_control::{RetryBudget, RetryBudgetConfig, RetryBudgetError, RetryRules, Throttle};
use ratekeeper_policy::{Policy, PolicyErrors};
use tower_layer::Layer;
use tower_service::Service;

use super::quota::QuotaTable;
use super::request::OutboundRequest;
use super::service::OutboundService;
use super::stats::{Counters, OutboundStats};
use crate::policy_handle::PolicyLoadError;
use crate::policy_limiter::PolicyLimiter;
use crate::tower::IdentifyError;

/// How long a request waits for a limit, unless it is set.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// How long a server can pause a quota, unless it is set.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// How long a decision of the store may take with [`Outbound::shared`]. A request that waits for limits can wait for the
/// store too; a decision without it would be by the share of this process, beside those of the others.
#[cfg(feature = "redis")]
const STORE_DEADLINE: Duration = Duration::from_millis(100);

pub(super) type CustomIdentity = dyn Fn(&OutboundRequest<'_>) -> Option<Vec<u8>> + Send + Sync;
pub(super) type QuotaKey = dyn Fn(&OutboundRequest<'_>) -> Vec<u8> + Send + Sync;

/// A tower layer for HTTP clients, and with the feature `reqwest` a middleware for reqwest. It keeps requests within
/// limits, learns from what servers say, and retries what is safe to repeat.
///
/// ```
/// use ratekeeper::client::Outbound;
/// use tower::Layer;
///
/// # fn f<C: Clone>(client: C) -> Result<(), ratekeeper::PolicyErrors> {
/// let client = Outbound::new("100/s per host")?.layer(client);
/// # Ok(()) }
/// ```
///
/// # What it does with a request
///
/// 1. **Stay under.** The request waits until its limits allow it, up to 30 seconds ([`Outbound::max_wait`]), first come,
///    first served. Limits are those of a policy: per host, route, header or what the program supplies
///    ([`Outbound::identify`]), several at once, with costs, in memory or shared over Redis.
/// 2. **Learn.** What the response says remains of the server's quota is not exceeded. A refusal pauses all requests
///    of that quota until the server's `Retry-After`, in this process and in all that share a store; after that
///    they are sent spread out. A quota is a host and a credential ([`Outbound::quota_by`]).
/// 3. **Retry.** A request that may be repeated is sent again after a failed connection or a status of 429, 502, 503 or
///    504: never before `Retry-After`, up to three attempts and a minute, and only as long as retries are at most
///    20% of requests.
///
/// Each part can be switched off: [`Outbound::unlimited`], [`Outbound::without_learning`],
/// [`Outbound::without_retries`].
///
/// Clones share limits, quotas and counters.
#[derive(Clone)]
pub struct Outbound {
    pub(super) limiter: PolicyLimiter,
    pub(super) config: Arc<Config>,
    pub(super) shared: Arc<Shared>,
}

/// The settings.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) custom: Vec<(String, Arc<CustomIdentity>)>,
    pub(super) quota_by: Option<Arc<QuotaKey>>,
    pub(super) max_wait: Duration,
    pub(super) max_pause: Duration,
    pub(super) is_learning: bool,
    pub(super) retry: Option<RetryRules>,
    /// A full budget, which is copied for every quota.
    pub(super) budget: RetryBudget,
    pub(super) throttle: Option<Throttle>,
    /// Whether requests of every method are repeated.
    pub(super) repeats_all: bool,
    /// Whether a refusal of the server is returned as a response.
    pub(super) passes_refusals: bool,
    /// Why no request can be sent; known with the first.
    setup_error: OnceLock<Option<Arc<str>>>,
}

/// What clones share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) quotas: QuotaTable,
    pub(super) counters: Counters,
    /// Notified when a request that was in flight has ended.
    pub(super) ended: Arc<tokio::sync::Notify>,
}

impl Outbound {
    /// Returns a layer with one limit, in memory: a rate and what it is counted per, such as `100/s per host`. See
    /// [`Policy::one_line`].
    ///
    /// # Errors
    ///
    /// If the line cannot be parsed.
    pub fn new(line: &str) -> Result<Self, PolicyErrors> {
        Self::in_memory(Policy::one_line(line)?)
    }

    /// Returns a layer with several limits, in memory, a line for each. See [`Policy::lines`].
    ///
    /// ```
    /// use ratekeeper::client::Outbound;
    ///
    /// let outbound = Outbound::lines([
    ///     "100/s per host",
    ///     "20 in flight per host",
    ///     "5/s per host for POST /v1/search/**",
    ///     "1000/minute per header authorization",
    /// ])?;
    /// # Ok::<(), ratekeeper::PolicyErrors>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a line cannot be parsed.
    pub fn lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, PolicyErrors> {
        Self::in_memory(Policy::lines(lines)?)
    }

    fn in_memory(policy: Policy) -> Result<Self, PolicyErrors> {
        policy.check_for_client()?;
        let limiter = PolicyLimiter::new(policy);
        Ok(Self::of(limiter.expect("a policy of lines has its store in memory")))
    }

    /// Returns a layer without limits, which learns and retries.
    ///
    /// ```
    /// use ratekeeper::client::Outbound;
    ///
    /// let retries_only = Outbound::unlimited().without_learning();
    /// ```
    #[must_use]
    pub fn unlimited() -> Self {
        Self::lines([]).expect("no limit is valid")
    }

    /// Returns a layer with the limits of a policy.
    ///
    /// # Errors
    ///
    /// If the policy counts by the address of a client, which requests of a client do not have, or if the address of
    /// its store is invalid.
    pub fn with_policy(policy: Policy) -> Result<Self, PolicyLoadError> {
        policy.check_for_client().map_err(PolicyLoadError::Policy)?;
        Ok(Self::of(PolicyLimiter::new(policy)?))
    }

    /// Returns a layer with one limit that all processes with this store share, over Redis or Valkey. While the store
    /// is unavailable, or does not decide within 100 ms, each process uses its share of the limit.
    ///
    /// ```no_run
    /// use ratekeeper::client::Outbound;
    ///
    /// let outbound = Outbound::shared("100/s per host", "redis://127.0.0.1:6379")?;
    /// # Ok::<(), ratekeeper::PolicyLoadError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the line or the address is invalid.
    #[cfg(feature = "redis")]
    pub fn shared(line: &str, url: &str) -> Result<Self, PolicyLoadError> {
        let policy = Policy::one_line(line).map_err(PolicyLoadError::Policy)?;
        let mut store = ratekeeper_policy::StoreSettings::at(url);
        store.deadline = Some(STORE_DEADLINE);
        Self::with_policy(policy.with_store(store))
    }

    /// Returns a layer with the limits of a policy file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or its policy is invalid or not for clients.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PolicyLoadError> {
        Self::with_limiter(PolicyLimiter::open(path)?)
    }

    /// Returns a layer with the limits of this limiter.
    ///
    /// # Errors
    ///
    /// If the policy counts by the address of a client.
    pub fn with_limiter(limiter: PolicyLimiter) -> Result<Self, PolicyLoadError> {
        let active = limiter.policy().active();
        active.policy().check_for_client().map_err(PolicyLoadError::Policy)?;
        Ok(Self::of(limiter))
    }

    fn of(limiter: PolicyLimiter) -> Self {
        let config = Config {
            custom: Vec::new(),
            quota_by: None,
            max_wait: MAX_WAIT,
            max_pause: MAX_PAUSE,
            is_learning: true,
            retry: Some(RetryRules::DEFAULT),
            budget: RetryBudget::default(),
            throttle: None,
            repeats_all: false,
            passes_refusals: false,
            setup_error: OnceLock::new(),
        };
        Self { limiter, config: Arc::new(config), shared: Arc::default() }
    }

    fn set(mut self, change: impl FnOnce(&mut Config)) -> Self {
        let config = Arc::make_mut(&mut self.config);
        change(config);
        config.setup_error = OnceLock::new();
        self
    }

    /// Sets how long a request may wait for limits, pauses and what remains of the server's quota. If it would take
    /// longer, it fails at once, with an error that says how long. Zero does not wait at all.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.set(|config| config.max_wait = max_wait)
    }

    /// Sets how long a refusal can pause a quota, whatever the server says: five minutes by default. After that a
    /// request is sent, and the server can say so again.
    #[must_use]
    pub fn max_pause(self, max_pause: Duration) -> Self {
        self.set(|config| config.max_pause = max_pause)
    }

    /// Supplies an identity that the policy leaves to the program (`per custom tenant` in a line, `custom: true` in a
    /// file). `find` returns `None` if a request has none.
    ///
    /// ```
    /// use ratekeeper::client::Outbound;
    ///
    /// #[derive(Clone)]
    /// struct Tenant(String);
    ///
    /// let outbound = Outbound::new("10/s per custom tenant")?
    ///     .identify("tenant", |request| Some(request.extensions.get::<Tenant>()?.0.clone()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the policy has no such identity, or it is not custom.
    pub fn identify<V: Into<Vec<u8>>>(
        self,
        name: &str,
        find: impl Fn(&OutboundRequest<'_>) -> Option<V> + Send + Sync + 'static,
    ) -> Result<Self, IdentifyError> {
        IdentifyError::check(&self.limiter, name)?;
        let find: Arc<CustomIdentity> = Arc::new(move |request| find(request).map(Into::into));
        Ok(self.set(|config| config.custom.push((name.to_string(), find))))
    }

    /// Sets what the server counts together: a refusal pauses the requests for which this returns the same. By default
    /// it is the host, the credential (`authorization`, `x-api-key`, `api-key` or `x-goog-api-key`) and the limits
    /// that are for certain routes.
    #[must_use]
    pub fn quota_by<V: Into<Vec<u8>>>(
        self,
        key: impl Fn(&OutboundRequest<'_>) -> V + Send + Sync + 'static,
    ) -> Self {
        let key: Arc<QuotaKey> = Arc::new(move |request| key(request).into());
        self.set(|config| config.quota_by = Some(key))
    }

    /// Ignores what responses say about the server's quota. A refusal pauses nothing.
    #[must_use]
    pub fn without_learning(self) -> Self {
        self.set(|config| config.is_learning = false)
    }

    /// Sends every request once.
    #[must_use]
    pub fn without_retries(self) -> Self {
        self.set(|config| config.retry = None)
    }

    /// Sets when and how often requests are retried.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::client::{Backoff, Outbound, RetryRules};
    ///
    /// let rules = RetryRules::default()
    ///     .with_attempts_max(5)
    ///     .with_total_max(Duration::from_secs(10))
    ///     .with_backoff(Backoff::new(Duration::from_millis(50), Duration::from_secs(2)));
    /// let outbound = Outbound::new("100/s per host")?.retry(rules);
    /// # Ok::<(), ratekeeper::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn retry(self, rules: RetryRules) -> Self {
        self.set(|config| config.retry = Some(rules))
    }

    /// Sets how many retries are allowed, per quota: by default 20% of requests, and three per second.
    ///
    /// # Errors
    ///
    /// If the settings are out of range.
    pub fn retry_budget(self, budget: RetryBudgetConfig) -> Result<Self, RetryBudgetError> {
        let budget = RetryBudget::new(budget)?;
        Ok(self.set(|config| config.budget = budget))
    }

    /// Repeats requests of every method. Without it, a request is repeated only if its method is idempotent, it has an
    /// `idempotency-key`, or [`Repeatable`](super::Repeatable) is in its extensions.
    #[must_use]
    pub fn repeat_all_methods(self) -> Self {
        self.set(|config| config.repeats_all = true)
    }

    /// Does not send a part of the requests while the server refuses most of them (client-side throttling).
    ///
    /// ```
    /// use ratekeeper::client::{Outbound, Throttle};
    ///
    /// let outbound = Outbound::new("100/s per host")?.throttle(Throttle::default());
    /// # Ok::<(), ratekeeper::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn throttle(self, throttle: Throttle) -> Self {
        self.set(|config| config.throttle = Some(throttle))
    }

    /// Returns the server's refusals as responses instead of errors.
    #[must_use]
    pub fn pass_refusals(self) -> Self {
        self.set(|config| config.passes_refusals = true)
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> OutboundStats {
        self.shared.counters.read()
    }

    /// Returns the limiter, to replace its policy or to read the counters of its limits.
    pub fn limiter(&self) -> &PolicyLimiter {
        &self.limiter
    }

    /// Returns why no request can be sent: the policy has a custom identity that is not supplied.
    pub(super) fn setup_error(&self) -> Option<&Arc<str>> {
        let error = self.config.setup_error.get_or_init(|| {
            let names = self.config.custom.iter().map(|(name, _)| name.as_str());
            let supplied: Vec<&str> = names.collect();
            let declared = self.limiter.policy().declare_custom_identities(&supplied);
            declared.err().map(|error| error.to_string().into())
        });
        error.as_ref()
    }
}

impl std::fmt::Debug for Outbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbound").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for Outbound {
    type Service = OutboundService<S>;

    fn layer(&self, inner: S) -> OutboundService<S> {
        OutboundService::new(inner, self.clone())
    }
}

/// Adds layers to a client.
///
/// ```
/// use ratekeeper::client::{ClientExt, Outbound};
/// use tower::service_fn;
///
/// let client = service_fn(|_: http::Request<String>| async {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// });
/// let client = client.layer(Outbound::new("100/s per host")?);
/// # Ok::<(), ratekeeper::PolicyErrors>(())
/// ```
pub trait ClientExt<R>: Service<R> + Sized {
    /// Returns this client behind a layer.
    fn layer<L: Layer<Self>>(self, layer: L) -> L::Service {
        Layer::layer(&layer, self)
    }
}

impl<S: Service<R>, R> ClientExt<R> for S {}
