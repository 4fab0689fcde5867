//! The interface of every store.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Cost, Micros};

use crate::charge::{Charge, ChargesError};
use crate::verdict::Verdict;

/// An operation on charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Charge all of them if all fit, and none otherwise.
    Check,
    /// Return the decision of a check, and change nothing.
    Peek,
    /// Charge all of them whether they fit or not; what does not fit is a debt.
    Charge,
    /// Refund what was charged at that time, as far as it still counts.
    Refund {
        /// When it was charged, by the store's clock ([`Verdict::at`]). A time after now counts as now.
        charged_at: Micros,
    },
}

impl Op {
    /// Returns the refund of what was just charged, at the store's current time. The caller's own clock
    /// may be off, and then the refund would be for another window.
    pub const fn refund_latest() -> Self {
        Self::Refund { charged_at: Micros::MAX }
    }

    /// Returns the operation and the cost that correct a charge to the actual cost; `None` if it was
    /// right.
    pub fn correction(estimate: Cost, actual: u64, charged_at: Micros) -> Option<(Self, Cost)> {
        let over = Cost::new(actual.saturating_sub(estimate.get()));
        let under = Cost::new(estimate.get().saturating_sub(actual));
        let charge = over.map(|over| (Self::Charge, over));
        charge.or(under.map(|under| (Self::Refund { charged_at }, under)))
    }
}

/// A store of usage. One call is one atomic step.
pub trait Store {
    /// Applies `op` to all charges, or to none of them.
    ///
    /// Decisions depend on the time, the charges and the operations before, and on nothing else: every
    /// store makes the same ones. A shared store uses its own clock instead of `now`; its time is
    /// [`Verdict::at`].
    fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Resets the key of this charge to its full quota.
    fn reset(&self, charge: &Charge<'_>) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl<S: Store + Send + Sync> Store for Arc<S> {
    fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        (**self).apply(op, charges, now)
    }

    fn reset(&self, charge: &Charge<'_>) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).reset(charge)
    }
}

/// A store that a fleet of nodes shares.
pub trait SharedStore: Store {
    /// Announces that `node` is alive for this long; zero removes it. Returns how many nodes there are.
    fn announce(
        &self,
        node: &str,
        lives: Duration,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// [`Store::apply`] with details of a failure: which shard failed and, if the charge may still be
    /// made, a future of that.
    fn try_apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> impl Future<Output = Result<Verdict, ApplyFailure>> + Send;

    /// Returns how many shards there are: parts that fail independently of each other, numbered from 0.
    fn shards(&self) -> usize {
        1
    }

    /// Returns the shard of this key.
    fn shard_of(&self, key: &[u8]) -> usize {
        let _ = key;
        0
    }

    /// Checks that a shard accepts writes.
    fn probe(&self, shard: usize) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The store did not decide, or not in time.
pub struct ApplyFailure {
    /// Why.
    pub error: StoreError,
    /// The shard that failed.
    pub shard: usize,
    /// Whether the charge was made after all. `None` if that cannot be known.
    pub late: Option<LateReply>,
}

/// Completes with the time at which a charge was made after all; with `None` if it was not made, or if
/// that is not known.
pub type LateReply = Pin<Box<dyn Future<Output = Option<Micros>> + Send>>;

impl fmt::Debug for ApplyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, shard, late } = self;
        let mut shown = f.debug_struct("ApplyFailure");
        shown.field("error", error).field("shard", shard).field("is_late", &late.is_some()).finish()
    }
}

/// The store failed to decide. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The charges cannot be decided together.
    #[error(transparent)]
    Charges(#[from] ChargesError),
    /// There was no response within this time.
    #[error("the store did not respond within {0:?}")]
    Deadline(Duration),
    /// The store cannot be reached.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The store was reached but refused: it is out of memory, loading, or a replica.
    #[error("the store refused: {0}")]
    Refused(String),
    /// The store will never accept this client: a wrong password, an untrusted certificate.
    #[error(
        "the store does not accept this configuration: {0}; check the user, the password, the \
         certificate and the address"
    )]
    Misconfigured(String),
    /// The store's response cannot be decoded, or contradicts the request.
    #[error("invalid response from the store: {0}")]
    InvalidResponse(String),
}

impl StoreError {
    /// Returns whether the error needs someone to change the configuration, unlike an outage that
    /// ends by itself.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Charges(_) | Self::Misconfigured(_))
    }
}
