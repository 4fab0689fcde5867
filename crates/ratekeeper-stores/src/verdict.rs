//! The decision on all charges of a request.

use std::ops::Deref;
use std::time::Duration;

use ratekeeper_core::{Decision, Micros};
use smallvec::SmallVec;

use crate::charge::{Charge, INLINE, MergedCharges};
use crate::decision_inputs::StateBefore;
use crate::store::Op;

/// A decision for each of some charges.
pub(crate) type Decisions = SmallVec<[Decision; INLINE]>;

/// The decisions on all charges of a request.
///
/// It dereferences to the decision of the binding charge ([`Verdict::binding`]).
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Charge, Limit, MemoryStore, Micros, Op};
///
/// let (user, tenant) = (Limit::token_bucket("2/s")?.named("user"), Limit::token_bucket("9/s")?);
/// let charges = [Charge::new(&tenant, "acme"), Charge::new(&user, "ann")];
/// let verdict = MemoryStore::new().apply_now(Op::Check, &charges, Micros::new(0))?;
/// assert_eq!((verdict.binding(), verdict.remaining()), (1, 1), "the second charge has the least left");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct Verdict {
    at: Micros,
    binding: usize,
    decisions: Decisions,
    /// Of the binding charge, if it is denied and the store returned it.
    state_before: Option<Box<StateBefore>>,
}

/// Verdicts are equal if they decide the same at the same time, in whatever form a store keeps its states.
impl PartialEq for Verdict {
    fn eq(&self, other: &Self) -> bool {
        let parts = |of: &Self| (of.at, of.binding);
        parts(self) == parts(other) && self.decisions == other.decisions
    }
}

impl Eq for Verdict {}

impl Verdict {
    /// Returns the verdict on a single charge, decided at `at`.
    #[inline]
    pub fn single(decision: Decision, at: Micros) -> Self {
        let mut decisions = SmallVec::new();
        decisions.push(decision);
        Self { at, binding: 0, decisions, state_before: None }
    }

    /// Returns the verdict of one decision for each usage: charges to the same usage share a
    /// decision at their summed cost. `decide` gets the index of the first charge to a usage, and
    /// that charge at the summed cost.
    ///
    /// # Panics
    /// If there are no charges.
    pub fn build(
        charges: &[Charge<'_>],
        at: Micros,
        mut decide: impl FnMut(usize, &Charge<'_>) -> Decision,
    ) -> Self {
        let merged = MergedCharges::merge(charges);
        let mut decisions = Decisions::new();
        for (i, index) in merged.indices().enumerate() {
            if index == decisions.len() {
                decisions.push(decide(i, &merged.as_slice()[index]));
            }
        }
        Self::of_merged(&merged, at, &decisions)
    }

    /// Returns the verdict of a decision for each merged charge.
    pub(crate) fn of_merged(charges: &MergedCharges<'_>, at: Micros, merged: &[Decision]) -> Self {
        let decisions: Decisions = charges.indices().map(|index| merged[index]).collect();
        let mut binding = 0;
        for (i, decision) in decisions.iter().enumerate() {
            if decision.strictness() > decisions[binding].strictness() {
                binding = i;
            }
        }
        Self { at, binding, decisions, state_before: None }
    }

    /// Returns the verdict of a decision for each merged charge, and of the states of those that are denied.
    #[cfg(feature = "redis")]
    pub(crate) fn of_states(
        charges: &MergedCharges<'_>,
        at: Micros,
        merged: &[Decision],
        mut states: Vec<Option<StateBefore>>,
    ) -> Self {
        let verdict = Self::of_merged(charges, at, merged);
        let index = charges.indices().nth(verdict.binding);
        let state = index.and_then(|index| states.get_mut(index)?.take());
        Self { state_before: state.map(Box::new), ..verdict }
    }

    /// Returns the state that the binding decision was computed from, if that is a denial and a shared store made it.
    pub fn state_before(&self) -> Option<&StateBefore> {
        self.state_before.as_deref()
    }

    /// Returns when it was decided, by the store's clock: the `charged_at` of a refund.
    #[must_use]
    pub fn at(&self) -> Micros {
        self.at
    }

    /// Returns the decision on every charge, in the order of the charges.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Returns the index of the binding charge: when denied, the one with the longest wait; when
    /// allowed, the one with the least remaining.
    #[must_use]
    pub fn binding(&self) -> usize {
        self.binding
    }

    /// Returns how long to delay an admitted request: the longest delay of any charge.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.decisions.iter().map(Decision::delay).max().unwrap_or_default()
    }
}

impl Deref for Verdict {
    type Target = Decision;

    #[inline]
    fn deref(&self) -> &Decision {
        &self.decisions[self.binding]
    }
}

/// Applies `op` to charges of different usages. A check charges all of them or none. `apply` applies
/// an operation to one charge, which it gets with its index.
pub(crate) fn apply_all(
    op: Op,
    charges: &[Charge<'_>],
    mut apply: impl FnMut(usize, Op, &Charge<'_>) -> Decision,
) -> Decisions {
    let each = || charges.iter().enumerate();
    if op != Op::Check || charges.len() == 1 {
        return each().map(|(i, charge)| apply(i, op, charge)).collect();
    }
    let peeked: Decisions = each().map(|(i, charge)| apply(i, Op::Peek, charge)).collect();
    let all_fit = peeked.iter().all(Decision::allowed);
    let check = |(i, charge): (usize, &Charge<'_>)| match peeked[i].allowed() && !all_fit {
        true => peeked[i],
        // Also a charge that is denied is checked: a log may count denied requests.
        false => apply(i, Op::Check, charge),
    };
    each().map(check).collect()
}
