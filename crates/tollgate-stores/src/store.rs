//! What every store can do.

use std::fmt;
use std::future::Future;

use tollgate_core::Micros;

use crate::charge::{Charge, ChargesError, Verdict};

/// What to do with the charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Charge all of them if all fit, and none otherwise.
    Check,
    /// Say what a check would say, and change nothing.
    Peek,
    /// Charge all of them whether they fit or not; what does not fit is a debt.
    Charge,
    /// Give back what was charged at that moment, as far as it still counts.
    Refund {
        /// When it was charged.
        charged_at: Micros,
    },
}

/// A place for state. One call is one atomic step.
pub trait Store {
    /// Does `op` with all `charges`, or with none of them.
    ///
    /// Decisions depend on `now`, the charges and what came before, and on nothing else: every
    /// store gives the same ones.
    fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Makes the key of this charge as good as new.
    fn reset(&self, charge: &Charge<'_>) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The store failed to answer. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The charges cannot be decided together.
    Charges(ChargesError),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Charges(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<ChargesError> for StoreError {
    fn from(error: ChargesError) -> Self {
        Self::Charges(error)
    }
}
