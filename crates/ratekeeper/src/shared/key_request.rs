//! Operations on one key in a shared store.

use std::time::Duration;

use ratekeeper_core::{Cost, FailureMode, IntoCost, Limit, MaxDebt, Micros};
use ratekeeper_stores::{Charge, Op, ReservationStore, SharedStore, StoreError};

use super::SharedLimiter;
use crate::engine::{Applied, ReserveError, Reserved, in_full};

/// A request for one key, from [`SharedLimiter::key`].
///
/// ```
/// use ratekeeper::{Cost, FailureMode, SharedLimiter};
///
/// # async fn f(limiter: SharedLimiter) {
/// let applied = limiter.key("ann").cost(Cost::of(5)).on_failure(FailureMode::Open).check().await;
/// println!("{} left", applied.remaining());
/// # }
/// ```
pub struct SharedKeyRequest<'a, S> {
    limiter: &'a SharedLimiter<S>,
    limit: &'a Limit,
    key: &'a [u8],
    cost: Cost,
    overdraft: Option<MaxDebt>,
    on_failure: FailureMode,
}

impl<'a, S: SharedStore + Send + Sync + 'static> SharedKeyRequest<'a, S> {
    pub(super) fn new(limiter: &'a SharedLimiter<S>, key: &'a [u8]) -> Self {
        let (limit, on_failure) = (&limiter.limit, limiter.on_failure);
        Self { limiter, limit, key, cost: Cost::ONE, overdraft: None, on_failure }
    }

    /// Sets the cost, which is 1 otherwise.
    #[must_use]
    pub fn cost(self, cost: impl IntoCost) -> Self {
        Self { cost: cost.into_cost(), ..self }
    }

    /// Allows the request if anything is left, and charges its cost in full, also more than is left. See
    /// [`KeyRequest::overdraft`](crate::KeyRequest::overdraft).
    #[must_use]
    pub fn overdraft(self) -> Self {
        Self { overdraft: self.overdraft.or(Some(MaxDebt::NONE)), ..self }
    }

    /// Allows an overdraft up to a maximum debt. See [`KeyRequest::max_debt`](crate::KeyRequest::max_debt).
    #[must_use]
    pub fn max_debt(self, max: MaxDebt) -> Self {
        Self { overdraft: Some(max), ..self }
    }

    /// Decides by this limit instead of the limiter's. The key's usage carries over.
    #[must_use]
    pub fn limit(self, limit: &'a Limit) -> Self {
        Self { limit, ..self }
    }

    /// Sets what happens when the store is unavailable.
    #[must_use]
    pub fn on_failure(self, on_failure: FailureMode) -> Self {
        Self { on_failure, ..self }
    }

    /// Charges the cost if the limit allows it.
    pub async fn check(self) -> Applied {
        self.apply(Op::Check).await
    }

    /// Returns what a check would decide, without charging.
    pub async fn peek(self) -> Applied {
        self.apply(Op::Peek).await
    }

    /// Charges the cost even if it exceeds the limit. The excess is a debt.
    pub async fn charge(self) -> Applied {
        self.apply(Op::Charge).await
    }

    /// Refunds what was charged at that time ([`Verdict::at`](crate::Verdict::at)), as far as it still counts.
    pub async fn refund(self, charged_at: Micros) -> Applied {
        self.apply(Op::Refund { charged_at }).await
    }

    /// Deletes the key's state.
    ///
    /// # Errors
    ///
    /// If the store is unavailable.
    pub async fn reset(self) -> Result<(), StoreError> {
        self.limiter.fallback.reset(&self.to_charge()).await
    }

    /// Charges an estimate, to be settled with the actual cost.
    ///
    /// # Errors
    ///
    /// The denial, if the limit does not allow it.
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
    pub async fn reserve(self) -> Result<SharedReservation<S>, Applied> {
        let applied = self.apply_estimate().await;
        if !applied.allowed() {
            return Err(applied);
        }
        Ok(SharedReservation {
            limiter: self.limiter.clone(),
            limit: self.limit.clone().named(self.limiter.limit.name()),
            key: self.key.into(),
            cost: self.cost,
            applied,
        })
    }

    async fn apply(&self, op: Op) -> Applied {
        self.apply_charge(op, self.to_charge()).await
    }

    /// Charges the cost of a reservation. What a maximum debt cut off could not be settled.
    async fn apply_estimate(&self) -> Applied {
        self.apply_charge(Op::Check, self.to_charge().max_debt(MaxDebt::NONE)).await
    }

    async fn apply_charge(&self, op: Op, charge: Charge<'_>) -> Applied {
        let applied = self.limiter.fallback.apply(op, &[charge]).await;
        applied.expect("a single charge can always be decided")
    }

    fn to_charge(&self) -> Charge<'a> {
        let scope = self.limiter.limit.scope();
        let charge = Charge::new(self.limit, self.key).cost(self.cost).within(scope);
        let charge = match self.overdraft {
            Some(max_debt) => charge.overdraft(max_debt),
            None => charge,
        };
        charge.on_failure(self.on_failure)
    }
}

impl<S: ReservationStore + Send + Sync + 'static> SharedKeyRequest<'_, S> {
    /// Charges an estimate that can be settled within `valid` by its id, once, in every process that shares
    /// the store ([`SharedLimiter::settle`]). [`SharedKeyRequest::reserve`] needs one call to the store
    /// less, but only this process can settle it. An overdraft has no maximum debt here.
    ///
    /// # Errors
    ///
    /// If the store is unavailable, and this process holds too many reservations already.
    ///
    /// ```no_run
    /// # async fn f(limiter: ratekeeper::SharedLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use ratekeeper::Cost;
    ///
    /// let estimate = limiter.key("ann").cost(Cost::of(2_000));
    /// let reserved = estimate.reserve_for(Duration::from_secs(60)).await?;
    /// if let Some(id) = reserved.id() {
    ///     let text = id.to_string();
    ///     // … in another process, with a limiter over the same store …
    ///     limiter.settle(text.parse()?, 700).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve_for(self, valid: Duration) -> Result<Reserved, ReserveError> {
        let charges = in_full(&[self.to_charge()], self.cost);
        self.limiter.fallback.reserve(&charges, self.cost, valid).await
    }
}

/// A charged estimate, from [`SharedKeyRequest::reserve`]. Dropped, it keeps its charge.
///
/// ```
/// use ratekeeper::{Cost, SharedLimiter};
///
/// # async fn f(limiter: SharedLimiter) -> Result<(), Box<dyn std::error::Error>> {
/// if let Ok(reservation) = limiter.key("ann").cost(Cost::of(2_000)).reserve().await {
///     reservation.cancel().await?;
/// }
/// # Ok(()) }
/// ```
#[must_use = "settle it or cancel it; dropped, it keeps its charge"]
pub struct SharedReservation<S> {
    limiter: SharedLimiter<S>,
    limit: Limit,
    key: Box<[u8]>,
    cost: Cost,
    applied: Applied,
}

impl<S: SharedStore + Send + Sync + 'static> SharedReservation<S> {
    /// Returns the verdict that admitted it.
    pub fn applied(&self) -> &Applied {
        &self.applied
    }

    /// Corrects the charge to the actual cost, where it was made.
    ///
    /// # Errors
    ///
    /// If the store is unavailable. The estimate then stays charged.
    pub async fn settle(self, actual: u64) -> Result<Applied, SettleError> {
        let receipt = self.applied.receipt();
        let correction = Op::correction(self.cost, actual, receipt.at());
        let (op, cost) = correction.unwrap_or((Op::Peek, Cost::ONE));
        let charge = Charge::new(&self.limit, &self.key).cost(cost);
        let settled = self.limiter.fallback.correct(op, charge, &receipt).await;
        settled.map_err(|error| SettleError { charged: self.cost, error })
    }

    /// Refunds the whole estimate.
    ///
    /// # Errors
    ///
    /// If the store is unavailable. The estimate then stays charged.
    pub async fn cancel(self) -> Result<Applied, SettleError> {
        self.settle(0).await
    }
}

/// The store was unavailable when a reservation was settled, so the estimate stays charged.
///
/// ```
/// use ratekeeper::shared::{SettleError, SharedReservation};
/// use ratekeeper::RedisStore;
///
/// # async fn f(reservation: SharedReservation<RedisStore>) {
/// if let Err(SettleError { charged, error, .. }) = reservation.settle(700).await {
///     eprintln!("{} units stay charged: {error}", charged.get());
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reservation could not be settled and keeps its charge of {}", charged.get())]
#[non_exhaustive]
pub struct SettleError {
    /// The estimate, which stays charged.
    pub charged: Cost,
    /// What went wrong.
    #[source]
    pub error: StoreError,
}
