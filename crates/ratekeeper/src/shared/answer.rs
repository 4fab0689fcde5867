//! An answer, and whether it is the store's.

use std::ops::Deref;
use std::sync::Arc;

use ratekeeper_stores::{StoreError, Verdict};

/// The answer to a check. It reads like the [`Verdict`] it holds.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) verdict: Verdict,
    pub(super) degraded: Option<Degraded>,
}

/// An answer that is not the store's.
#[derive(Clone, Debug)]
pub struct Degraded {
    /// Why the store was not asked, or did not answer.
    pub why: Why,
    /// How many nodes the limit was divided by, where that was asked for.
    pub nodes: u32,
}

/// Why an answer is not the store's.
#[derive(Clone, Debug)]
pub enum Why {
    /// It was asked, and this came of it.
    Failed(Arc<StoreError>),
    /// It was not asked, because of what came of it before.
    NotAsked(Arc<StoreError>),
}

impl Why {
    /// What went wrong.
    pub fn error(&self) -> &StoreError {
        match self {
            Self::Failed(error) | Self::NotAsked(error) => error,
        }
    }
}

impl Answer {
    /// The decisions.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Why it is not the store's answer, if it is not.
    pub fn degraded(&self) -> Option<&Degraded> {
        self.degraded.as_ref()
    }
}

impl Deref for Answer {
    type Target = Verdict;

    fn deref(&self) -> &Verdict {
        &self.verdict
    }
}
