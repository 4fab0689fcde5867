//! Permits to be in flight: of this process, or of the whole fleet if the store is shared.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

use ratekeeper_core::FailureMode;
use ratekeeper_policy::Policy;
use ratekeeper_stores::StoreError;

use super::apply::Engine;
use super::hold_id::HoldId;
use super::hold_table::TooManyHeld;
use super::reservations::retry_hint;
use super::service_permits::{ConcurrencyStats, EngineClock, ServicePermitRequest};
use crate::adaptive_limit::AdaptivePermit;
use crate::bulkhead::BulkheadError;
use crate::concurrency::{ConcurrencyLimit, Permit};
use crate::shedder::{ClassStats, Shedder};

#[cfg(feature = "redis")]
use {
    super::apply::EngineStore,
    crate::shared::{AcquireError, PermitId, SharedConcurrencyLimit, SharedPermit},
};

/// A request for one of `max` permits of this name and key.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "memory does not fail"))]
pub(crate) struct PermitRequest<'a> {
    pub(crate) name: &'a Arc<str>,
    pub(crate) key: &'a [u8],
    pub(crate) max: u64,
    pub(crate) on_failure: FailureMode,
}

/// A permit to be in flight until it is dropped.
#[derive(Debug)]
pub(crate) enum InFlightPermit {
    Local(#[expect(dead_code, reason = "held for what its drop does")] Permit),
    /// Of an adaptive limit, which learns from the response.
    Adaptive(AdaptivePermit<'static, EngineClock>),
    #[cfg(feature = "redis")]
    Fleet(#[expect(dead_code, reason = "held for what its drop does")] SharedPermit),
}

/// A permit that a caller holds by an id which the store does not know.
#[derive(Debug)]
pub(super) enum LocalHold {
    /// Released when it is dropped.
    InProcess(#[expect(dead_code, reason = "held for what its drop does")] Permit),
    /// In the store, which then failed to keep where it is.
    #[cfg(feature = "redis")]
    InStore { key: Vec<u8>, id: PermitId },
}

/// Why a permit was not released.
///
/// ```
/// use ratekeeper::PermitError;
///
/// fn is_worth_a_retry(error: &PermitError) -> bool {
///     matches!(error, PermitError::Store(_))
/// }
/// # assert!(!is_worth_a_retry(&PermitError::NotHeld));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PermitError {
    /// There is no such permit.
    #[error("there is no such permit: it was released before, or it has expired")]
    NotHeld,
    /// It was granted without the store, and not by this process.
    #[error(
        "this permit was granted while the store was unavailable, so only the server that granted it can \
         release it; this is another one, or it was released, or it has expired"
    )]
    HeldElsewhere,
    /// The store is unavailable.
    #[error("the permit was not released and is still held{hint}: {0}", hint = retry_hint(.0))]
    Store(#[source] StoreError),
}

/// The permits of this process, by the name of their limit. They outlive a policy.
#[derive(Debug, Default)]
pub(super) struct LocalPermits(RwLock<HashMap<Arc<str>, ConcurrencyLimit>>);

impl LocalPermits {
    fn acquire(&self, request: &PermitRequest<'_>, max: u64) -> Option<Permit> {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        self.of(request.name).try_acquire_of(max, request.key)
    }

    fn of(&self, name: &Arc<str>) -> ConcurrencyLimit {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            all.entry(name.clone()).or_insert_with(ConcurrencyLimit::unbounded).clone()
        })
    }
}

impl Engine {
    /// Returns a permit of a limit that protects a service. It is released when it is dropped.
    pub(crate) async fn acquire_of_service(
        &self,
        request: ServicePermitRequest<'_>,
    ) -> Result<InFlightPermit, BulkheadError> {
        self.service_permits.acquire(request).await
    }

    /// Takes over what a policy says about permits and load shedding. What was learned stays, by the name of the limit.
    pub(crate) fn set_protection(&self, policy: &Policy) {
        self.service_permits.set_shedding(policy.shedding());
        policy.limits().iter().for_each(|limit| self.service_permits.prepare(limit));
        let is_known = |name: &str| {
            // Shares of a limit are named after it.
            let own = name.split('~').next().unwrap_or(name);
            policy.limits().iter().any(|rule| rule.name() == own)
        };
        self.service_permits.retain(is_known);
    }

    /// Returns what sheds requests, if the policy does.
    pub(crate) fn shedder(&self) -> Option<Shedder<EngineClock>> {
        self.service_permits.shedder()
    }

    /// Returns what happened at each concurrency limit that is adaptive or has a queue, by name.
    #[must_use]
    pub fn concurrency_stats(&self) -> Vec<ConcurrencyStats> {
        self.service_permits.stats()
    }

    /// Returns what was shed of each priority class, the most important one first. Empty if the policy sheds nothing.
    #[must_use]
    pub fn shed_stats(&self) -> Vec<ClassStats> {
        self.shedder().map(|shedder| shedder.stats()).unwrap_or_default()
    }

    /// Returns a permit, or `None` if all are held. The permit is released when it is dropped.
    pub(crate) async fn acquire(&self, request: PermitRequest<'_>) -> Option<InFlightPermit> {
        #[cfg(feature = "redis")]
        if let EngineStore::Shared(fallback) = &self.store {
            if fallback.is_called(request.key) {
                match self.fleet(&request)?.acquire(request.key).await {
                    Ok(permit) => return Some(InFlightPermit::Fleet(permit)),
                    Err(AcquireError::NoPermits { .. }) => return None,
                    Err(AcquireError::Store(_)) => {}
                }
            }
            return self.acquire_without_store(&request).map(InFlightPermit::Local);
        }
        self.permits.acquire(&request, request.max).map(InFlightPermit::Local)
    }

    /// Returns the id of one of `max` permits of this name and key, which is held for `valid` or until it is
    /// released ([`Engine::release`]); `None` if all are held.
    ///
    /// In a shared store the permit does not depend on this process: every process that shares the store
    /// can release it. In memory, and while the store is unavailable ([`HoldId::is_degraded`]), this
    /// process holds it. A name that is in no policy costs no memory once none of its permits is held.
    ///
    /// # Errors
    ///
    /// If too many permits are held in this process.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::{Policy, PolicyLimiter};
    ///
    /// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let (engine, minute) = (limiter.engine(), Duration::from_secs(60));
    /// let id = engine.hold("exports", b"acme", 1, minute).await.unwrap().expect("one is free");
    /// assert!(engine.hold("exports", b"acme", 1, minute).await.unwrap().is_none());
    /// engine.release(id).await.unwrap();
    /// # });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn hold(
        &self,
        name: &str,
        key: &[u8],
        max: u64,
        valid: Duration,
    ) -> Result<Option<HoldId>, TooManyHeld> {
        let key = caller_key(name, key);
        let on_failure = self.failure_mode();
        let request = PermitRequest { name: &CALLERS, key: &key, max, on_failure };
        #[cfg(feature = "redis")]
        if let EngineStore::Shared(fallback) = &self.store {
            if fallback.is_called(request.key)
                && let Some(held) = self.hold_in_store(&request, valid).await
            {
                return held;
            }
            let permit = self.acquire_without_store(&request);
            return self.hold_here(HoldId::random().degraded(), permit, valid);
        }
        let permit = self.permits.acquire(&request, max);
        self.hold_here(HoldId::random(), permit, valid)
    }

    fn hold_here(
        &self,
        id: HoldId,
        permit: Option<Permit>,
        valid: Duration,
    ) -> Result<Option<HoldId>, TooManyHeld> {
        let Some(permit) = permit else { return Ok(None) };
        self.held_permits.insert(id, LocalHold::InProcess(permit), valid, self.now())?;
        Ok(Some(id))
    }

    /// Returns `None` if the store is unavailable.
    #[cfg(feature = "redis")]
    async fn hold_in_store(
        &self,
        request: &PermitRequest<'_>,
        valid: Duration,
    ) -> Option<Result<Option<HoldId>, TooManyHeld>> {
        let fleet = self.fleet(request)?;
        let permit = match fleet.hold(request.key, valid).await {
            Ok(id) => id,
            Err(AcquireError::NoPermits { .. }) => return Some(Ok(None)),
            Err(AcquireError::Store(_)) => return None,
        };
        let id = HoldId::of_number(permit.0);
        if fleet.put_location(request.key, permit, valid).await.is_ok() {
            return Some(Ok(Some(id)));
        }
        let (id, key) = (id.degraded(), request.key.to_vec());
        let held = LocalHold::InStore { key, id: permit };
        let held = self.held_permits.insert(id, held, valid, self.now());
        Some(held.map(|()| Some(id)))
    }

    /// Releases a permit from [`Engine::hold`].
    ///
    /// # Errors
    ///
    /// If there is no such permit, or the store is unavailable. It is still held then.
    pub async fn release(&self, id: HoldId) -> Result<(), PermitError> {
        match self.held_permits.remove(id, self.now()) {
            Some((_, LocalHold::InProcess(_))) => return Ok(()),
            #[cfg(feature = "redis")]
            Some((deadline, LocalHold::InStore { key, id: permit })) => {
                // It is known until the store has released it: this call can fail, or be cancelled.
                let held = LocalHold::InStore { key: key.clone(), id: permit };
                self.held_permits.reinsert(id, held, deadline);
                let was_held = self.release_in_store(&key, permit).await;
                if was_held.is_ok() {
                    self.held_permits.remove(id, self.now());
                }
                return released(was_held);
            }
            None if id.is_degraded() => return Err(PermitError::HeldElsewhere),
            None => {}
        }
        #[cfg(feature = "redis")]
        if let EngineStore::Shared(fallback) = &self.store {
            return released(fallback.store().redis().release_permit_of(id.number()).await);
        }
        Err(PermitError::NotHeld)
    }

    #[cfg(feature = "redis")]
    async fn release_in_store(&self, key: &[u8], id: PermitId) -> Result<bool, StoreError> {
        let on_failure = self.failure_mode();
        let request = PermitRequest { name: &CALLERS, key, max: 0, on_failure };
        match self.fleet(&request) {
            Some(fleet) => fleet.release(key, id).await,
            None => Ok(false),
        }
    }

    /// Returns the permits of the fleet, if the store is shared.
    #[cfg(feature = "redis")]
    fn fleet(&self, request: &PermitRequest<'_>) -> Option<SharedConcurrencyLimit> {
        let fallback = self.fallback()?;
        fallback.start();
        let store = fallback.store().redis().clone();
        Some(SharedConcurrencyLimit::new(request.name, request.max, store))
    }

    #[cfg(feature = "redis")]
    fn acquire_without_store(&self, request: &PermitRequest<'_>) -> Option<Permit> {
        let nodes = self.fallback().map_or(1, |fallback| u64::from(fallback.nodes()));
        match request.on_failure {
            FailureMode::Local => self.permits.acquire(request, (request.max / nodes).max(1)),
            FailureMode::Open => self.permits.acquire(request, u64::MAX),
            FailureMode::Closed => None,
        }
    }
}

#[cfg(feature = "redis")]
fn released(was_held: Result<bool, StoreError>) -> Result<(), PermitError> {
    match was_held {
        Ok(true) => Ok(()),
        Ok(false) => Err(PermitError::NotHeld),
        Err(error) => Err(PermitError::Store(error)),
    }
}

/// All permits that are in no policy share one name.
static CALLERS: LazyLock<Arc<str>> = LazyLock::new(|| "callers".into());

/// The length of the name keeps any two pairs of name and key apart.
fn caller_key(name: &str, key: &[u8]) -> Vec<u8> {
    [&(name.len() as u64).to_be_bytes(), name.as_bytes(), key].concat()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::PolicyLimiter;
    use crate::engine::hold_table::HOLDS_MAX;

    const MINUTE: Duration = Duration::from_secs(60);

    fn limiter() -> PolicyLimiter {
        PolicyLimiter::new(Policy::one_line("1/s per ip").unwrap()).unwrap()
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn names_of_callers_are_not_remembered() {
        let limiter = limiter();
        let engine = limiter.engine();
        let hold = |name: &str, key| block_on(engine.hold(name, key, 1, MINUTE)).unwrap();
        for name in 0..100 {
            let id = hold(&name.to_string(), b"k").unwrap();
            block_on(engine.release(id)).unwrap();
        }
        assert!(hold("a", b"bc").is_some() && hold("a", b"bc").is_none());
        assert!(hold("ab", b"c").is_some());
        assert_eq!(engine.permits.0.read().unwrap().len(), 1);
    }

    #[test]
    fn only_a_failure_that_can_pass_is_worth_a_retry() {
        let late = PermitError::Store(StoreError::Deadline(MINUTE)).to_string();
        assert!(late.contains("still held; retry: "), "{late}");
        let other = PermitError::Store(StoreError::OtherVersion).to_string();
        assert!(other.contains("still held: ") && !other.contains("retry"), "{other}");
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_release_that_is_cancelled_can_be_repeated() {
        let redis = ratekeeper_testkit::RedisServer::start();
        let text =
            format!("version: 1\nstore: {{ url: '{}', deadline: 5s }}\nlimits: []", redis.url());
        let policy = Policy::parse("p", &text, &crate::policy::NoSources).unwrap();
        let limiter = PolicyLimiter::new(policy).unwrap();
        let engine = limiter.engine();
        let held = engine.hold("exports", b"acme", 1, MINUTE).await.unwrap().unwrap();
        // As if the store had failed to keep where it is.
        let (id, permit) = (held.degraded(), PermitId(held.number()));
        let held = LocalHold::InStore { key: caller_key("exports", b"acme"), id: permit };
        engine.held_permits.insert(id, held, MINUTE, engine.now()).unwrap();
        {
            let mut release = std::pin::pin!(engine.release(id));
            let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
            assert!(release.as_mut().poll(context).is_pending());
        }
        assert!(matches!(engine.release(id).await, Ok(()) | Err(PermitError::NotHeld)));
        assert!(engine.hold("exports", b"acme", 1, MINUTE).await.unwrap().is_some());
        assert_eq!(engine.release(id).await, Err(PermitError::HeldElsewhere), "only once");
    }

    #[test]
    fn permits_above_the_bound_are_rejected_and_not_held() {
        let limiter = limiter();
        let engine = limiter.engine();
        let hold = |n: usize| block_on(engine.hold("n", n.to_string().as_bytes(), 1, MINUTE));
        let first = hold(0).unwrap().unwrap();
        (1..HOLDS_MAX).for_each(|n| assert!(hold(n).unwrap().is_some()));
        for _ in 0..2 {
            // Not `None` the second time: a permit that has no entry in the table is not held.
            assert_eq!(hold(HOLDS_MAX), Err(TooManyHeld));
        }
        assert_eq!(block_on(engine.release(first)), Ok(()));
        assert_eq!(block_on(engine.release(first)), Err(PermitError::NotHeld));
        assert!(hold(HOLDS_MAX).unwrap().is_some(), "one was released");
    }
}
