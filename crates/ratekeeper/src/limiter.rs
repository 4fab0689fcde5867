//! The limiter: a limit, a store and a clock.

use std::sync::Arc;

use ratekeeper_core::{Decision, Limit, LimitError, Micros};
use ratekeeper_stores::{Charge, ChargesError, MemoryStats, MemoryStore, Op, Verdict};

use crate::clock::{Clock, SystemClock};
use crate::request::Request;

/// Decides for each key whether one more may pass now.
///
/// Share it by reference, in an [`Arc`], or by cloning: clones share their state.
///
/// ```
/// use ratekeeper::{Limit, Limiter};
///
/// // The default algorithm, a sliding counter:
/// let limiter = Limiter::new("100/minute")?;
/// assert_eq!(limiter.check("user:42").remaining(), 99);
///
/// // Another one:
/// let limiter = Limiter::new(Limit::token_bucket("5/s burst 10")?)?;
/// assert_eq!(limiter.check("user:42").limit(), 10);
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter<C = SystemClock> {
    /// Its scope is that of all keys, also where a call brings a limit of its own.
    pub(crate) limit: Limit,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) clock: C,
    #[cfg(feature = "tokio")]
    pub(crate) waiters: Arc<crate::wait::Waiters>,
}

impl Limiter {
    /// A limiter for up to a million keys at a time. Takes a [`Limit`], or a rate such as
    /// `"100/minute"` for a sliding counter.
    pub fn new<L>(limit: L) -> Result<Self, LimitError>
    where
        L: TryInto<Limit>,
        LimitError: From<L::Error>,
    {
        let limit = limit.try_into()?;
        Ok(Self {
            limit,
            store: Arc::default(),
            clock: SystemClock,
            #[cfg(feature = "tokio")]
            waiters: Arc::default(),
        })
    }
}

impl<C: Clock> Limiter<C> {
    /// The same limiter with room for `keys_max` live keys: 38.4 bytes for each.
    #[must_use]
    pub fn with_capacity(self, keys_max: usize) -> Self {
        self.with_store(MemoryStore::with_capacity(keys_max))
    }

    /// The same limiter over another store, which several limiters may share.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ratekeeper::{Limiter, MemoryStore};
    ///
    /// let store = Arc::new(MemoryStore::with_capacity(100_000));
    /// let api = Limiter::new("100/minute")?.with_store(store.clone());
    /// let login = Limiter::new("5/minute")?.with_store(store);
    /// # Ok::<(), ratekeeper::LimitError>(())
    /// ```
    #[must_use]
    pub fn with_store(self, store: impl Into<Arc<MemoryStore>>) -> Self {
        Self {
            store: store.into(),
            #[cfg(feature = "tokio")]
            waiters: Arc::default(),
            ..self
        }
    }

    /// The same limiter by another clock.
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> Limiter<D> {
        Limiter {
            limit: self.limit,
            store: self.store,
            clock,
            #[cfg(feature = "tokio")]
            waiters: Arc::default(),
        }
    }

    /// Charges 1 to `key` if that fits.
    #[inline(always)] // so that a caller pays only for the numbers it reads
    pub fn check<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Decision {
        let key = key.as_ref();
        match self.store.check_quickly(&self.charge(key), || self.clock.quick()) {
            Some(decision) => decision,
            None => self.check_slowly(key),
        }
    }

    #[inline(never)]
    fn check_slowly(&self, key: &[u8]) -> Decision {
        self.store.check_by(&self.charge(key), || self.now())
    }

    #[inline]
    fn charge<'a>(&'a self, key: &'a [u8]) -> Charge<'a> {
        Charge::new(&self.limit, key)
    }

    /// Everything else that can be asked about a key.
    ///
    /// ```
    /// use ratekeeper::{Cost, Limiter};
    ///
    /// let limiter = Limiter::new("100/minute")?;
    /// let decision = limiter.key("user:42").cost(Cost::of(25)).check();
    /// assert_eq!(decision.remaining(), 75);
    /// # Ok::<(), ratekeeper::LimitError>(())
    /// ```
    #[inline]
    pub fn key<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Request<'a, C> {
        Request::new(self, key.as_ref())
    }

    /// Charges several limits, all of them or none, in one atomic step.
    ///
    /// The limits may be of different algorithms and the keys different ones. Their usage is kept
    /// under their own names ([`Limit::named`]), apart from this limiter's.
    ///
    /// ```
    /// use ratekeeper::{Charge, Cost, Limit, Limiter};
    ///
    /// let limiter = Limiter::new("100/minute")?;
    /// let per_user = Limit::token_bucket("5/s burst 10")?.named("user");
    /// let per_tenant = Limit::sliding_counter("1000/minute")?.named("tenant");
    ///
    /// let verdict = limiter.check_all(&[
    ///     Charge::new(&per_user, "ann"),
    ///     Charge::new(&per_tenant, "acme").cost(Cost::of(3)),
    /// ])?;
    /// assert!(verdict.allowed());
    /// // It reads like the decision of the limit that is closest to denying.
    /// assert_eq!(verdict.remaining(), 9);
    /// assert_eq!(verdict.decisions()[1].remaining(), 997);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_all(&self, charges: &[Charge<'_>]) -> Result<Verdict, ChargesError> {
        self.store.apply_now(Op::Check, charges, self.now())
    }

    /// The limit for keys that bring none of their own.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Sizes and counters of the store.
    pub fn stats(&self) -> MemoryStats {
        self.store.stats(self.now())
    }

    #[inline]
    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }
}
