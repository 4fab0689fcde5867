//! One question about one key, to a store that is shared.

use std::fmt;

use ratekeeper_core::{Cost, FailureMode, Limit, Micros};
use ratekeeper_stores::{Charge, Op, SharedStore, StoreError};

use super::SharedLimiter;
use super::answer::Answer;

/// One question about one key, from [`SharedLimiter::key`].
pub struct SharedRequest<'a, S> {
    limiter: &'a SharedLimiter<S>,
    limit: &'a Limit,
    key: &'a [u8],
    cost: Cost,
    when_down: FailureMode,
}

impl<'a, S: SharedStore + Send + Sync + 'static> SharedRequest<'a, S> {
    pub(super) fn new(limiter: &'a SharedLimiter<S>, key: &'a [u8]) -> Self {
        let (limit, when_down) = (&limiter.limit, limiter.when_down);
        Self { limiter, limit, key, cost: Cost::ONE, when_down }
    }

    /// Charges this much instead of 1.
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// Decides by this limit instead of the limiter's own. The key's usage carries over.
    #[must_use]
    pub fn limit(self, limit: &'a Limit) -> Self {
        Self { limit, ..self }
    }

    /// What to do when the store does not answer.
    #[must_use]
    pub fn when_down(self, when_down: FailureMode) -> Self {
        Self { when_down, ..self }
    }

    /// Charges if it fits.
    pub async fn check(self) -> Answer {
        self.apply(Op::Check).await
    }

    /// What a check would say. Changes nothing.
    pub async fn peek(self) -> Answer {
        self.apply(Op::Peek).await
    }

    /// Charges whether it fits or not. What does not fit is a debt.
    pub async fn charge(self) -> Answer {
        self.apply(Op::Charge).await
    }

    /// Gives back what was charged at that time, as [`Answer`]'s `at` told it.
    pub async fn refund(self, charged_at: Micros) -> Answer {
        self.apply(Op::Refund { charged_at }).await
    }

    /// Makes the key as good as new.
    pub async fn reset(self) -> Result<(), StoreError> {
        self.limiter.fallback.reset(&self.to_charge()).await
    }

    /// Charges an estimate, to be settled with what it really was. `Err` is the denial.
    ///
    /// ```no_run
    /// # async fn f(limiter: ratekeeper::SharedLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use ratekeeper::Cost;
    ///
    /// if let Ok(reservation) = limiter.key("ann").cost(Cost::of(2_000)).reserve().await {
    ///     // … it took only 700 …
    ///     reservation.settle(700).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve(self) -> Result<SharedReservation<S>, Answer> {
        let answer = self.apply(Op::Check).await;
        if !answer.allowed() {
            return Err(answer);
        }
        Ok(SharedReservation {
            limiter: self.limiter.clone(),
            limit: self.limit.clone().named(self.limiter.limit.name()),
            key: self.key.into(),
            cost: self.cost,
            answer,
        })
    }

    async fn apply(&self, op: Op) -> Answer {
        let applied = self.limiter.fallback.apply(op, &[(self.to_charge(), self.when_down)]).await;
        applied.expect("a single charge can always be decided")
    }

    fn to_charge(&self) -> Charge<'a> {
        let scope = self.limiter.limit.scope();
        Charge::new(self.limit, self.key).cost(self.cost).within(scope)
    }
}

/// An estimate that was charged, from [`SharedRequest::reserve`]. Dropped, it keeps its charge.
#[must_use = "settle it or cancel it; dropped, it keeps its charge"]
pub struct SharedReservation<S> {
    limiter: SharedLimiter<S>,
    limit: Limit,
    key: Box<[u8]>,
    cost: Cost,
    answer: Answer,
}

impl<S: SharedStore + Send + Sync + 'static> SharedReservation<S> {
    /// What was decided when it was made.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Corrects the charge to what it really was, where it was made.
    pub async fn settle(self, actual: u64) -> Result<Answer, NotSettled> {
        let charged_at = self.answer.at();
        let correction = Op::correction(self.cost, actual, charged_at);
        let (op, cost) = correction.unwrap_or((Op::Peek, Cost::ONE));
        let charge = Charge::new(&self.limit, &self.key).cost(cost);
        let degraded = self.answer.degraded();
        let settled = self.limiter.fallback.correct(op, charge, charged_at, degraded).await;
        settled.map_err(|error| NotSettled { charged: self.cost, error })
    }

    /// Gives all of it back.
    pub async fn cancel(self) -> Result<Answer, NotSettled> {
        self.settle(0).await
    }
}

/// The store did not answer when a reservation was settled, so it keeps its charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSettled {
    /// What stays charged.
    pub charged: Cost,
    /// Why.
    pub error: StoreError,
}

impl fmt::Display for NotSettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charged = self.charged.get();
        write!(f, "the reservation keeps its charge of {charged}: {}", self.error)
    }
}

impl std::error::Error for NotSettled {}
