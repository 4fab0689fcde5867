//! Permits that a fleet shares: a limit on how many requests are in flight on all nodes together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{FailureMode, Key};
use ratekeeper_stores::{PermitStore, RedisStore};

use super::{BreakerState, FallbackStats, StoreState};
use crate::engine::fallback::{Fallback, FleetLimit, TTL};
use crate::engine::{HoldId, PermitError};

pub use crate::engine::fallback::{AcquireError, SharedPermit};

/// Limits how many requests are in flight per key, in the whole fleet.
///
/// A permit is renewed in the background while it is held, and released when it is dropped. If its process
/// dies, it expires after ten seconds ([`SharedConcurrencyLimit::with_ttl`]).
/// [`SharedConcurrencyLimit::hold`] returns permits that expire at a fixed time instead.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ratekeeper::{RedisConfig, SharedConcurrencyLimit};
///
/// let store = RedisConfig::new("redis://127.0.0.1:6379").open()?;
/// let exports = SharedConcurrencyLimit::new("exports", 5, store);
/// let permit = exports.acquire("tenant-7").await?;
/// // … at most five of tenant-7's exports run at a time, on all nodes together …
/// drop(permit);
/// # Ok(())
/// # }
/// ```
///
/// # When the store is slow or unavailable
///
/// As for [`SharedLimiter`](crate::SharedLimiter), there is a decision within the store's deadline, a circuit
/// breaker, and a [`FailureMode`] ([`SharedConcurrencyLimit::on_failure`]). By default each node grants its
/// share: `max` divided by the number of nodes, at least one, of which it has used what the store has granted
/// it. [`SharedPermit::degraded`] says that the store did not grant a permit. When the store is available
/// again, it learns of every permit that is still held.
///
/// It needs a tokio runtime from the first call on.
pub struct SharedConcurrencyLimit<S = RedisStore> {
    limit: FleetLimit,
    fallback: Arc<Fallback<S>>,
}

impl<S> Clone for SharedConcurrencyLimit<S> {
    fn clone(&self) -> Self {
        Self { limit: self.limit.clone(), fallback: self.fallback.clone() }
    }
}

impl<S> fmt::Debug for SharedConcurrencyLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FleetLimit { name, max, .. } = &self.limit;
        f.debug_struct("SharedConcurrencyLimit")
            .field("name", name)
            .field("max", max)
            .finish_non_exhaustive()
    }
}

impl<S: PermitStore + Send + Sync + 'static> SharedConcurrencyLimit<S> {
    /// Returns a limit of `max` per key. Limits of the same name share their permits.
    ///
    /// If the process has other limits in this store, make it from one of them, so that they share a circuit
    /// breaker and count as one node: [`SharedLimiter::concurrency`](crate::SharedLimiter::concurrency),
    /// [`SharedConcurrencyLimit::with_limit`].
    pub fn new(name: &str, max: u64, store: S) -> Self {
        Self::over(Fallback::new(store), name, max)
    }

    pub(crate) fn over(fallback: Arc<Fallback<S>>, name: &str, max: u64) -> Self {
        let on_failure = FailureMode::default();
        Self { limit: FleetLimit { name: name.into(), max, ttl: TTL, on_failure }, fallback }
    }

    /// Returns a limit of another name over the same store.
    #[must_use]
    pub fn with_limit(&self, name: &str, max: u64) -> Self {
        let limit = FleetLimit { name: name.into(), max, ..self.limit.clone() };
        Self { limit, ..self.clone() }
    }

    /// Sets how long a permit is held unless it is renewed; at least a tenth of a second.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.limit.ttl = ttl.max(Duration::from_millis(100));
        self
    }

    /// Sets what happens when the store is unavailable: permits of this node's share (the default), permits
    /// without a limit, or none.
    #[must_use]
    pub fn on_failure(mut self, on_failure: FailureMode) -> Self {
        self.limit.on_failure = on_failure;
        self
    }

    /// Sets the number of nodes by which limits are divided while the store is unavailable, instead of counting
    /// the nodes.
    #[must_use]
    pub fn with_nodes(self, nodes: u32) -> Self {
        self.fallback.fix_nodes(nodes);
        self
    }

    /// Returns a permit for this key.
    ///
    /// # Errors
    ///
    /// If all permits are held; while the store is unavailable, if this node's share is held, or there are no
    /// permits without the store ([`FailureMode::Closed`]).
    pub async fn acquire<K: Key + ?Sized>(&self, key: &K) -> Result<SharedPermit, AcquireError> {
        self.fallback.acquire_permit(&self.limit, key.key_bytes()).await
    }

    /// Returns the id of a permit that is held for this long, at least a millisecond, or until it is released,
    /// even if this process exits. Any process that shares the store can release it
    /// ([`SharedConcurrencyLimit::release`]). While the store is unavailable ([`HoldId::is_degraded`]), this
    /// process holds it, and only this one can release it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::SharedConcurrencyLimit;
    ///
    /// # async fn f(exports: SharedConcurrencyLimit) -> Result<(), Box<dyn std::error::Error>> {
    /// let id = exports.hold("tenant-7", Duration::from_secs(60)).await?;
    /// // Another process that gets the text of the id can release the permit.
    /// let text = id.to_string();
    /// exports.release(text.parse()?).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`SharedConcurrencyLimit::acquire`], and if too many are held in this process. The store may have
    /// granted the permit all the same; it is then released in the background, and expires if that fails too.
    pub async fn hold<K: Key + ?Sized>(
        &self,
        key: &K,
        valid: Duration,
    ) -> Result<HoldId, AcquireError> {
        self.fallback.hold_permit(&self.limit, key.key_bytes(), valid).await
    }

    /// Releases a permit from [`SharedConcurrencyLimit::hold`].
    ///
    /// # Errors
    ///
    /// If there is no such permit, or the store is unavailable. It is still held then.
    pub async fn release(&self, id: HoldId) -> Result<(), PermitError> {
        self.fallback.release_permit(id).await
    }

    /// Returns whether the store is available.
    pub fn state(&self) -> StoreState {
        self.fallback.state()
    }

    /// Returns the state of the circuit breaker.
    pub fn breaker_state(&self) -> BreakerState {
        self.fallback.breaker_state()
    }

    /// Returns counters of the store and its fallback.
    pub fn stats(&self) -> FallbackStats {
        self.fallback.stats()
    }
}
