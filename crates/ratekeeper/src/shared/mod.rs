//! Limits that a fleet shares, over Redis or Valkey, with a fallback for when the store is unavailable.

mod key_request;
mod permits;

use std::sync::Arc;

use ratekeeper_core::{FailureMode, Key, Limit, LimitError};
use ratekeeper_stores::{
    Charge, ChargesError, Op, PermitStore, RedisConfig, RedisStore, RedisUrlError,
    ReservationStore, SharedStore,
};

use crate::engine::fallback::Fallback;
use crate::engine::{Applied, HoldId, ReservationError, Settled};
use crate::histogram::DurationCounts;

pub use crate::engine::fallback::{BreakerState, FallbackStats, StoreState};
pub use key_request::{SettleError, SharedKeyRequest, SharedReservation};
pub use permits::{AcquireError, SharedConcurrencyLimit, SharedPermit};

/// Decides per key whether a request may proceed now, in a store that many nodes share.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ratekeeper::SharedLimiter;
///
/// let limiter = SharedLimiter::connect("100/minute", "redis://127.0.0.1:6379")?;
/// let applied = limiter.check("user:42").await;
/// if !applied.allowed() {
///     // respond 429 with Retry-After: applied.retry_after_secs()
/// }
/// # Ok(())
/// # }
/// ```
///
/// # When the store is slow or unavailable
///
/// There is always a decision, and never later than the store's deadline (5 ms by default). What it is then
/// is the [`FailureMode`] of the limiter ([`SharedLimiter::on_failure`]) or of the request
/// ([`SharedKeyRequest::on_failure`]); [`Applied::degraded`] says that the store did not decide. After three
/// failures in a row the circuit breaker opens: the store is only probed in the background. When it is
/// available again, the breaker is half-open and lets a few calls at a time through.
///
/// By default each node then decides by its share: the limit divided by the number of nodes, which announce
/// themselves in the store. What the nodes admit by themselves is charged to the store afterwards, so that a
/// store that fails again and again does not add to the limit. A node that starts while the store is
/// unavailable knows of no others and takes the whole limit, unless their number is given
/// ([`SharedLimiter::with_nodes`]).
///
/// A limiter starts without its store. [`SharedLimiter::state`] returns whether the store is available, and
/// [`SharedLimiter::on_change`] reports changes.
///
/// # Hot keys
///
/// Over a [`LeasedStore`](ratekeeper_stores::LeasedStore), hot keys are decided in memory, with units that
/// were charged to the store before. The nodes together never exceed the limit.
///
/// ```no_run
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ratekeeper::{LeasedStore, RedisConfig, SharedLimiter};
///
/// let store = RedisConfig::new("redis://127.0.0.1:6379").open()?;
/// let limiter = SharedLimiter::new("100000/s", LeasedStore::new(store))?;
/// # Ok(())
/// # }
/// ```
///
/// It needs a tokio runtime from the first call on.
pub struct SharedLimiter<S = RedisStore> {
    limit: Limit,
    on_failure: FailureMode,
    fallback: Arc<Fallback<S>>,
}

impl<S> Clone for SharedLimiter<S> {
    fn clone(&self) -> Self {
        Self {
            limit: self.limit.clone(),
            on_failure: self.on_failure,
            fallback: self.fallback.clone(),
        }
    }
}

impl<S> std::fmt::Debug for SharedLimiter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedLimiter").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl SharedLimiter {
    /// Returns a limiter over the store at this address (see [`RedisConfig::new`]). Takes a [`Limit`], or a
    /// rate such as `"100/minute"`. The first call connects.
    ///
    /// # Errors
    ///
    /// If the limit or the address is invalid.
    pub fn connect<L>(limit: L, url: &str) -> Result<Self, ConnectError>
    where
        L: TryInto<Limit>,
        LimitError: From<L::Error>,
    {
        let store = RedisConfig::new(url).open().map_err(ConnectError::Url)?;
        Self::new(limit, store).map_err(ConnectError::Limit)
    }
}

impl<S: SharedStore + Send + Sync + 'static> SharedLimiter<S> {
    /// Returns a limiter over a store.
    ///
    /// # Errors
    ///
    /// If the limit is invalid.
    pub fn new<L>(limit: L, store: S) -> Result<Self, LimitError>
    where
        L: TryInto<Limit>,
        LimitError: From<L::Error>,
    {
        let limit = limit.try_into()?;
        Ok(Self { limit, on_failure: FailureMode::default(), fallback: Fallback::new(store) })
    }

    /// Sets what happens when the store is unavailable, unless a request says otherwise.
    #[must_use]
    pub fn on_failure(self, on_failure: FailureMode) -> Self {
        Self { on_failure, ..self }
    }

    /// Sets the number of nodes by which limits are divided while the store is unavailable, instead of counting
    /// the nodes.
    #[must_use]
    pub fn with_nodes(self, nodes: u32) -> Self {
        self.fallback.fix_nodes(nodes);
        self
    }

    /// Calls `observer` whenever the store becomes unavailable or available. Clones share it; only the first
    /// is kept.
    #[must_use]
    pub fn on_change(self, observer: impl Fn(&StoreState) + Send + Sync + 'static) -> Self {
        self.fallback.on_change(Box::new(observer));
        self
    }

    /// Returns a limiter with another limit over the same store.
    ///
    /// # Errors
    ///
    /// If the limit is invalid.
    pub fn with_limit<L>(&self, limit: L) -> Result<Self, LimitError>
    where
        L: TryInto<Limit>,
        LimitError: From<L::Error>,
    {
        Ok(Self { limit: limit.try_into()?, ..self.clone() })
    }

    /// Charges 1 to `key` if the limit allows it.
    pub async fn check<K: Key + ?Sized>(&self, key: &K) -> Applied {
        self.key(key).check().await
    }

    /// Returns a builder for every other operation on a key.
    pub fn key<'a, K: Key + ?Sized>(&'a self, key: &'a K) -> SharedKeyRequest<'a, S> {
        SharedKeyRequest::new(self, key.key_bytes())
    }

    /// Charges several limits, all of them or none, in one atomic step. A charge without a
    /// [`FailureMode`] of its own ([`Charge::on_failure`]) has that of the limiter.
    ///
    /// # Errors
    ///
    /// If the charges cannot be decided together.
    pub async fn check_all(&self, charges: &[Charge<'_>]) -> Result<Applied, ChargesError> {
        let with_mode = |charge: &Charge<'_>| charge.failure_mode().unwrap_or(self.on_failure);
        let charges: Vec<_> =
            charges.iter().map(|charge| charge.on_failure(with_mode(charge))).collect();
        self.fallback.apply(Op::Check, &charges).await
    }

    /// Returns the limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        self.fallback.store()
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

    /// Returns how long calls of the store took, also those that failed.
    pub fn store_time(&self) -> DurationCounts {
        self.fallback.store_time()
    }

    /// Announces this node and watches the store, which the first call does otherwise. Must be called in a
    /// tokio runtime.
    pub fn start(&self) {
        self.fallback.start();
    }
}

impl<S: PermitStore + Send + Sync + 'static> SharedLimiter<S> {
    /// Returns a limit of `max` in flight per key over the same store. Limits of the same name share their
    /// permits.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use ratekeeper::SharedLimiter;
    ///
    /// let limiter = SharedLimiter::connect("100/minute", "redis://127.0.0.1:6379")?;
    /// let exports = limiter.concurrency("exports", 5);
    /// let permit = exports.acquire("tenant-7").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn concurrency(&self, name: &str, max: u64) -> SharedConcurrencyLimit<S> {
        let limit = SharedConcurrencyLimit::over(self.fallback.clone(), name, max);
        limit.on_failure(self.on_failure)
    }
}

impl<S: ReservationStore + Send + Sync + 'static> SharedLimiter<S> {
    /// Corrects a reservation ([`SharedKeyRequest::reserve_for`]) to the actual cost, whatever process made
    /// it: refunds what was not used, or charges more, as a debt if that exceeds the limit. 0 refunds all.
    ///
    /// # Errors
    ///
    /// If there is no such reservation, or the store is unavailable. It is still held then.
    pub async fn settle(&self, id: HoldId, actual: u64) -> Result<Settled, ReservationError> {
        self.fallback.settle(id, actual).await
    }
}

/// Why a limiter cannot be made.
///
/// ```
/// use ratekeeper::SharedLimiter;
/// use ratekeeper::shared::ConnectError;
///
/// let error = SharedLimiter::connect("100/minute", "http://127.0.0.1").unwrap_err();
/// assert!(matches!(error, ConnectError::Url(_)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The limit is invalid.
    #[error(transparent)]
    Limit(LimitError),
    /// The address is invalid.
    #[error(transparent)]
    Url(RedisUrlError),
}
