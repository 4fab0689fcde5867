//! Permits to be in flight: of this process, or of the whole fleet if the store is shared.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

use ratekeeper_core::FailureMode;
use ratekeeper_policy::Policy;

use super::apply::Engine;
use super::hold_id::HoldId;
use super::hold_table::TooManyHeld;
use super::permit_error::PermitError;
use super::service_permits::{ConcurrencyStats, EngineClock, ServicePermitRequest};
use crate::adaptive_limit::AdaptivePermit;
use crate::bulkhead::BulkheadError;
use crate::concurrency::{ConcurrencyLimit, Permit};
use crate::shedder::{ClassStats, Shedder};

#[cfg(feature = "redis")]
use {
    super::apply::EngineStore,
    super::fallback::{AcquireError, FleetLimit, SharedPermit, TTL},
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
    Fleet(SharedPermit),
}

impl InFlightPermit {
    /// Returns whether it was granted without the store, which is unavailable.
    pub(crate) fn is_degraded(&self) -> bool {
        match self {
            Self::Local(_) | Self::Adaptive(_) => false,
            #[cfg(feature = "redis")]
            Self::Fleet(permit) => permit.degraded().is_some(),
        }
    }
}

/// All permits are held.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PermitRefused {
    /// Whether it was decided without the store, which is unavailable.
    pub(crate) is_degraded: bool,
}

/// The permits of this process, by the name of their limit. They outlive a policy.
#[derive(Debug, Default)]
pub(super) struct LocalPermits(RwLock<HashMap<Arc<str>, ConcurrencyLimit>>);

impl LocalPermits {
    fn acquire(&self, request: &PermitRequest<'_>) -> Option<Permit> {
        let max = usize::try_from(request.max).unwrap_or(usize::MAX);
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

    /// Returns a permit, which is released when it is dropped.
    pub(crate) async fn acquire(
        &self,
        request: PermitRequest<'_>,
    ) -> Result<InFlightPermit, PermitRefused> {
        #[cfg(feature = "redis")]
        if let EngineStore::Shared(fallback) = &self.store {
            let permit = fallback.acquire_permit(&request.fleet_limit(), request.key).await;
            return permit.map(InFlightPermit::Fleet).map_err(|error| PermitRefused {
                is_degraded: !matches!(error, AcquireError::NoPermits { .. }),
            });
        }
        let permit = self.permits.acquire(&request).map(InFlightPermit::Local);
        permit.ok_or(PermitRefused::default())
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
            return match fallback.hold_permit(&request.fleet_limit(), request.key, valid).await {
                Ok(id) => Ok(Some(id)),
                Err(AcquireError::TooManyHeld(error)) => Err(error),
                Err(_) => Ok(None),
            };
        }
        let Some(permit) = self.permits.acquire(&request) else { return Ok(None) };
        let id = HoldId::random();
        self.held_permits.insert(id, permit, valid, self.now())?;
        Ok(Some(id))
    }

    /// Releases a permit from [`Engine::hold`].
    ///
    /// # Errors
    ///
    /// If there is no such permit, or the store is unavailable. It is still held then.
    pub async fn release(&self, id: HoldId) -> Result<(), PermitError> {
        #[cfg(feature = "redis")]
        if let EngineStore::Shared(fallback) = &self.store {
            return fallback.release_permit(id).await;
        }
        match self.held_permits.remove(id, self.now()) {
            Some(_) => Ok(()),
            None if id.is_degraded() => Err(PermitError::HeldElsewhere),
            None => Err(PermitError::NotHeld),
        }
    }
}

#[cfg(feature = "redis")]
impl PermitRequest<'_> {
    fn fleet_limit(&self) -> FleetLimit {
        let Self { name, max, on_failure, .. } = *self;
        FleetLimit { name: name.clone(), max, ttl: TTL, on_failure }
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
