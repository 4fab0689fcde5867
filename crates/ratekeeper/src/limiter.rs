//! A limiter: a limit, a store in memory, and a clock.

use std::sync::Arc;

use ratekeeper_core::{Decision, Key, Limit, LimitError, Micros};
use ratekeeper_stores::{Charge, ChargesError, MemoryStats, MemoryStore, Op, Verdict};

use crate::clock::{Clock, SystemClock};
use crate::key_request::KeyRequest;

/// Decides per key whether a request may proceed now.
///
/// Share it by reference, in an [`Arc`], or by cloning: clones share their state.
///
/// ```
/// use ratekeeper::{Limit, Limiter};
///
/// // With the default algorithm:
/// let limiter = Limiter::new("100/minute")?;
/// assert_eq!(limiter.check("user:42").remaining(), 99);
///
/// // With another one:
/// let limiter = Limiter::new(Limit::token_bucket("5/s burst 10")?)?;
/// assert_eq!(limiter.check("user:42").limit(), 10);
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter<C = SystemClock> {
    /// Its scope holds for all keys, also where a request has a limit of its own.
    pub(crate) limit: Limit,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) clock: C,
    #[cfg(feature = "tokio")]
    pub(crate) waiters: Arc<crate::wait::Waiters>,
}

impl Limiter {
    /// Returns a limiter for up to a million keys. Takes a [`Limit`], or a rate such as `"100/minute"`.
    ///
    /// # Errors
    ///
    /// If the limit is invalid.
    pub fn new<L>(limit: L) -> Result<Self, LimitError>
    where
        L: TryInto<Limit>,
        LimitError: From<L::Error>,
    {
        Ok(Self::builder(limit)?.build())
    }

    /// Returns a builder for a limiter with another capacity, store or clock.
    ///
    /// ```
    /// use ratekeeper::{Limiter, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::builder("1/minute")?.capacity(10_000).clock(clock.clone()).build();
    /// assert!(limiter.check("user:42").allowed());
    /// # Ok::<(), ratekeeper::LimitError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the limit is invalid.
    pub fn builder<L>(limit: L) -> Result<LimiterBuilder, LimitError>
    where
        L: TryInto<Limit>,
        LimitError: From<L::Error>,
    {
        Ok(LimiterBuilder { limit: limit.try_into()?, store: None, clock: SystemClock })
    }
}

/// Builds a [`Limiter`], from [`Limiter::builder`].
///
/// ```
/// use ratekeeper::Limiter;
///
/// let limiter = Limiter::builder("100/minute")?.capacity(10_000).build();
/// assert!(limiter.stats().memory_bytes < 1_000_000);
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "call `build`"]
pub struct LimiterBuilder<C = SystemClock> {
    limit: Limit,
    store: Option<Arc<MemoryStore>>,
    clock: C,
}

impl<C: Clock> LimiterBuilder<C> {
    /// Uses a store of its own for up to `keys_max` live keys, at 38.4 bytes each.
    pub fn capacity(self, keys_max: usize) -> Self {
        self.store(MemoryStore::with_capacity(keys_max))
    }

    /// Uses this store, which several limiters may share.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ratekeeper::{Limiter, MemoryStore};
    ///
    /// let store = Arc::new(MemoryStore::with_capacity(100_000));
    /// let api = Limiter::builder("100/minute")?.store(store.clone()).build();
    /// let login = Limiter::builder("5/minute")?.store(store).build();
    /// # Ok::<(), ratekeeper::LimitError>(())
    /// ```
    pub fn store(self, store: impl Into<Arc<MemoryStore>>) -> Self {
        Self { store: Some(store.into()), ..self }
    }

    /// Uses this clock.
    pub fn clock<D: Clock>(self, clock: D) -> LimiterBuilder<D> {
        LimiterBuilder { limit: self.limit, store: self.store, clock }
    }

    /// Returns the limiter.
    pub fn build(self) -> Limiter<C> {
        Limiter {
            limit: self.limit,
            store: self.store.unwrap_or_default(),
            clock: self.clock,
            #[cfg(feature = "tokio")]
            waiters: Arc::default(),
        }
    }
}

impl<C: Clock> Limiter<C> {
    /// Charges 1 to `key` if the limit allows it.
    #[inline(always)] // so that a caller pays only for the numbers it reads
    pub fn check<K: Key + ?Sized>(&self, key: &K) -> Decision {
        let key = key.key_bytes();
        match self.store.check_fast(&self.charge(key), || self.clock.try_now()) {
            Some(decision) => decision,
            None => self.check_slow(key).expect("always some"),
        }
    }

    /// In an `Option`, so that the compiler does not use one place in memory for both decisions: then the
    /// fast path would write to it, and with many keys be a seventh slower.
    #[inline(never)]
    fn check_slow(&self, key: &[u8]) -> Option<Decision> {
        Some(self.store.check_slow(&self.charge(key), self.now()))
    }

    #[inline]
    fn charge<'a>(&'a self, key: &'a [u8]) -> Charge<'a> {
        Charge::new(&self.limit, key)
    }

    /// Returns a builder for every other operation on a key.
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
    pub fn key<'a, K: Key + ?Sized>(&'a self, key: &'a K) -> KeyRequest<'a, C> {
        KeyRequest::new(self, key.key_bytes())
    }

    /// Charges several limits, all of them or none, in one atomic step.
    ///
    /// The limits may have different algorithms, and the keys may differ. Usage is kept under the names of
    /// the limits ([`Limit::named`]), apart from this limiter's.
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
    /// // It reads like the decision of the binding limit.
    /// assert_eq!(verdict.remaining(), 9);
    /// assert_eq!(verdict.decisions()[1].remaining(), 997);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the charges cannot be decided together.
    pub fn check_all(&self, charges: &[Charge<'_>]) -> Result<Verdict, ChargesError> {
        self.store.apply_now(Op::Check, charges, self.now())
    }

    /// Returns the limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns sizes and counters of the store.
    pub fn stats(&self) -> MemoryStats {
        self.store.stats(self.now())
    }

    #[inline]
    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }
}
