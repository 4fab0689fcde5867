//! Charges: what a request costs under its limits.

use std::cmp::Ordering;

use ratekeeper_core::{
    Cost, Decision, FailureMode, GuaranteedLimit, IntoCost, Key, Limit, MaxDebt, Rate, Scope,
};
use smallvec::SmallVec;

/// The most charges that one atomic step can take.
pub const CHARGES_MAX: usize = 256;

/// As many charges as are handled without an allocation.
pub(crate) const INLINE: usize = 4;

/// From this number on, charges to the same usage are found by sorting instead of comparing pairs.
const SORTED_FROM: usize = 16;

/// How the cost of a charge is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChargeKind {
    /// The whole cost has to fit.
    #[default]
    Full,
    /// Something has to be left. Then the whole cost is charged, also more than is left; the excess is
    /// a debt that time pays.
    Overdraft,
    /// Something has to be left. Nothing is charged.
    Look,
}

/// One limit, one key, one cost.
///
/// Charges of the same scope, algorithm and key count towards the same usage, whatever their rates.
/// So usage carries over when a limit changes.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Charge, Cost, Limit, MemoryStore, Micros, Op};
///
/// let per_user = Limit::token_bucket("5/s")?.named("user");
/// let per_tenant = Limit::token_bucket("1000/minute")?.named("tenant");
/// let charges = [Charge::new(&per_user, "ann").cost(Cost::of(2)), Charge::new(&per_tenant, "acme")];
/// let verdict = MemoryStore::new().apply_now(Op::Check, &charges, Micros::new(0))?;
/// assert_eq!(verdict.decisions()[0].remaining(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a [u8],
    pub(crate) cost: Cost,
    /// The hash of the scope and the limit's algorithm.
    pub(crate) usage_id: u64,
    pub(crate) kind: ChargeKind,
    /// The most that the key may owe; `u64::MAX` for no maximum.
    pub(crate) debt_max: u64,
    /// The limit is a total with guarantees, and the request of a class of it.
    pub(crate) class: Option<&'a GuaranteedLimit>,
    /// For a refund: it was charged by borrowing.
    pub(crate) is_borrowed: bool,
    on_failure: Option<FailureMode>,
}

impl<'a> Charge<'a> {
    /// Returns a charge of 1 to `key` under `limit`.
    #[inline]
    pub fn new<K: Key + ?Sized>(limit: &'a Limit, key: &'a K) -> Self {
        let (scope, usage_id) = (limit.scope(), limit.usage_id());
        Self {
            limit,
            scope,
            key: key.key_bytes(),
            cost: Cost::ONE,
            usage_id,
            kind: ChargeKind::Full,
            debt_max: u64::MAX,
            class: None,
            is_borrowed: false,
            on_failure: None,
        }
    }

    /// Returns a charge of 1 to `key` under a total, parts of which are guaranteed to classes of requests. It is
    /// admitted by the guarantee of its class, or by borrowing.
    ///
    /// ```
    /// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
    /// use ratekeeper::{Charge, Cost, Guarantees, Limit, MemoryStore, Micros, Op};
    ///
    /// let total = Limit::token_bucket("350/s")?.named("api");
    /// let guarantees = Guarantees::new(total, [("partner", "200/s".parse()?)])?;
    /// let (partner, free) = (guarantees.class("partner"), guarantees.class("free"));
    ///
    /// let store = MemoryStore::with_capacity(1_000);
    /// let check = |charge| store.apply_now(Op::Check, &[charge], Micros::new(0));
    /// assert!(check(Charge::guaranteed(&free, "eu").cost(Cost::of(150)))?.is_borrowed());
    /// assert!(!check(Charge::guaranteed(&free, "eu"))?.allowed());
    /// assert!(check(Charge::guaranteed(&partner, "eu").cost(Cost::of(200)))?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn guaranteed<K: Key + ?Sized>(limit: &'a GuaranteedLimit, key: &'a K) -> Self {
        Self { class: Some(limit), ..Self::new(limit.total(), key) }
    }

    /// Returns the limit as it is for the class of the request, if parts of it are guaranteed to classes.
    pub fn guaranteed_limit(&self) -> Option<&'a GuaranteedLimit> {
        self.class
    }

    /// Takes over from its decision what a refund has to know: whether it was charged by borrowing.
    #[must_use]
    pub fn decided(self, decision: &Decision) -> Self {
        self.borrowed(decision.is_borrowed())
    }

    /// Sets whether it was charged by borrowing, which a refund has to know.
    #[must_use]
    pub fn borrowed(self, is_borrowed: bool) -> Self {
        Self { is_borrowed, ..self }
    }

    /// Sets the cost.
    #[inline]
    #[must_use]
    pub fn cost(self, cost: impl IntoCost) -> Self {
        Self { cost: cost.into_cost(), ..self }
    }

    /// Sets how the cost is checked.
    #[inline]
    #[must_use]
    pub fn kind(self, kind: ChargeKind) -> Self {
        Self { kind, ..self }
    }

    /// Sets the most that the key may owe after an overdraft or a charge without a check. Of what would
    /// exceed that, nothing is charged.
    #[inline]
    #[must_use]
    pub fn max_debt(self, max: MaxDebt) -> Self {
        Self { debt_max: max.units(self.limit), ..self }
    }

    /// Needs only that something is left, and is then charged in full, up to a maximum debt:
    /// [`ChargeKind::Overdraft`].
    #[must_use]
    pub fn overdraft(self, max: MaxDebt) -> Self {
        self.kind(ChargeKind::Overdraft).max_debt(max)
    }

    /// Returns whether a check charges nothing.
    #[must_use]
    pub fn is_look(&self) -> bool {
        self.kind == ChargeKind::Look
    }

    /// Returns whether it is enough that something is left.
    #[must_use]
    pub fn is_overdraft(&self) -> bool {
        self.kind == ChargeKind::Overdraft
    }

    /// Returns whether less than the cost may be charged, because of a maximum debt.
    #[must_use]
    pub fn has_max_debt(&self) -> bool {
        self.debt_max != u64::MAX
    }

    /// Counts in `scope` instead of the limit's own, where it has no guarantees.
    #[inline]
    #[must_use]
    pub fn within(self, scope: &'a Scope) -> Self {
        let usage_id = scope.usage_id(self.limit.algorithm());
        Self { scope, usage_id, class: None, ..self }
    }

    /// Sets what happens to the charge when the store is unavailable, instead of what holds for the
    /// whole store.
    #[inline]
    #[must_use]
    pub fn on_failure(self, mode: FailureMode) -> Self {
        Self { on_failure: Some(mode), ..self }
    }

    /// Returns what happens to the charge when the store is unavailable; `None` if nothing was set.
    pub fn failure_mode(&self) -> Option<FailureMode> {
        self.on_failure
    }

    /// Returns the cost.
    pub fn amount(&self) -> Cost {
        self.cost
    }

    /// Returns the limit.
    pub fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// Returns the scope in which it is counted.
    pub fn scope(&self) -> &'a Scope {
        self.scope
    }

    /// Returns the key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Replaces the limit, but counts in the same scope. A maximum debt keeps its ratio to the quota. The new limit
    /// has no guarantees.
    #[must_use]
    pub fn under(self, limit: &'a Limit) -> Self {
        let debt_max = match self.debt_max {
            u64::MAX => u64::MAX,
            units => {
                let scaled = u128::from(units) * u128::from(limit.quota());
                (scaled / u128::from(self.limit.quota())) as u64 // a quota is at least 1
            }
        };
        let usage_id = self.scope.usage_id(limit.algorithm());
        Self { limit, usage_id, debt_max, class: None, ..self }
    }

    /// Returns a charge for each usage that decides: one, or those of the total and of each guarantee.
    pub(crate) fn usages(&self) -> impl Iterator<Item = Charge<'a>> + use<'a> {
        let (charge, total) = (*self, Self { class: None, ..*self });
        let guarantees = self.class.into_iter().flat_map(|class| class.buckets().skip(1));
        let guarantee = move |limit: &'a Limit| Self {
            limit,
            scope: limit.scope(),
            usage_id: limit.usage_id(),
            class: None,
            ..charge
        };
        std::iter::once(total).chain(guarantees.map(guarantee))
    }

    /// Returns whether both charges count towards the same usage.
    pub(crate) fn shares_usage(&self, other: &Charge<'_>) -> bool {
        // The hash of the scope and the algorithm first: it differs for most charges.
        self.usage_id == other.usage_id
            && self.key == other.key
            && self.limit.algorithm() == other.limit.algorithm()
            && self.scope == other.scope
    }

    /// Adds a charge to the same usage. What only looks adds nothing to what charges, and of two kinds of
    /// charges the stricter counts for both.
    fn merge(&mut self, other: &Charge<'_>) {
        match (self.kind, other.kind) {
            (_, ChargeKind::Look) => return,
            (ChargeKind::Look, _) => (self.kind, self.cost) = (other.kind, other.cost),
            _ => {
                let total = self.cost.get().saturating_add(other.cost.get());
                self.cost = Cost::new(total).unwrap_or(Cost::ONE);
            }
        }
        if other.kind == ChargeKind::Full {
            self.kind = ChargeKind::Full;
        }
        self.debt_max = self.debt_max.min(other.debt_max);
    }

    /// An order in which charges to the same usage, and no others, are equal.
    fn cmp_usage(&self, other: &Charge<'_>) -> Ordering {
        fn parts<'c>(charge: &'c Charge<'_>) -> (u64, &'c [u8], u8, &'c str, Option<&'c str>) {
            let (algorithm, scope) = (charge.limit.algorithm() as u8, charge.scope);
            (charge.usage_id, charge.key, algorithm, scope.name(), scope.class())
        }
        parts(self).cmp(&parts(other))
    }
}

/// A [`Charge`] that borrows nothing.
#[derive(Clone, Debug)]
pub struct OwnedCharge {
    limit: Limit,
    scope: Scope,
    key: Box<[u8]>,
    cost: Cost,
    kind: ChargeKind,
    debt_max: u64,
    class: Option<GuaranteedLimit>,
    is_borrowed: bool,
    on_failure: Option<FailureMode>,
}

impl OwnedCharge {
    /// Borrows the charge.
    pub fn as_charge(&self) -> Charge<'_> {
        let charge = Charge::new(&self.limit, &self.key).within(&self.scope).cost(self.cost);
        let Self { kind, debt_max, is_borrowed, on_failure, .. } = *self;
        Charge { kind, debt_max, class: self.class.as_ref(), is_borrowed, on_failure, ..charge }
    }
}

impl From<&Charge<'_>> for OwnedCharge {
    fn from(charge: &Charge<'_>) -> Self {
        let Charge { cost, kind, debt_max, is_borrowed, on_failure, .. } = *charge;
        let (limit, class) = (charge.limit.clone(), charge.class.cloned());
        let (scope, key) = (charge.scope.clone(), charge.key.into());
        Self { limit, scope, key, cost, kind, debt_max, class, is_borrowed, on_failure }
    }
}

/// The charges of one request, merged by usage: a store decides once on each usage, at the summed
/// cost of its charges.
#[derive(Debug)]
pub(crate) struct MergedCharges<'a> {
    /// A charge for each usage, in the order in which the usages first occur.
    merged: SmallVec<[Charge<'a>; INLINE]>,
    /// For each original charge, its index in `merged`.
    indices: SmallVec<[u16; INLINE]>,
}

impl<'a> MergedCharges<'a> {
    /// Checks that the charges can be decided together, and merges them.
    pub(crate) fn new(charges: &[Charge<'a>]) -> Result<Self, ChargesError> {
        if !(1..=CHARGES_MAX).contains(&charges.len()) {
            return Err(ChargesError::Count(charges.len()));
        }
        let merged = Self::merge(charges);
        for (charge, index) in charges.iter().zip(&merged.indices) {
            let first = &merged.merged[usize::from(*index)];
            let (rate, other) = (first.limit.rate(), charge.limit.rate());
            if rate != other {
                let name = charge.scope.name().to_string();
                return Err(ChargesError::ConflictingRates { name, rate, other });
            }
            let is_same_class = match (first.class, charge.class) {
                (None, None) => true,
                (Some(first), Some(class)) => first.is_same(class),
                _ => false,
            };
            if !is_same_class {
                return Err(ChargesError::ConflictingClasses(charge.scope.name().to_string()));
            }
        }
        Ok(merged)
    }

    /// Merges charges that were checked before.
    pub(crate) fn merge(charges: &[Charge<'a>]) -> Self {
        let mut merged = SmallVec::<[Charge<'a>; INLINE]>::new();
        let mut indices = SmallVec::<[u16; INLINE]>::new();
        let firsts = (charges.len() >= SORTED_FROM).then(|| firsts_by_sorting(charges));
        for (i, charge) in charges.iter().enumerate() {
            let index = match &firsts {
                Some(firsts) if firsts[i] == i => None,
                Some(firsts) => Some(usize::from(indices[firsts[i]])),
                None => merged.iter().position(|other| other.shares_usage(charge)),
            };
            match index {
                Some(index) => {
                    merged[index].merge(charge);
                    indices.push(index as u16);
                }
                None => {
                    indices.push(merged.len() as u16);
                    merged.push(*charge);
                }
            }
        }
        Self { merged, indices }
    }

    /// The merged charges.
    pub(crate) fn as_slice(&self) -> &[Charge<'a>] {
        &self.merged
    }

    /// For each original charge, the index of its merged charge.
    pub(crate) fn indices(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.indices.iter().map(|index| usize::from(*index))
    }
}

/// Returns for each charge the first one to the same usage.
fn firsts_by_sorting(charges: &[Charge<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..charges.len()).collect();
    order.sort_by(|a, b| charges[*a].cmp_usage(&charges[*b])); // stable: the first stays first
    let mut firsts = vec![0; charges.len()];
    for same in order.chunk_by(|a, b| charges[*a].cmp_usage(&charges[*b]).is_eq()) {
        same.iter().for_each(|i| firsts[*i] = same[0]);
    }
    firsts
}

/// Why charges cannot be decided together.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Charge, ChargesError, Limit};
///
/// let five = Limit::token_bucket("5/s")?.named("api");
/// let six = Limit::token_bucket("6/s")?.named("api");
/// let charges = [Charge::new(&five, "ann"), Charge::new(&six, "ann")];
/// assert!(matches!(ChargesError::check(&charges), Err(ChargesError::ConflictingRates { .. })));
/// assert_eq!(ChargesError::check(&[]), Err(ChargesError::Count(0)));
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChargesError {
    /// There are no charges, or more than [`CHARGES_MAX`].
    #[error("one decision takes 1 to {CHARGES_MAX} charges, not {0}")]
    Count(usize),
    /// Two limits of the same name and algorithm apply to the same key at different rates.
    #[error(
        "two limits named \"{name}\", {rate} and {other}, count the same key; give one of them another name"
    )]
    ConflictingRates {
        /// The name of both limits.
        name: String,
        /// The rate of the first one.
        rate: Rate,
        /// The rate of the other one.
        other: Rate,
    },
    /// Two charges to the same key under one limit are for different classes, or for different guarantees.
    #[error(
        "two charges under the limit \"{0}\" are for different classes or guarantees; a request is of one class"
    )]
    ConflictingClasses(String),
}

impl ChargesError {
    /// Checks that these charges can be decided together.
    ///
    /// # Errors
    /// If there are none or more than [`CHARGES_MAX`], or if two limits of one name differ.
    pub fn check(charges: &[Charge<'_>]) -> Result<(), Self> {
        MergedCharges::new(charges).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use ratekeeper_core::Limit;

    use super::*;

    /// Charges to a few usages in a fixed but irregular order.
    fn charges<'a>(limits: &'a [Limit], keys: &'a [String], n: usize) -> Vec<Charge<'a>> {
        (0..n)
            .map(|i| {
                let (limit, key) = (&limits[i * 7 % limits.len()], &keys[i * i % keys.len()]);
                Charge::new(limit, key.as_str()).cost(Cost::new(1 + i as u64 % 5).unwrap())
            })
            .collect()
    }

    #[test]
    fn charges_to_the_same_usage_are_merged_however_many_there_are() {
        let rates = ["1/s", "2/s", "3/s"];
        let limits: Vec<_> = rates.iter().map(|rate| Limit::token_bucket(rate).unwrap()).collect();
        let keys: Vec<_> = (0..11).map(|i| format!("key {i}")).collect();
        for n in [1, 2, 3, SORTED_FROM - 1, SORTED_FROM, SORTED_FROM + 1, 100, CHARGES_MAX] {
            let charges = charges(&limits, &keys, n);
            let merged = MergedCharges::new(&charges).unwrap();
            let mut firsts = Vec::new();
            for (i, charge) in charges.iter().enumerate() {
                let same = |other: &&Charge<'_>| other.shares_usage(charge);
                let first = charges.iter().position(|other| same(&other)).unwrap();
                let total: u64 = charges.iter().filter(same).map(|same| same.cost.get()).sum();
                if first == i {
                    firsts.push(i);
                }
                let index = merged.indices().nth(i).unwrap();
                assert_eq!(index, firsts.iter().position(|other| *other == first).unwrap());
                let merged = &merged.as_slice()[index];
                assert!(merged.shares_usage(charge));
                assert_eq!(merged.cost.get(), total, "{n} charges");
            }
            assert_eq!(merged.as_slice().len(), firsts.len());
        }
    }

    #[test]
    fn sorting_and_comparing_agree_on_what_a_usage_is() {
        let limit = |rate: &str| Limit::token_bucket(rate).unwrap();
        let limits = [
            limit("1/s"),
            limit("1/s").named("plan"),
            limit("2/s").named("plan"),
            Limit::leaky_bucket("1/s").unwrap().named("plan"),
            limit("1/s").named("other"),
        ];
        for (a, b) in limits.iter().flat_map(|a| limits.iter().map(move |b| (a, b))) {
            for (key, other) in [("k", "k"), ("k", "l"), ("", "k")] {
                let (a, b) = (Charge::new(a, key), Charge::new(b, other));
                assert_eq!(a.shares_usage(&b), a.cmp_usage(&b).is_eq(), "{a:?} {b:?}");
            }
        }
    }
}
