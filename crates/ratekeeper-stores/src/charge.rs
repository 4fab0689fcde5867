//! What a store is asked, and what it answers.

use std::fmt;
use std::ops::Deref;

use ratekeeper_core::{Cost, Decision, Limit, Micros, Rate, Scope};

use crate::store::Op;

/// The most limits that one request can be charged to.
pub const LIMITS_MAX: usize = 16;

/// One limit, one key, one cost.
///
/// Charges of the same scope, algorithm and key are about the same usage, whatever their numbers.
/// That is how usage carries over when a key's limit changes.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a [u8],
    pub(crate) cost: Cost,
    /// Of the scope and the limit's algorithm.
    pub(crate) usage_id: u64,
}

impl<'a> Charge<'a> {
    /// A charge of 1 to `key` under `limit`.
    #[inline]
    pub fn new<K: AsRef<[u8]> + ?Sized>(limit: &'a Limit, key: &'a K) -> Self {
        let (scope, usage_id) = (limit.scope(), limit.usage_id());
        Self { limit, scope, key: key.as_ref(), cost: Cost::ONE, usage_id }
    }

    /// The same with another cost.
    #[inline]
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// The same, counted in `scope` instead of the limit's own.
    #[inline]
    #[must_use]
    pub fn within(self, scope: &'a Scope) -> Self {
        Self { scope, usage_id: scope.usage_id(self.limit.algorithm()), ..self }
    }

    /// How much.
    pub fn amount(&self) -> Cost {
        self.cost
    }

    /// The limit.
    pub fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// The scope in which it is counted.
    pub fn scope(&self) -> &'a Scope {
        self.scope
    }

    /// The key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The same under another limit, with the usage of the old one's name.
    #[must_use]
    pub fn under(self, limit: &'a Limit) -> Self {
        Self { limit, usage_id: self.scope.usage_id(limit.algorithm()), ..self }
    }

    /// Is it about the same usage as `other`?
    pub(crate) fn shares_with(&self, other: &Charge<'_>) -> bool {
        self.key == other.key
            && self.limit.algorithm() == other.limit.algorithm()
            && self.scope == other.scope
    }
}

/// A [`Charge`] that borrows nothing.
#[derive(Clone, Debug)]
pub struct OwnedCharge {
    limit: Limit,
    scope: Scope,
    key: Box<[u8]>,
    cost: Cost,
}

impl OwnedCharge {
    /// The charge.
    pub fn as_charge(&self) -> Charge<'_> {
        Charge::new(&self.limit, &self.key).within(&self.scope).cost(self.cost)
    }
}

impl From<&Charge<'_>> for OwnedCharge {
    fn from(charge: &Charge<'_>) -> Self {
        let Charge { limit, scope, key, cost, .. } = *charge;
        Self { limit: limit.clone(), scope: scope.clone(), key: key.into(), cost }
    }
}

/// The answer to several charges at once.
///
/// It reads like the decision of the limit that speaks for all: when denied, the one with the
/// longest wait; when allowed, the one with the least remaining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    at: Micros,
    decided_by: usize,
    len: usize,
    decisions: [Decision; LIMITS_MAX],
}

impl Verdict {
    /// Does `op` with all charges: a check charges all of them or none. `act` does one thing to one
    /// of them, whose cost is then that of all charges to the same usage.
    pub(crate) fn of_all(
        op: Op,
        charges: &[Charge<'_>],
        at: Micros,
        mut act: impl FnMut(usize, Op, &Charge<'_>) -> Decision,
    ) -> Self {
        if op != Op::Check {
            return Self::build(charges, at, |i, charge| act(i, op, charge));
        }
        // A bit for each that denies. Charges to the same usage deny together.
        let firsts = (0..charges.len()).filter(|i| first_of(charges, *i) == *i);
        let denies = firsts.fold(0_u32, |denies, i| {
            let allowed = act(i, Op::Peek, &merge(charges, i)).allowed();
            denies | u32::from(!allowed) << i
        });
        // Those that deny are asked in earnest: a log may count rejected attempts.
        let op_of = |i: usize| match denies == 0 || denies & (1 << i) != 0 {
            true => Op::Check,
            false => Op::Peek,
        };
        Self::build(charges, at, |i, charge| act(i, op_of(i), charge))
    }

    /// The verdict of a decision for each charge, of which there are 1 to [`LIMITS_MAX`]. Charges to
    /// the same usage share one, at their summed cost.
    pub fn build(
        charges: &[Charge<'_>],
        at: Micros,
        mut decide: impl FnMut(usize, &Charge<'_>) -> Decision,
    ) -> Self {
        let first = decide(0, &merge(charges, 0));
        let decisions = [first; LIMITS_MAX];
        let mut verdict = Self { at, decided_by: 0, len: charges.len(), decisions };
        for i in 1..charges.len() {
            let decision = match first_of(charges, i) {
                first if first < i => verdict.decisions[first],
                _ => decide(i, &merge(charges, i)),
            };
            verdict.decisions[i] = decision;
            if decision.strictness() > verdict.decisions[verdict.decided_by].strictness() {
                verdict.decided_by = i;
            }
        }
        verdict
    }

    /// When it was decided, by the store's clock. A refund wants to know.
    pub fn at(&self) -> Micros {
        self.at
    }

    /// The decision of every limit, in the order of the charges.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions[..self.len]
    }

    /// Which of the charges decided.
    pub fn decided_by(&self) -> usize {
        self.decided_by
    }

    /// How long to hold an admitted request: the longest that any of the limits asks for.
    pub fn delay(&self) -> std::time::Duration {
        self.decisions().iter().map(Decision::delay).max().unwrap_or_default()
    }
}

/// Charge `i` with the cost of all charges to the same usage.
pub(crate) fn merge<'a>(charges: &[Charge<'a>], i: usize) -> Charge<'a> {
    let shared = charges.iter().filter(|other| other.shares_with(&charges[i]));
    let total = shared.map(|charge| charge.cost.get()).fold(0, u64::saturating_add);
    charges[i].cost(Cost::new(total).unwrap_or(Cost::ONE))
}

/// The first of the charges to the usage of charge `i`: the one that is written.
pub(crate) fn first_of(charges: &[Charge<'_>], i: usize) -> usize {
    charges[..i].iter().position(|other| other.shares_with(&charges[i])).unwrap_or(i)
}

impl Deref for Verdict {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decisions[self.decided_by]
    }
}

/// Why charges cannot be decided together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChargesError {
    /// None, or more than [`LIMITS_MAX`].
    Count(usize),
    /// Two limits of one name and algorithm count for the same key, but not in the same way.
    SameName {
        /// Their name.
        name: String,
        /// The rate of the one.
        rate: Rate,
        /// The rate of the other.
        other: Rate,
    },
}

impl ChargesError {
    /// Can these be decided together?
    pub fn check(charges: &[Charge<'_>]) -> Result<(), Self> {
        if !(1..=LIMITS_MAX).contains(&charges.len()) {
            return Err(Self::Count(charges.len()));
        }
        for (i, charge) in charges.iter().enumerate() {
            let rate = charge.limit.rate();
            let differs = |other: &&Charge<'_>| other.limit.rate() != rate;
            let mut alike = charges[..i].iter().filter(|other| other.shares_with(charge));
            if let Some(other) = alike.find(differs) {
                let name = charge.scope.name().to_string();
                return Err(Self::SameName { name, rate: other.limit.rate(), other: rate });
            }
        }
        Ok(())
    }
}

impl fmt::Display for ChargesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(limits) => write!(
                f,
                "a request can be charged to 1 to {LIMITS_MAX} limits at once, not {limits}"
            ),
            Self::SameName { name, rate, other } => write!(
                f,
                "two limits named \"{name}\", {rate} and {other}, count the same key; give one of them another name"
            ),
        }
    }
}

impl std::error::Error for ChargesError {}
