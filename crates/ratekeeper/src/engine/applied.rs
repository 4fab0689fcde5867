//! The result of applying charges: a verdict, and where it was made.

use std::ops::Deref;
use std::sync::Arc;

#[cfg(feature = "policy")]
use ratekeeper_core::Decision;
use ratekeeper_core::Micros;
use ratekeeper_stores::{StoreError, Verdict};

/// A verdict, and whether the store gave it. Reads like the [`Verdict`] it holds.
///
/// ```no_run
/// # #[cfg(feature = "redis")] {
/// # async fn f(limiter: ratekeeper::SharedLimiter) {
/// let applied = limiter.check("user:42").await;
/// if let Some(degraded) = applied.degraded() {
///     eprintln!("decided without the store: {}", degraded.reason.error());
/// }
/// println!("{} left", applied.remaining());
/// # }
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request may proceed only if it is allowed"]
pub struct Applied {
    verdict: Verdict,
    degraded: Option<Degraded>,
}

impl Applied {
    pub(crate) fn by_store(verdict: Verdict) -> Self {
        Self { verdict, degraded: None }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn without_store(verdict: Verdict, degraded: Degraded) -> Self {
        Self { verdict, degraded: Some(degraded) }
    }

    /// Returns the decisions.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Returns why the store did not decide, if it did not.
    pub fn degraded(&self) -> Option<&Degraded> {
        self.degraded.as_ref()
    }

    /// Returns whether it was decided without the store.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.degraded.is_some()
    }

    /// Returns when and where the charges were made, to correct them later.
    pub fn receipt(&self) -> Receipt {
        Receipt { at: self.verdict.at(), degraded: self.degraded.clone(), is_borrowed: false }
    }
}

impl Deref for Applied {
    type Target = Verdict;

    fn deref(&self) -> &Verdict {
        &self.verdict
    }
}

/// When and where a charge was made. A correction goes to the same place.
///
/// ```
/// # #[cfg(feature = "policy")] {
/// use ratekeeper::{Charge, Cost, Limit, Op, Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip").unwrap()).unwrap();
/// let limit = Limit::token_bucket("1000/minute").unwrap().named("tokens");
/// let estimate = Charge::new(&limit, "ann").cost(Cost::of(500));
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let receipt = limiter.engine().apply(Op::Check, &[estimate]).await.unwrap().receipt();
/// // It took only 200.
/// let refund = Op::Refund { charged_at: receipt.at() };
/// let unused = estimate.cost(Cost::of(300));
/// let applied = limiter.engine().correct(refund, &unused, &receipt).await.unwrap();
/// assert_eq!(applied.remaining(), 800);
/// # });
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Receipt {
    at: Micros,
    degraded: Option<Degraded>,
    #[cfg_attr(not(feature = "policy"), expect(dead_code, reason = "a policy's charges have it"))]
    is_borrowed: bool,
}

impl Receipt {
    /// Returns the receipt of a charge that a store in memory has made.
    #[cfg(feature = "policy")]
    pub(crate) fn in_memory(at: Micros) -> Self {
        Self { at, degraded: None, is_borrowed: false }
    }

    /// Returns when the charge was made, by the clock of where it was made.
    pub fn at(&self) -> Micros {
        self.at
    }

    /// Returns the receipt of one of the charges, whose decision this is.
    #[cfg(feature = "policy")]
    pub(crate) fn of_charge(&self, decision: &Decision) -> Self {
        Self { is_borrowed: decision.is_borrowed(), ..self.clone() }
    }

    /// Returns whether the charge was made by borrowing.
    #[cfg(feature = "policy")]
    pub(crate) fn is_borrowed(&self) -> bool {
        self.is_borrowed
    }

    /// Returns whether the charge was made in this process because the store was unavailable.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.degraded.is_some()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn degraded(&self) -> Option<&Degraded> {
        self.degraded.as_ref()
    }
}

/// Why the store did not decide.
///
/// ```
/// use ratekeeper::{Applied, Degraded};
///
/// fn log(applied: &Applied) {
///     if let Some(Degraded { reason, nodes, .. }) = applied.degraded() {
///         eprintln!("decided by a share of 1/{nodes}: {}", reason.error());
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Degraded {
    /// What went wrong.
    pub reason: DegradedReason,
    /// The number of nodes that the limit was divided by, under [`FailureMode::Local`](crate::FailureMode::Local).
    pub nodes: u32,
}

#[cfg(feature = "redis")]
impl Degraded {
    pub(crate) fn new(reason: DegradedReason, nodes: u32) -> Self {
        Self { reason, nodes }
    }
}

/// Whether the store was called.
///
/// ```
/// use ratekeeper::DegradedReason;
///
/// fn is_called(reason: &DegradedReason) -> bool {
///     matches!(reason, DegradedReason::Failed(_))
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DegradedReason {
    /// It was called, and failed.
    Failed(Arc<StoreError>),
    /// It was not called, because the circuit breaker is open after this error.
    BreakerOpen(Arc<StoreError>),
}

impl DegradedReason {
    /// Returns what went wrong.
    pub fn error(&self) -> &StoreError {
        match self {
            Self::Failed(error) | Self::BreakerOpen(error) => error,
        }
    }
}
