//! One question about one key.

use std::time::Duration;

use ratekeeper_core::{Cost, Decision, Limit};
use ratekeeper_stores::{Charge, Op};

use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::reservation::Reservation;

/// One question about one key, from [`Limiter::key`].
#[derive(Debug)]
pub struct Request<'a, C> {
    pub(crate) limiter: &'a Limiter<C>,
    pub(crate) limit: &'a Limit,
    pub(crate) key: &'a [u8],
    pub(crate) cost: Cost,
}

impl<C> Clone for Request<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Request<'_, C> {}

impl<'a, C: Clock> Request<'a, C> {
    #[inline]
    pub(crate) fn new(limiter: &'a Limiter<C>, key: &'a [u8]) -> Self {
        Self { limiter, limit: &limiter.limit, key, cost: Cost::ONE }
    }

    /// Charges this much instead of 1.
    #[inline]
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// Decides by this limit instead of the limiter's own.
    ///
    /// A key's limit may change at any time. Its usage carries over: a raised limit helps at once,
    /// and under a lowered one `remaining` is 0 until enough time has passed. Only a change of
    /// algorithm starts afresh.
    ///
    /// ```
    /// use ratekeeper::{Cost, Limit, Limiter};
    ///
    /// let limiter = Limiter::new("10/minute")?;
    /// limiter.key("ann").cost(Cost::of(10)).check();
    /// assert!(!limiter.check("ann").allowed());
    ///
    /// let pro: Limit = "100/minute".parse()?;
    /// assert_eq!(limiter.key("ann").limit(&pro).check().remaining(), 89);
    /// # Ok::<(), ratekeeper::LimitError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn limit(self, limit: &'a Limit) -> Self {
        Self { limit, ..self }
    }

    /// Charges if it fits.
    #[inline]
    pub fn check(self) -> Decision {
        self.limiter.store.check(&self.charge(), self.limiter.now())
    }

    /// What [`Request::check`] would say. Changes nothing.
    ///
    /// ```
    /// use ratekeeper::Limiter;
    ///
    /// let limiter = Limiter::new("100/minute")?;
    /// assert_eq!(limiter.key("user:42").peek().remaining(), 100);
    /// assert_eq!(limiter.key("user:42").peek().remaining(), 100);
    /// # Ok::<(), ratekeeper::LimitError>(())
    /// ```
    pub fn peek(self) -> Decision {
        self.limiter.store.apply_one(Op::Peek, &self.charge(), self.limiter.now())
    }

    /// Gives back what was charged a moment ago, and tells what is there now.
    ///
    /// For a charge of some time ago, [`Request::reserve`] knows better what of it still counts.
    ///
    /// ```
    /// use ratekeeper::{Cost, Limiter};
    ///
    /// let limiter = Limiter::new("100/minute")?;
    /// limiter.key("user:42").cost(Cost::of(30)).check();
    /// let after = limiter.key("user:42").cost(Cost::of(30)).refund();
    /// assert_eq!(after.remaining(), 100);
    /// # Ok::<(), ratekeeper::LimitError>(())
    /// ```
    pub fn refund(self) -> Decision {
        let now = self.limiter.now();
        self.limiter.store.apply_one(Op::Refund { charged_at: now }, &self.charge(), now)
    }

    /// Makes the key as good as new.
    ///
    /// ```
    /// use ratekeeper::Limiter;
    ///
    /// let limiter = Limiter::new("1/minute")?;
    /// limiter.check("user:42");
    /// limiter.key("user:42").reset();
    /// assert!(limiter.check("user:42").allowed());
    /// # Ok::<(), ratekeeper::LimitError>(())
    /// ```
    pub fn reset(self) {
        self.limiter.store.reset(&self.charge());
    }

    /// Charges an estimate, to be corrected within `valid_for`. A denial comes as `Err`.
    ///
    /// See [`Reservation`].
    pub fn reserve(self, valid_for: Duration) -> Result<Reservation<C>, Decision>
    where
        C: Clone,
    {
        let now = self.limiter.now();
        let decision = self.limiter.store.check(&self.charge(), now);
        match decision.allowed() {
            true => Ok(Reservation::new(self, decision, now, now.after(valid_for))),
            false => Err(decision),
        }
    }

    #[inline]
    pub(crate) fn charge(&self) -> Charge<'a> {
        Charge::new(self.limit, self.key).cost(self.cost).within(self.limiter.limit.scope())
    }
}
