//! Limits that a fleet shares, over Redis or Valkey, with an answer for when that is gone.

mod answer;
mod backlog;
mod breaker;
mod fallback;
#[cfg(test)]
mod fallback_bounds;
mod local_share;
mod permits;
mod random;
mod request;
mod status;

use std::sync::Arc;

use ratekeeper_core::{FailureMode, Limit, LimitError};
use ratekeeper_stores::{
    Charge, ChargesError, Op, RedisConfig, RedisStore, RedisUrlError, SharedStore,
};

pub use answer::{Answer, Degraded, Why};
pub use breaker::BreakerState;
pub use permits::{AcquireError, InvalidPermitId, PermitId, SharedConcurrency, SharedPermit};
pub use request::{NotSettled, SharedRequest, SharedReservation};
pub use status::{FallbackStats, StoreState};

pub(crate) use fallback::Fallback;

/// Decides for each key whether one more may pass now, in a store that many nodes share.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ratekeeper::SharedLimiter;
///
/// let limiter = SharedLimiter::connect("100/minute", "redis://127.0.0.1:6379")?;
/// let answer = limiter.check("user:42").await;
/// if !answer.allowed() {
///     // answer 429 with Retry-After: answer.retry_after_secs()
/// }
/// # Ok(())
/// # }
/// ```
///
/// # When the store is slow or gone
///
/// There is always an answer, and never later than the store's deadline (5 ms unless told
/// otherwise). What it is then, [`FailureMode`] says, for all requests
/// ([`SharedLimiter::when_down`]) or for one ([`SharedRequest::when_down`]); an answer that is not the
/// store's tells so ([`Answer::degraded`]). After three failures in a row the store is left alone, and
/// only one probe in the background goes on asking it. When it is back, calls return to it a few at a
/// time.
///
/// By default each node then decides by its fair share: the limit divided by the number of nodes, which
/// announce themselves in the store. What the nodes admit by themselves is charged to the store when it
/// is back, so that a store that fails again and again does not add to the limit. A node that starts
/// while the store is gone knows of no others and takes the whole limit for itself, unless their number
/// is given ([`SharedLimiter::with_nodes`]).
///
/// It starts without a store. [`SharedLimiter::state`] tells whether it is there, and
/// [`SharedLimiter::on_change`] when that changes.
///
/// # When one key is too hot for a call a request
///
/// Over a [`LeasedStore`](ratekeeper_stores::LeasedStore), hot keys are served from memory, with units
/// that were charged in the store before; the nodes together never exceed the limit.
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
/// It needs a tokio runtime, from the first call on.
pub struct SharedLimiter<S = RedisStore> {
    limit: Limit,
    when_down: FailureMode,
    fallback: Arc<Fallback<S>>,
}

impl<S> Clone for SharedLimiter<S> {
    fn clone(&self) -> Self {
        Self {
            limit: self.limit.clone(),
            when_down: self.when_down,
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
    /// A limiter over the store at this address (see [`RedisConfig::new`]). Takes a [`Limit`], or a
    /// rate such as `"100/minute"` for a sliding counter. Nothing is connected yet.
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
    /// A limiter over a store.
    pub fn new<L>(limit: L, store: S) -> Result<Self, LimitError>
    where
        L: TryInto<Limit>,
        LimitError: From<L::Error>,
    {
        let limit = limit.try_into()?;
        Ok(Self { limit, when_down: FailureMode::default(), fallback: Fallback::new(store) })
    }

    /// What to do when the store does not answer, unless a request says otherwise.
    #[must_use]
    pub fn when_down(self, when_down: FailureMode) -> Self {
        Self { when_down, ..self }
    }

    /// The number of nodes to share a limit with when the store is gone, instead of counting them.
    #[must_use]
    pub fn with_nodes(self, nodes: u32) -> Self {
        self.fallback.fix_nodes(nodes);
        self
    }

    /// Calls this whenever the store goes down or comes back, once and for all clones.
    #[must_use]
    pub fn on_change(self, listener: impl Fn(&StoreState) + Send + Sync + 'static) -> Self {
        self.fallback.listen(Box::new(listener));
        self
    }

    /// Another limit over the same store, with the same state of its store.
    pub fn with_limit<L>(&self, limit: L) -> Result<Self, LimitError>
    where
        L: TryInto<Limit>,
        LimitError: From<L::Error>,
    {
        Ok(Self { limit: limit.try_into()?, ..self.clone() })
    }

    /// Charges 1 to `key` if that fits.
    pub async fn check<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Answer {
        self.key(key).check().await
    }

    /// Everything else that can be asked about a key.
    pub fn key<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> SharedRequest<'a, S> {
        SharedRequest::new(self, key.as_ref())
    }

    /// Charges several limits, all of them or none, in one atomic step.
    pub async fn check_all(&self, charges: &[Charge<'_>]) -> Result<Answer, ChargesError> {
        let each: Vec<_> = charges.iter().map(|charge| (*charge, self.when_down)).collect();
        self.check_each(&each).await
    }

    /// The same, with what to do for each of them when the store does not answer. One that is to be
    /// denied then denies all.
    pub async fn check_each(
        &self,
        charges: &[(Charge<'_>, FailureMode)],
    ) -> Result<Answer, ChargesError> {
        self.fallback.apply(Op::Check, charges).await
    }

    /// The limit for keys that bring none of their own.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.fallback.store
    }

    /// Is the store there?
    pub fn state(&self) -> StoreState {
        self.fallback.state()
    }

    /// Are calls sent to it?
    pub fn breaker(&self) -> BreakerState {
        self.fallback.breaker_state()
    }

    /// What has happened so far.
    pub fn stats(&self) -> FallbackStats {
        self.fallback.stats()
    }

    /// Begins to announce this node and to watch the store, which the first call does otherwise. Must
    /// be called in a tokio runtime.
    pub fn start(&self) {
        self.fallback.start();
    }
}

/// Why a limiter cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The limit is at fault.
    Limit(LimitError),
    /// The address is at fault.
    Url(RedisUrlError),
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Limit(error) => error.fmt(f),
            Self::Url(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}
