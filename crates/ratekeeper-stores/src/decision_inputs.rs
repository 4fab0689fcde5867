//! What a denial was computed from, so that it can be explained and computed again.

use ratekeeper_core::{BucketCell, Cost, Decision, GuaranteedLimit, Limit, Micros};

use crate::charge::{Charge, ChargeKind, MergedCharges};
use crate::snapshot::{Snapshot, apply_to_buckets};
use crate::store::Op;
use crate::verdict::Verdict;

/// The largest sliding log that is kept with a denial.
const LOG_BYTES_MAX: usize = 2_048;

/// The state of a key before a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateBefore {
    /// The state under a limit without guarantees.
    Own(Snapshot),
    /// The states of a total and its guarantees.
    Buckets(Vec<BucketCell>),
    /// What a store computed from a sliding log that it keeps.
    LogSummary {
        /// The sum of the costs that count.
        used: u64,
        /// When the newest request was, in microseconds since the epoch.
        newest_us: u64,
        /// How long until the request is admitted.
        wait_us: u64,
    },
}

/// The limit, cost, time and state that a denial was computed from. Computing it again gives the same decision, bit
/// for bit, because a decision depends on nothing else.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Charge, DecisionInputs, Limit, MemoryStore, Micros, Op};
///
/// let (store, limit, now) = (MemoryStore::new(), Limit::fixed_window("2/minute")?, Micros::new(0));
/// let charges = [Charge::new(&limit, "ann")];
/// while store.apply_now(Op::Check, &charges, now)?.allowed() {}
///
/// let denied = store.apply_now(Op::Check, &charges, now)?;
/// let inputs = store.denial_inputs(&charges, &denied);
/// assert_eq!(inputs.decide(), Some(*denied));
/// let higher = Limit::fixed_window("3/minute")?;
/// assert!(inputs.decide_under(&higher).unwrap().allowed(), "what if it were 3 a minute");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DecisionInputs {
    limit: Limit,
    class: Option<GuaranteedLimit>,
    cost: Cost,
    kind: ChargeKind,
    at: Micros,
    state: Option<StateBefore>,
}

impl DecisionInputs {
    /// Returns what the binding decision of a denial was computed from. `state` returns the state of its key; it is
    /// dropped if it does not lead to the decision, because another request has changed it meanwhile.
    ///
    /// # Panics
    /// If the verdict is of other charges.
    pub fn of_denial(
        charges: &[Charge<'_>],
        verdict: &Verdict,
        state: impl FnOnce(&Charge<'_>) -> Option<StateBefore>,
    ) -> Self {
        let charge = binding_charge(charges, verdict.binding());
        let inputs = Self {
            limit: charge.limit.clone(),
            class: charge.class.cloned(),
            cost: charge.cost,
            kind: charge.kind,
            at: verdict.at(),
            state: state(&charge).filter(StateBefore::is_small),
        };
        match inputs.decide() == Some(**verdict) {
            true => inputs,
            false => Self { state: None, ..inputs },
        }
    }

    /// Makes the decision again. `None` if the state is not known.
    #[must_use]
    pub fn decide(&self) -> Option<Decision> {
        match self.state.as_ref()? {
            StateBefore::Own(snapshot) => Some(self.apply(Op::Check, snapshot, &self.limit)),
            StateBefore::Buckets(cells) => {
                let (class, mut cells) = (self.class.as_ref()?, cells.clone());
                Some(apply_to_buckets(Op::Check, class, &self.charge(&self.limit), &mut cells))
            }
            StateBefore::LogSummary { used, newest_us, wait_us } => {
                let (_, cost) = Op::Check.on(&self.charge(&self.limit));
                let rule = self.limit.log_evaluator()?;
                Some(rule.decision(*used, *newest_us, *wait_us, cost, self.at))
            }
        }
    }

    /// Returns the decision that another limit of the same algorithm would have made about this request in this state.
    /// `None` if the state does not say: it is not known, has guarantees, is a summary of a sliding log, or is
    /// that of another algorithm.
    #[must_use]
    pub fn decide_under(&self, limit: &Limit) -> Option<Decision> {
        match self.state.as_ref()? {
            StateBefore::Own(snapshot) if limit.algorithm() == self.limit.algorithm() => {
                Some(self.apply(Op::Check, snapshot, limit))
            }
            _ => None,
        }
    }

    /// Returns the largest cost that would have been admitted. `None` if the state is not known.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        match self.state.as_ref()? {
            StateBefore::Own(snapshot) => {
                Some(self.apply(Op::Peek, snapshot, &self.limit).remaining())
            }
            StateBefore::Buckets(_) | StateBefore::LogSummary { .. } => {
                self.decide().map(|decision| decision.remaining())
            }
        }
    }

    fn apply(&self, op: Op, snapshot: &Snapshot, limit: &Limit) -> Decision {
        snapshot.clone().apply(op, &self.charge(limit), self.at)
    }

    /// The charge, without its key.
    fn charge<'a>(&'a self, limit: &'a Limit) -> Charge<'a> {
        Charge::new(limit, "").cost(self.cost).kind(self.kind)
    }

    /// Returns the limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the cost.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns how the cost was checked.
    pub fn kind(&self) -> ChargeKind {
        self.kind
    }

    /// Returns when it was decided, by the store's clock.
    pub fn at(&self) -> Micros {
        self.at
    }

    /// Returns the state before, if it is known.
    pub fn state(&self) -> Option<&StateBefore> {
        self.state.as_ref()
    }

    /// Returns whether the limit has guarantees.
    #[must_use]
    pub fn has_guarantees(&self) -> bool {
        self.class.is_some()
    }
}

impl StateBefore {
    /// Returns whether it may be kept: the other states are small, and a log of this size too.
    fn is_small(&self) -> bool {
        match self {
            Self::Own(Snapshot::Log(log)) => log.heap_bytes() <= LOG_BYTES_MAX,
            _ => true,
        }
    }
}

/// Returns the charge that decided, at the summed cost of all charges to its usage.
fn binding_charge<'a>(charges: &[Charge<'a>], binding: usize) -> Charge<'a> {
    if let [charge] = charges {
        return *charge;
    }
    let merged = MergedCharges::merge(charges);
    let index = merged.indices().nth(binding).expect("the verdict is of these charges");
    merged.as_slice()[index]
}
