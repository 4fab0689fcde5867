//! Permits to be in flight: of this process, or of the whole fleet if the store is shared.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

use ratekeeper_core::FailureMode;

use super::apply::Engine;
use crate::concurrency::{ConcurrencyLimit, Permit};

#[cfg(feature = "redis")]
use {
    super::apply::EngineStore,
    crate::shared::{AcquireError, PermitId, SharedConcurrencyLimit, SharedPermit},
    ratekeeper_stores::StoreError,
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
    #[cfg(feature = "redis")]
    Fleet(#[expect(dead_code, reason = "held for what its drop does")] SharedPermit),
}

/// A permit from [`Engine::hold`].
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{HeldPermit, Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let held = limiter.engine().hold("exports", b"acme", 1, Duration::from_secs(60)).await;
/// assert!(matches!(held, Some(HeldPermit::InProcess(_))));
/// assert!(limiter.engine().hold("exports", b"acme", 1, Duration::from_secs(60)).await.is_none());
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a permit in the store stays held until it is released or expires"]
pub enum HeldPermit {
    /// Held in this process until it is dropped.
    InProcess(Permit),
    /// Held in a shared store.
    #[cfg(feature = "redis")]
    InStore(PermitId),
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

    /// Returns one of `max` permits of this name and key that is held for `valid` or until it is released;
    /// `None` if all are held.
    ///
    /// In a shared store the permit does not depend on this process: any process can release it
    /// ([`Engine::release`]). In memory, and while the store is unavailable, the caller holds it and must
    /// drop it in time. A name that is in no policy costs no memory once none of its permits is held.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "memory has no expiry"))]
    pub async fn hold(
        &self,
        name: &str,
        key: &[u8],
        max: u64,
        valid: Duration,
    ) -> Option<HeldPermit> {
        let key = caller_key(name, key);
        let on_failure = self.failure_mode();
        let request = PermitRequest { name: &CALLERS, key: &key, max, on_failure };
        #[cfg(feature = "redis")]
        if let EngineStore::Shared(fallback) = &self.store {
            if fallback.is_called(request.key) {
                match self.fleet(&request)?.hold(request.key, valid).await {
                    Ok(id) => return Some(HeldPermit::InStore(id)),
                    Err(AcquireError::NoPermits { .. }) => return None,
                    Err(AcquireError::Store(_)) => {}
                }
            }
            return self.acquire_without_store(&request).map(HeldPermit::InProcess);
        }
        self.permits.acquire(&request, max).map(HeldPermit::InProcess)
    }

    /// Releases a permit that [`Engine::hold`] has put into a shared store, and returns whether it was still
    /// held.
    ///
    /// # Errors
    ///
    /// If the store is unavailable.
    #[cfg(feature = "redis")]
    pub async fn release(&self, name: &str, key: &[u8], id: PermitId) -> Result<bool, StoreError> {
        let key = caller_key(name, key);
        let on_failure = self.failure_mode();
        let request = PermitRequest { name: &CALLERS, key: &key, max: 0, on_failure };
        match self.fleet(&request) {
            Some(fleet) => fleet.release(request.key, id).await,
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

/// All permits that are in no policy share one name.
static CALLERS: LazyLock<Arc<str>> = LazyLock::new(|| "callers".into());

/// The length of the name keeps any two pairs of name and key apart.
fn caller_key(name: &str, key: &[u8]) -> Vec<u8> {
    [&(name.len() as u64).to_be_bytes(), name.as_bytes(), key].concat()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{Policy, PolicyLimiter};

    #[test]
    fn names_of_callers_are_not_remembered() {
        let limiter = PolicyLimiter::new(Policy::one_line("1/s per ip").unwrap()).unwrap();
        let engine = limiter.engine();
        let hold = |name: String, key: &'static [u8]| async move {
            engine.hold(&name, key, 1, Duration::from_secs(60)).await
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for name in 0..100 {
                assert!(hold(name.to_string(), b"k").await.is_some());
            }
            let held = hold("a".into(), b"bc").await;
            assert!(held.is_some() && hold("a".into(), b"bc").await.is_none());
            assert!(hold("ab".into(), b"c").await.is_some());
        });
        assert_eq!(engine.permits.0.read().unwrap().len(), 1);
    }
}
