//! What a service calls, protected as a policy says: a rate, permits with a queue, a circuit breaker.
//!
//! Nothing is decided here: a call passes the limits of the engine, a [`Bulkhead`](crate::Bulkhead) or an
//! [`AdaptiveLimit`](crate::AdaptiveLimit), and a [`CircuitBreaker`], one after the other.

mod error;
mod parts;
mod permit;
mod registry;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use ratekeeper_control::BreakerState;
use ratekeeper_policy::DependencyRule;

pub use self::error::{
    DependencyError, DependencyRejected, DependencyRejection, UnknownDependency,
};
pub use self::permit::{CallOutcome, DependencyPermit};
pub(crate) use self::registry::{DependencyRegistry, PolicyDependencies};

use self::parts::Parts;
use crate::breaker::BreakerStats;
use crate::bulkhead::BulkheadStats;
use crate::engine::Engine;

/// A dependency of a policy: what is called, and what protects it. From
/// [`PolicyLimiter::dependency`](crate::PolicyLimiter::dependency).
///
/// A call passes, in this order:
///
/// 1. the circuit breaker, if it is open: the call is rejected at once;
/// 2. the concurrency, where it may wait in the queue;
/// 3. the rate, which is counted in the store of the policy, so that a fleet shares it;
/// 4. the circuit breaker again, which counts the call.
///
/// Clones share their state. When the policy is replaced, the state of a dependency is kept under its name: parts
/// whose settings are the same go on as they are, the others begin anew. A dependency that is no longer in the policy
/// keeps its last settings.
///
/// ```
/// use ratekeeper::policy::NoSources;
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::parse("policy.yaml", "
/// version: 1
/// dependencies:
///   inventory:
///     rate: 300/s
///     concurrency: { max: 40, queue: { max: 100, wait: 500ms } }
///     breaker: true
/// limits: []
/// ", &NoSources)?;
/// let limiter = PolicyLimiter::new(policy)?;
///
/// let inventory = limiter.dependency("inventory")?;
/// let in_stock = inventory.call(async { Ok::<_, std::io::Error>(3) }).await?;
/// assert_eq!(in_stock, 3);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Dependency {
    inner: Arc<Inner>,
}

struct Inner {
    name: Arc<str>,
    /// The upstream that it is for; empty if there is one for all.
    upstream: Arc<str>,
    engine: Arc<Engine>,
    parts: ArcSwap<Parts>,
    admitted: AtomicU64,
    rate_limited: AtomicU64,
}

impl Dependency {
    fn new(rule: &DependencyRule, upstream: &str, engine: Arc<Engine>) -> Self {
        let parts = Parts::new(rule, upstream, &engine, None);
        let inner = Inner {
            name: rule.name().into(),
            upstream: upstream.into(),
            engine,
            parts: ArcSwap::from_pointee(parts),
            admitted: AtomicU64::new(0),
            rate_limited: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Takes the settings of another policy.
    fn update(&self, rule: &DependencyRule) {
        let Inner { upstream, engine, parts, .. } = &*self.inner;
        let replaced = Parts::new(rule, upstream, engine, Some(&parts.load()));
        parts.store(Arc::new(replaced));
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the upstream that it is for, if each has its own.
    #[must_use]
    pub fn upstream(&self) -> Option<&str> {
        Some(&*self.inner.upstream).filter(|upstream| !upstream.is_empty())
    }

    /// Calls the dependency: awaits the future if the call is admitted, and reports whether it succeeded. An error is
    /// a failure. If that is too simple, use [`Dependency::acquire`].
    ///
    /// # Errors
    ///
    /// If the call is rejected, or fails.
    pub async fn call<T, E>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, DependencyError<E>> {
        let permit = self.acquire().await?;
        match call.await {
            Ok(value) => {
                permit.success();
                Ok(value)
            }
            Err(error) => {
                permit.failure();
                Err(DependencyError::Failed(error))
            }
        }
    }

    /// Returns a permit for one call, which takes its place until it is dropped. The outcome of the call is reported
    /// to the permit.
    ///
    /// ```
    /// # use ratekeeper::policy::NoSources;
    /// use ratekeeper::{Policy, PolicyLimiter};
    ///
    /// # async fn query() -> Result<u32, std::io::Error> { Ok(3) }
    /// # async fn f(limiter: PolicyLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let permit = limiter.dependency("inventory")?.acquire().await?;
    /// match query().await {
    ///     Ok(_) => permit.success(),
    ///     Err(error) if error.kind() == std::io::ErrorKind::TimedOut => permit.overloaded(),
    ///     Err(error) if error.kind() == std::io::ErrorKind::NotFound => permit.ignore(),
    ///     Err(_) => permit.failure(),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the call is rejected: by the rate, because all permits are in use, or because the circuit breaker is open.
    pub async fn acquire(&self) -> Result<DependencyPermit, DependencyRejected> {
        let parts = self.inner.parts.load_full();
        let acquired = parts.acquire(&self.inner.engine).await;
        let counter = match &acquired {
            Ok(_) => Some(&self.inner.admitted),
            Err(DependencyRejection::RateLimited { .. }) => Some(&self.inner.rate_limited),
            Err(_) => None, // counted by what rejected it
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        acquired.map_err(|reason| self.rejected(reason))
    }

    /// Returns whether the circuit breaker, if there is one, would permit a call now. Nothing is taken or counted.
    ///
    /// # Errors
    ///
    /// If it is open.
    pub fn check_breaker(&self) -> Result<(), DependencyRejected> {
        self.inner.parts.load().check_breaker().map_err(|reason| self.rejected(reason))
    }

    /// Returns whether there is a circuit breaker.
    #[must_use]
    pub fn has_breaker(&self) -> bool {
        self.inner.parts.load().breaker_state().is_some()
    }

    /// Closes the circuit breaker: a check of the dependency, which was no call, has found that it works again.
    pub fn probe_succeeded(&self) {
        self.inner.parts.load().probe_succeeded();
    }

    /// Returns the counters and the state.
    #[must_use]
    pub fn stats(&self) -> DependencyStats {
        let parts = self.inner.parts.load();
        DependencyStats {
            admitted: self.inner.admitted.load(Ordering::Relaxed),
            rate_limited: self.inner.rate_limited.load(Ordering::Relaxed),
            permits: parts.permit_stats(),
            breaker_state: parts.breaker_state(),
            breaker: parts.breaker_stats(),
        }
    }

    fn rejected(&self, reason: DependencyRejection) -> DependencyRejected {
        DependencyRejected { dependency: Arc::clone(&self.inner.name), reason }
    }
}

impl fmt::Debug for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dependency")
            .field("name", &self.inner.name)
            .field("upstream", &self.inner.upstream)
            .finish_non_exhaustive()
    }
}

/// What a [`Dependency`] has done so far.
///
/// ```
/// use ratekeeper::Dependency;
///
/// fn is_waited_for(dependency: &Dependency) -> bool {
///     dependency.stats().permits.is_some_and(|permits| permits.waiting > 0)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DependencyStats {
    /// Calls that were admitted.
    pub admitted: u64,
    /// Calls that were rejected by the rate.
    pub rate_limited: u64,
    /// The permits and their queue, if the concurrency is limited.
    pub permits: Option<BulkheadStats>,
    /// The state of the circuit breaker, if there is one.
    pub breaker_state: Option<BreakerState>,
    /// What the circuit breaker has counted.
    pub breaker: Option<BreakerStats>,
}
