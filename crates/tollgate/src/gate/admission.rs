//! What becomes of a request.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{Cost, Decision, Limit, Micros};
use tollgate_rules::{Applied, Headers, LimitRule, Missing};

use super::Gate;
use super::backend::{Origin, Permit};

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
    /// The limit that is closest to refusing.
    pub speaker: Option<Speaker>,
    /// How long to hold the request before it goes on.
    pub delay: Duration,
    /// Was it decided without the store, which does not answer?
    pub is_degraded: bool,
    pub(crate) gate: Gate,
    pub(crate) permits: SmallVec<[Permit; 1]>,
    pub(crate) charged: SmallVec<[(Applied, Mark); 4]>,
}

/// The limit that speaks for all, and what it says.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// The limit of the policy.
    pub rule: Arc<LimitRule>,
    /// In numbers, for this caller.
    pub limit: Limit,
    /// What it decided.
    pub decision: Decision,
}

/// A request that may not pass.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The limit that refused.
    pub rule: Arc<LimitRule>,
    /// Why.
    pub why: Refused,
}

/// Why a request may not pass.
#[derive(Clone, Debug)]
pub enum Refused {
    /// It does not fit.
    Limited(Speaker),
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
        why: Missing,
    },
}

/// When it was charged, and by whom: a correction wants to know.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) at: Micros,
    pub(crate) origin: Origin,
}

impl Admitted {
    /// Is it in flight for a limit of concurrency?
    pub fn holds_permits(&self) -> bool {
        !self.permits.is_empty()
    }

    /// Corrects the charge by what the answer says of its cost, each limit by its own rule. Without a
    /// word, the charge stays as it is.
    pub fn settle(&mut self, status: u16, headers: &dyn Headers) {
        for (one, mark) in std::mem::take(&mut self.charged) {
            match one.rule.cost_of_answer(status, headers) {
                Some(actual) => self.correct(one, mark, actual),
                None => self.charged.push((one, mark)),
            }
        }
    }

    /// Corrects the charge to this much, with every limit that has not been settled. 0 gives all of it
    /// back.
    pub fn settle_as(&mut self, actual: u64) {
        for (one, mark) in std::mem::take(&mut self.charged) {
            self.correct(one, mark, actual);
        }
    }

    fn correct(&self, one: Applied, mark: Mark, actual: u64) {
        let estimate = one.cost.get();
        let over = Cost::new(actual.saturating_sub(estimate));
        let under = Cost::new(estimate.saturating_sub(actual));
        let charged_at = mark.at;
        let (op, cost) = match (over, under) {
            (Some(over), _) => (tollgate_stores::Op::Charge, over),
            (_, Some(under)) => (tollgate_stores::Op::Refund { charged_at }, under),
            _ => return,
        };
        let mut one = one;
        one.cost = cost;
        self.gate.inner().backend.correct(op, one, mark, self.gate.now());
    }
}
