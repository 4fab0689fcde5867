//! The interface of every store.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Cost, Micros};

use crate::charge::{Charge, ChargeKind, ChargesError};
use crate::verdict::Verdict;

/// An operation on charges.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Charge, Cost, Limit, MemoryStore, Micros, Op};
///
/// let (store, limit, now) = (MemoryStore::new(), Limit::token_bucket("10/s")?, Micros::new(0));
/// let charge = Charge::new(&limit, "ann").cost(Cost::of(4));
/// assert_eq!(store.apply_now(Op::Check, &[charge], now)?.remaining(), 6);
/// assert_eq!(store.apply_now(Op::Refund { charged_at: now }, &[charge], now)?.remaining(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

/// An operation on one usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageOp {
    Check,
    Peek,
    Charge { debt_max: u64 },
    Overdraw { debt_max: u64 },
    Refund { charged_at: Micros },
}

impl Op {
    /// Returns what this does to the usage of a charge, and with which cost.
    #[inline]
    pub(crate) fn on(self, charge: &Charge<'_>) -> (UsageOp, Cost) {
        let op = match (self, charge.kind) {
            (_, ChargeKind::Look) | (Self::Peek, ChargeKind::Overdraft) => {
                return (UsageOp::Peek, Cost::ONE);
            }
            (Self::Check, ChargeKind::Full) => UsageOp::Check,
            (Self::Check, ChargeKind::Overdraft) => UsageOp::Overdraw { debt_max: charge.debt_max },
            (Self::Peek, ChargeKind::Full) => UsageOp::Peek,
            (Self::Charge, _) => UsageOp::Charge { debt_max: charge.debt_max },
            (Self::Refund { charged_at }, _) => UsageOp::Refund { charged_at },
        };
        (op, charge.cost)
    }

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
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Charge, Micros, Op, Store, StoreError};
///
/// async fn is_allowed(store: &impl Store, charge: Charge<'_>, now: Micros) -> Result<bool, StoreError> {
///     Ok(store.apply(Op::Check, &[charge], now).await?.allowed())
/// }
/// ```
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

    /// Returns the time after which the key of this charge is as new, without further requests. Zero if it
    /// has no usage.
    ///
    /// The rate of the charge does not matter, only its scope, algorithm and key. The time is never too
    /// short. It is exact for buckets, and at most 7% of the period too long for windows; for a sliding log
    /// in a shared store it may be a few seconds too long.
    fn usage_ttl(
        &self,
        charge: &Charge<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<Duration, StoreError>> + Send;
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

    fn usage_ttl(
        &self,
        charge: &Charge<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<Duration, StoreError>> + Send {
        (**self).usage_ttl(charge, now)
    }
}

/// A store that a fleet of nodes shares.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use std::time::Duration;
/// use ratekeeper::{SharedStore, StoreError};
///
/// async fn nodes(store: &impl SharedStore) -> Result<u32, StoreError> {
///     store.announce("node-1", Duration::from_secs(10)).await
/// }
/// ```
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

    /// [`try_apply`](Self::try_apply) for an operation that no request waits for, so that the store may take
    /// longer than for a decision.
    fn try_apply_later(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> impl Future<Output = Result<Verdict, ApplyFailure>> + Send {
        self.try_apply(op, charges, now)
    }

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
///
/// `source()` is the error of the client library, if there is one.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::StoreError;
///
/// fn hint(error: &StoreError) -> &'static str {
///     match error {
///         StoreError::Misconfigured(_) => "check the password and the certificate",
///         StoreError::Deadline(_) => "the store is slow",
///         _ => "the store is unavailable",
///     }
/// }
/// # assert_eq!(hint(&StoreError::Deadline(std::time::Duration::ZERO)), "the store is slow");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The charges cannot be decided together.
    Charges(ChargesError),
    /// There was no response within this time.
    Deadline(Duration),
    /// The store cannot be reached.
    Unreachable(StoreErrorCause),
    /// The store was reached but refused: it is out of memory, loading, or a replica.
    Refused(StoreErrorCause),
    /// The store will never accept this client: a wrong password, an untrusted certificate.
    Misconfigured(StoreErrorCause),
    /// The store's response cannot be decoded, or contradicts the request.
    InvalidResponse(StoreErrorCause),
    /// A reservation or permit was written by another version of this program, which can settle or release it.
    OtherVersion,
}

impl Display for StoreError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Charges(error) => error.fmt(f),
            Self::Deadline(time) => write!(f, "the store did not respond within {time:?}"),
            Self::Unreachable(cause) => write!(f, "the store cannot be reached: {cause}"),
            Self::Refused(cause) => write!(f, "the store refused: {cause}"),
            Self::Misconfigured(cause) => write!(
                f,
                "the store does not accept this configuration: {cause}; check the user, the \
                 password, the certificate and the address"
            ),
            Self::InvalidResponse(cause) => write!(f, "invalid response from the store: {cause}"),
            Self::OtherVersion => f.write_str(
                "it was written by another version of this program; settle or release it there",
            ),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Charges(error) => error.source(),
            Self::Deadline(_) | Self::OtherVersion => None,
            Self::Unreachable(cause)
            | Self::Refused(cause)
            | Self::Misconfigured(cause)
            | Self::InvalidResponse(cause) => {
                cause.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
            }
        }
    }
}

impl From<ChargesError> for StoreError {
    fn from(error: ChargesError) -> Self {
        Self::Charges(error)
    }
}

/// Why a store failed: a message, and the error of the client library that it comes from.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use std::error::Error;
/// use ratekeeper::{StoreError, StoreErrorCause};
///
/// let cause = StoreErrorCause::from_error(std::io::Error::other("connection refused"));
/// assert_eq!(cause.message(), "connection refused");
/// assert!(StoreError::Unreachable(cause).source().is_some());
/// ```
#[derive(Clone, Debug)]
pub struct StoreErrorCause {
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreErrorCause {
    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the cause that is another error.
    #[must_use]
    pub fn from_error(error: impl Error + Send + Sync + 'static) -> Self {
        Self { message: error.to_string(), source: Some(Arc::new(error)) }
    }
}

/// Causes with the same message are equal.
impl PartialEq for StoreErrorCause {
    fn eq(&self, other: &Self) -> bool {
        self.message == other.message
    }
}

impl Eq for StoreErrorCause {}

impl Display for StoreErrorCause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<T: Into<String>> From<T> for StoreErrorCause {
    fn from(message: T) -> Self {
        Self { message: message.into(), source: None }
    }
}

impl StoreError {
    /// Returns whether the error needs someone to change the configuration, unlike an outage that
    /// ends by itself.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Charges(_) | Self::Misconfigured(_))
    }
}
