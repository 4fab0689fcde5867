//! Operations on one key.

use std::time::Duration;

use ratekeeper_core::{Cost, Decision, IntoCost, Limit, MaxDebt};
use ratekeeper_stores::{Charge, Op};

use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::reservation::Reservation;

/// A request for one key, from [`Limiter::key`].
///
/// ```
/// use ratekeeper::{Cost, Limiter};
///
/// let limiter = Limiter::new("100/minute")?;
/// let request = limiter.key("user:42").cost(Cost::of(60));
/// assert!(request.check().allowed());
/// assert!(!request.peek().allowed(), "40 are left");
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Debug)]
pub struct KeyRequest<'a, C> {
    pub(crate) limiter: &'a Limiter<C>,
    pub(crate) limit: &'a Limit,
    pub(crate) key: &'a [u8],
    pub(crate) cost: Cost,
    overdraft: Option<MaxDebt>,
}

impl<C> Clone for KeyRequest<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for KeyRequest<'_, C> {}

impl<'a, C: Clock> KeyRequest<'a, C> {
    #[inline]
    pub(crate) fn new(limiter: &'a Limiter<C>, key: &'a [u8]) -> Self {
        Self { limiter, limit: &limiter.limit, key, cost: Cost::ONE, overdraft: None }
    }

    /// Sets the cost, which is 1 otherwise.
    #[inline]
    #[must_use]
    pub fn cost(self, cost: impl IntoCost) -> Self {
        Self { cost: cost.into_cost(), ..self }
    }

    /// Allows the request if anything is left, and charges its cost in full, also more than is left: for a
    /// cost that cannot be refused any more, or is only known to be large. The excess is a debt. Until time
    /// has paid it, requests are denied.
    ///
    /// ```
    /// use ratekeeper::{Cost, Limiter};
    ///
    /// let limiter = Limiter::new("1000/hour")?;
    /// let tokens = limiter.key("ann").cost(Cost::of(600)).overdraft();
    /// assert!(tokens.check().allowed() && tokens.check().allowed(), "200 more than there were");
    /// let denied = tokens.check();
    /// assert_eq!(denied.retry_after().unwrap().as_secs_f64().round(), 724.0, "201 times 3.6 s");
    /// # Ok::<(), ratekeeper::LimitError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn overdraft(self) -> Self {
        Self { overdraft: self.overdraft.or(Some(MaxDebt::NONE)), ..self }
    }

    /// Sets the most that an overdraft or a charge may leave as a debt. What would exceed it is not charged, and
    /// the decision says so ([`Decision::is_cut`]).
    ///
    /// ```
    /// use ratekeeper::{Cost, Limiter};
    ///
    /// let limiter = Limiter::new("1000/hour")?;
    /// let tokens = limiter.key("ann").cost(Cost::of(5_000)).max_debt("2x".parse()?);
    /// let charged = tokens.check();
    /// assert!(charged.allowed() && charged.is_cut(), "charged 3000 of 5000");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn max_debt(self, max: MaxDebt) -> Self {
        Self { overdraft: Some(max), ..self }
    }

    /// Decides by this limit instead of the limiter's.
    ///
    /// The limit of a key may change at any time. Its usage carries over: a raised limit takes effect at
    /// once, and under a lowered one `remaining` is 0 until enough time has passed. Only a change of
    /// algorithm starts with empty state.
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

    /// Charges the cost if the limit allows it.
    #[inline]
    pub fn check(self) -> Decision {
        self.limiter.store.check(&self.charge(), self.limiter.now())
    }

    /// Returns what [`KeyRequest::check`] would decide, without charging.
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

    /// Refunds the cost as if it had been charged now, and returns what remains.
    ///
    /// For a charge that was made some time ago, use [`KeyRequest::reserve`]: it refunds only what still
    /// counts.
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

    /// Deletes the key's state.
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

    /// Charges an estimate, to be settled within `valid_for`. See [`Reservation`]. A maximum debt does not
    /// apply to it.
    ///
    /// # Errors
    ///
    /// The denial, if the limit does not allow it.
    pub fn reserve(self, valid_for: Duration) -> Result<Reservation<C>, Decision>
    where
        C: Clone,
    {
        let now = self.limiter.now();
        // What a maximum debt cut off could not be settled.
        let charge = self.charge().max_debt(MaxDebt::NONE);
        let decision = self.limiter.store.check(&charge, now);
        match decision.allowed() {
            true => Ok(Reservation::new(self, decision, now, now.after(valid_for))),
            false => Err(decision),
        }
    }

    #[inline]
    pub(crate) fn charge(&self) -> Charge<'a> {
        let charge = Charge::new(self.limit, self.key).cost(self.cost);
        let charge = match self.overdraft {
            Some(max_debt) => charge.overdraft(max_debt),
            None => charge,
        };
        charge.within(self.limiter.limit.scope())
    }
}
