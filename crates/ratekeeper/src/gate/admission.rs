//! What becomes of a request.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Decision, Limit, Micros};
use ratekeeper_policy::{AppliedLimit, Headers, LimitRule, MissingReason};
use ratekeeper_stores::Op;
use smallvec::SmallVec;

use super::Gate;
use super::admit::Permits;
use super::backend::{Origin, rate};

/// What becomes of a request.
#[derive(Debug)]
pub enum Admission {
    /// No limit applies to it.
    Exempt,
    /// It may pass.
    Admitted(Box<Admitted>),
    /// It may not.
    Refused(Box<Refusal>),
}

impl Admission {
    /// May it pass?
    pub fn is_admitted(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

/// A request that may pass. It holds what the request holds while it is on its way: dropped, it is
/// no longer in flight.
#[derive(Debug)]
#[must_use = "dropped, the request is no longer in flight"]
pub struct Admitted {
    pub(crate) of: Vec<AppliedLimit>,
    /// Of each of them, if it was charged and may have to be corrected.
    pub(crate) receipts: SmallVec<[Option<Receipt>; 2]>,
    pub(crate) speaker: Option<(usize, Decision)>,
    /// How long to hold the request before it goes on.
    pub delay: Duration,
    /// Was it decided without the store, which does not answer?
    pub is_degraded: bool,
    pub(crate) permits: Permits,
    pub(crate) gate: Gate,
}

/// When and where a charge was made, for a correction.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub(crate) at: Micros,
    pub(crate) origin: Origin,
}

impl Receipt {
    /// Of a charge in the store of this process, or of one that answered.
    pub fn of_store(at: Micros) -> Self {
        Self { at, origin: Origin::Store }
    }

    /// When the charge was made, by the clock of where it was made.
    pub fn at(&self) -> Micros {
        self.at
    }

    /// Was the charge made without the store, which did not answer?
    pub fn is_degraded(&self) -> bool {
        self.origin.is_degraded()
    }
}

/// The limit that speaks for all, and what it says.
#[derive(Clone, Copy, Debug)]
pub struct Speaker<'a> {
    /// The limit of the policy.
    pub rule: &'a Arc<LimitRule>,
    /// In numbers, for this caller.
    pub limit: &'a Limit,
    /// What it decided.
    pub decision: &'a Decision,
}

/// A request that may not pass.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The limit that refused.
    pub rule: Arc<LimitRule>,
    /// Why.
    pub why: Refused,
    /// Was it decided without the store, which does not answer?
    pub is_degraded: bool,
}

/// Why a request may not pass.
#[derive(Clone, Debug)]
pub enum Refused {
    /// It does not fit.
    Limited {
        /// The limit in numbers, for this caller.
        limit: Limit,
        /// What it decided.
        decision: Decision,
    },
    /// So many are in flight already.
    Busy {
        /// How many may be.
        max: u64,
    },
    /// It has to tell who it is, and does not.
    NoIdentity {
        /// The identity.
        identity: String,
        /// Why it is not there.
        why: MissingReason,
    },
}

impl Refusal {
    /// What the limit says, if it is one that counts.
    pub fn speaker(&self) -> Option<Speaker<'_>> {
        match &self.why {
            Refused::Limited { limit, decision } => {
                Some(Speaker { rule: &self.rule, limit, decision })
            }
            Refused::Busy { .. } | Refused::NoIdentity { .. } => None,
        }
    }
}

impl Admitted {
    /// The limit that is closest to refusing.
    pub fn speaker(&self) -> Option<Speaker<'_>> {
        let (at, decision) = self.speaker.as_ref()?;
        let one = &self.of[*at];
        Some(Speaker { rule: &one.rule, limit: rate(one), decision })
    }

    /// Is it in flight for a limit of concurrency?
    pub fn holds_permits(&self) -> bool {
        !self.permits.is_empty()
    }

    /// Corrects the charge by what the answer says of its cost, each limit by its own rule. Without a
    /// word, the charge stays as it is.
    pub fn settle(&mut self, status: u16, headers: &dyn Headers) {
        self.correct(|one| one.rule.response_cost(status, headers));
    }

    /// Corrects the charge to this much, with every limit that has not been settled. 0 gives all of it
    /// back.
    pub fn settle_as(&mut self, actual: u64) {
        self.correct(|_| Some(actual));
    }

    fn correct(&mut self, actual: impl Fn(&AppliedLimit) -> Option<u64>) {
        for (one, receipt) in self.of.iter().zip(&mut self.receipts) {
            if receipt.is_none() {
                continue;
            }
            let Some(actual) = actual(one) else { continue };
            let Some(receipt) = receipt.take() else { continue };
            let Some((op, cost)) = Op::correction(one.cost, actual, receipt.at) else { continue };
            let mut one = one.clone();
            one.cost = cost;
            self.gate.inner().backend.correct(op, one, receipt, self.gate.now());
        }
    }
}
