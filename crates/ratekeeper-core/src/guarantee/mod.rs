//! Guaranteed capacity: a total limit, parts of which are guaranteed to classes of requests.
//!
//! The total `T` and each guarantee `g_j` is a token bucket with a state of its own under a name of its own,
//! so that expiry, resets and changes of a rate work as for every other limit. What is new is the
//! decision over all of them. A request of class `i` and cost `n` is admitted
//! - by its guarantee, if `n` fits `g_i` and `T`: it is charged to both; or else
//! - by borrowing, if `T.level − n ≥ Σ_j g_j.level`, over all classes, its own too: it is charged to `T`
//!   only.
//!
//! The rates of all guarantees sum up to at most the rate of the total, and so do the bursts. Therefore
//! `T.level ≥ Σ_j g_j.level` at every moment, and what fits a guarantee fits the total: both ways keep the
//! inequality, and so does time, because the total refills at least as fast as all guarantees together until
//! it is full. So a guarantee is always there, the flow that a class leaves unused is lent out in full, and
//! only its unspent burst is held back. The total is checked even so. It may be short if a rate was changed, if
//! a store has evicted the state of a guarantee, or in debt; and the total holds in all of these cases.
//! A guarantee in debt counts as empty, never as less.
//!
//! # Exact levels
//!
//! The level of a bucket of `R` requests per `W` µs (in lowest terms) is a whole number of `1/W` requests.
//! Levels of several buckets are compared in units of `1/S` requests, where the scale `S` is the
//! least common multiple of all `W`. Then a request of cost 1 is `S` units, a bucket refills a whole number of
//! units in a microsecond, and no level is more than `B·S` for the burst `B` of the total. That is kept below
//! 2^53, so that Lua in Redis can compute it; what would exceed it is rejected when the limit is
//! made.
//!
//! # Exact waits
//!
//! `T.level − Σ_j g_j.level` is piecewise linear in time. It does not fall until the total is full and does not
//! rise from then on. So borrowing becomes possible before the total is full, at that moment, or never
//! without other traffic ([`Levels::borrow_wait`]). Unlike under other limits, a request that waits for longer
//! than that may be denied again: a guarantee that refills is held back for its class.

mod error;
mod levels;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::algorithm::{Algorithm, gcd};
use crate::cell::Cell;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::limit::Limit;
use crate::rate::Rate;
use crate::time::Micros;
use levels::{Level, Levels, Way};

pub use error::GuaranteesError;

/// The most guarantees that one total can have.
pub const GUARANTEES_MAX: usize = 16;

/// A total limit, and what is guaranteed to classes of requests out of it.
///
/// Of 350 requests per second, 200 are guaranteed to partners:
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{BucketCell, Cost, Guarantees, Limit, Micros};
///
/// let total = Limit::token_bucket("350/s")?.named("api");
/// let guarantees = Guarantees::new(total, [("partner", "200/s".parse()?)])?;
/// let (partner, other) = (guarantees.class("partner"), guarantees.class("free"));
///
/// let now = Micros::new(0);
/// let mut cells = guarantees.fresh(now);
/// let free = other.check(&mut cells, Cost::of(150));
/// assert!(free.allowed() && free.is_borrowed());
/// assert!(!other.check(&mut cells, Cost::ONE).allowed(), "the rest is held back for partners");
/// let partners = partner.check(&mut cells, Cost::of(200));
/// assert!(partners.allowed() && !partners.is_borrowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Guarantees(Arc<Group>);

/// The limit as it is for one class: a guarantee out of a total, or none, so that it can only borrow.
///
/// See [`Guarantees::class`].
#[derive(Clone, Debug)]
pub struct GuaranteedLimit {
    group: Arc<Group>,
    /// The index of the guarantee among all buckets, of which the total is the first.
    own: Option<usize>,
}

#[derive(Debug)]
struct Group {
    /// The total, then the guarantees.
    buckets: Box<[Bucket]>,
    /// `S`: how many units one request is.
    scale: u64,
}

#[derive(Debug)]
struct Bucket {
    limit: Limit,
    /// How many units a level of 1 of this bucket is: `S/W`.
    weight: u64,
    /// How many units it refills in a microsecond: `R·S/W`.
    flow: u64,
}

/// The state of one bucket, and the time to read it at.
///
/// All buckets are read at the same time, unless a store has dropped the state of some of them and reads what it has
/// dropped at a later time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketCell {
    /// The state.
    pub cell: Cell,
    /// The time to read it at.
    pub now: Micros,
}

/// A guaranteed limit and a cost as plain numbers, for a store that decides in another language.
/// All are below 2^53.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuaranteeParams {
    /// The index of the class's own guarantee among the buckets, of which the total is 0; 0 if it has none.
    pub own: u64,
    /// The cost in units, or more than any level if no level can be that high.
    pub needed: u64,
    /// For each bucket, how many units a level of 1 is.
    pub weights: Vec<u64>,
}

/// No number in a script is larger.
const UNITS_MAX: u128 = (1 << 53) - 1;

impl Guarantees {
    /// Returns a total with guarantees for some classes.
    ///
    /// # Errors
    /// If the total is not a token bucket, a guarantee is not one, two are for one class, their rates or their bursts
    /// exceed those of the total, or the rates have no common scale at which they are exact.
    pub fn new<C: AsRef<str>>(
        total: Limit,
        guarantees: impl IntoIterator<Item = (C, Rate)>,
    ) -> Result<Self, GuaranteesError> {
        if total.algorithm() != Algorithm::TokenBucket {
            return Err(GuaranteesError::Algorithm(total.algorithm()));
        }
        let scope = total.scope().clone();
        let mut limits = Vec::from([total]);
        for (class, rate) in guarantees {
            let class = class.as_ref();
            if limits.iter().any(|limit| limit.scope().class() == Some(class)) {
                return Err(GuaranteesError::Duplicate(class.to_string()));
            }
            let limit = Limit::new(rate, Algorithm::TokenBucket).map_err(|source| {
                GuaranteesError::Guarantee { class: class.to_string(), source }
            })?;
            limits.push(limit.in_scope(scope.guarantee(class)));
        }
        if !(1..=GUARANTEES_MAX).contains(&(limits.len() - 1)) {
            return Err(GuaranteesError::Count(limits.len() - 1));
        }
        Group::new(&limits).map(|group| Self(Arc::new(group)))
    }

    /// Returns the total.
    #[must_use]
    pub fn total(&self) -> &Limit {
        &self.0.buckets[0].limit
    }

    /// Returns the classes and what is guaranteed to each.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Limit)> {
        self.0.buckets[1..]
            .iter()
            .map(|bucket| (bucket.limit.scope().class().unwrap_or_default(), &bucket.limit))
    }

    /// Returns the limit as it is for a class. A class without a guarantee can only borrow.
    #[must_use]
    pub fn class(&self, class: &str) -> GuaranteedLimit {
        let is_own = |bucket: &Bucket| bucket.limit.scope().class() == Some(class);
        GuaranteedLimit { group: self.0.clone(), own: self.0.buckets.iter().position(is_own) }
    }

    /// Returns the limit as it is for classes without a guarantee, which can only borrow.
    #[must_use]
    pub fn borrowing(&self) -> GuaranteedLimit {
        GuaranteedLimit { group: self.0.clone(), own: None }
    }

    /// Returns the states of a new key: of the total, then of each guarantee.
    #[must_use]
    pub fn fresh(&self, now: Micros) -> Vec<BucketCell> {
        self.0.buckets.iter().map(|_| BucketCell { cell: Cell::EMPTY, now }).collect()
    }
}

impl GuaranteedLimit {
    /// Returns the total.
    #[inline]
    #[must_use]
    pub fn total(&self) -> &Limit {
        &self.group.buckets[0].limit
    }

    /// Returns what is guaranteed to the class, if anything is.
    #[must_use]
    pub fn guarantee(&self) -> Option<&Limit> {
        self.own.map(|own| &self.group.buckets[own].limit)
    }

    /// Returns the limits of all buckets, in the order of their states: the total, then each guarantee.
    pub fn buckets(&self) -> impl ExactSizeIterator<Item = &Limit> {
        self.group.buckets.iter().map(|bucket| &bucket.limit)
    }

    /// Returns the total with all guarantees.
    #[must_use]
    pub fn guarantees(&self) -> Guarantees {
        Guarantees(self.group.clone())
    }

    /// Returns whether both are the same limit for the same class: of equal names and rates.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_same = |(a, b): (&Limit, &Limit)| a.scope() == b.scope() && a.rate() == b.rate();
        self.own == other.own
            && self.group.buckets.len() == other.group.buckets.len()
            && self.buckets().zip(other.buckets()).all(is_same)
    }

    /// Charges `cost` if it is admitted, by the guarantee of the class or by borrowing. A denial charges nothing.
    /// It does not change the cells either, except to convert those that were written under another rate.
    ///
    /// `cells` are the states of the total and of each guarantee, as in all of these functions.
    ///
    /// # Panics
    /// If there are not as many cells as buckets.
    pub fn check(&self, cells: &mut [BucketCell], cost: Cost) -> Decision {
        for (bucket, state) in self.group.buckets.iter().zip(&mut *cells) {
            bucket.convert(state);
        }
        let levels = self.levels(cells);
        match levels.way(self.needed(cost)) {
            Some(way) => {
                self.charge_by(way, cells, cost, u64::MAX);
                self.report(&self.levels(cells), 0).with_borrowed(way == Way::Borrow)
            }
            None => self.report(&levels, levels.wait_us(self.needed(cost))),
        }
    }

    /// Returns the decision that a check would make, without charging. `remaining` does not include `cost`.
    pub fn peek(&self, cells: &[BucketCell], cost: Cost) -> Decision {
        let (levels, needed) = (self.levels(cells), self.needed(cost));
        match levels.way(needed) {
            Some(way) => self.report(&levels, 0).with_borrowed(way == Way::Borrow),
            None => self.report(&levels, levels.wait_us(needed)),
        }
    }

    /// Charges `cost` even if it is not admitted. Then it is charged to the guarantee and the total, each of which
    /// can be in debt, of `debt_max` at the most.
    pub fn charge(&self, cells: &mut [BucketCell], cost: Cost, debt_max: u64) -> Decision {
        let way = self.levels(cells).way(self.needed(cost));
        let is_cut = self.charge_by(way.unwrap_or(Way::Guarantee), cells, cost, debt_max);
        let decision = self.report(&self.levels(cells), 0);
        decision.with_cut(is_cut).with_borrowed(way == Some(Way::Borrow))
    }

    /// Charges `cost` as [`GuaranteedLimit::charge`] does if anything is left (overdraft). Otherwise charges nothing,
    /// and returns when something is left again.
    pub fn overdraw(&self, cells: &mut [BucketCell], cost: Cost, debt_max: u64) -> Decision {
        let any = self.peek(cells, Cost::ONE);
        if any.allowed() { self.charge(cells, cost, debt_max) } else { any }
    }

    /// Refunds `cost` that was charged at `charged_at`, as far as it still counts: to the total and, unless it was
    /// borrowed ([`Decision::is_borrowed`]), to the guarantee. That is refunded no more than the total then has beyond
    /// all guarantees.
    pub fn refund(
        &self,
        cells: &mut [BucketCell],
        cost: Cost,
        charged_at: Micros,
        is_borrowed: bool,
    ) -> Decision {
        let buckets = &self.group.buckets;
        buckets[0].refund(&mut cells[0], cost, charged_at);
        if let Some(own) = self.own.filter(|_| !is_borrowed) {
            let before = cells[own];
            buckets[own].refund(&mut cells[own], cost, charged_at);
            if self.levels(cells).lendable(0) < 0 {
                cells[own] = before;
                let levels = self.levels(cells);
                let units = levels.lendable(0).max(0) + levels.debt(own);
                let whole = u64::try_from(units / i128::from(self.group.scale)).unwrap_or(u64::MAX);
                if let Some(whole) = Cost::new(whole.min(cost.get())) {
                    buckets[own].refund(&mut cells[own], whole, charged_at);
                }
            }
        }
        self.report(&self.levels(cells), 0)
    }

    /// Returns the parameters of this limit and a charge of `cost`.
    #[must_use]
    pub fn params(&self, cost: Cost) -> GuaranteeParams {
        let needed = self.needed(cost).min(UNITS_MAX as i128);
        GuaranteeParams {
            own: self.own.unwrap_or_default() as u64,
            needed: needed as u64,
            weights: self.group.buckets.iter().map(|bucket| bucket.weight).collect(),
        }
    }

    fn needed(&self, cost: Cost) -> i128 {
        i128::from(cost.get()) * i128::from(self.group.scale)
    }

    fn levels(&self, cells: &[BucketCell]) -> Levels {
        assert_eq!(cells.len(), self.group.buckets.len(), "a state for each bucket");
        let mut levels = Levels::new(self.group.scale, self.own);
        let states = self.group.buckets.iter().zip(cells);
        states.for_each(|(bucket, state)| levels.push(bucket.level(state, self.group.scale)));
        levels
    }

    /// Returns whether a maximum debt has cut what was charged.
    fn charge_by(&self, way: Way, cells: &mut [BucketCell], cost: Cost, debt_max: u64) -> bool {
        let buckets = &self.group.buckets;
        if let Some(own) = self.own.filter(|_| way == Way::Guarantee) {
            let _ = buckets[own].charge(&mut cells[own], cost, debt_max);
        }
        buckets[0].charge(&mut cells[0], cost, debt_max)
    }

    fn report(&self, levels: &Levels, wait_us: u64) -> Decision {
        Decision {
            wait_us,
            limit: self.total().quota(),
            remaining: levels.remaining(),
            reset_after_us: levels.reset_after_us(),
            delay_us: 0,
        }
    }
}

impl Group {
    /// `limits` are the total, then the guarantees.
    fn new(limits: &[Limit]) -> Result<Self, GuaranteesError> {
        let rate_of = |limit: &Limit| limit.cell_evaluator().and_then(|rule| rule.bucket_rate());
        let rates: Vec<(u64, u64)> = limits.iter().filter_map(rate_of).collect();
        let total = &limits[0];
        let (total_rate, burst) = (total.rate(), total.quota());
        let bursts: u64 = limits[1..].iter().map(Limit::quota).sum();
        if bursts > burst {
            return Err(GuaranteesError::Bursts { total: total_rate, burst, bursts });
        }
        let not_exact = || GuaranteesError::NotExact {
            total: total_rate,
            guarantees: limits[1..].iter().map(Limit::rate).collect(),
        };
        let lcm = |scale: u64, (_, period): &(u64, u64)| {
            (scale / gcd(scale, *period)).checked_mul(*period)
        };
        let scale = rates.iter().try_fold(1, lcm).ok_or_else(not_exact)?;
        let flow = |(count, period): &(u64, u64)| u128::from(*count) * u128::from(scale / period);
        let (flow_total, flows) = (flow(&rates[0]), rates[1..].iter().map(flow).sum::<u128>());
        if flows > flow_total {
            // In the period of the total, whose rate in lowest terms may have a shorter one.
            let period = u128::from(total_rate.period_us());
            let excess = (flows - flow_total).saturating_mul(period).div_ceil(scale.into());
            return Err(GuaranteesError::Rates { total: total_rate, excess });
        }
        // Strictly less than what stands for a cost that no level reaches.
        let is_exact = u128::from(burst) * u128::from(scale) < UNITS_MAX;
        if !is_exact || u64::try_from(flow_total).is_err() {
            return Err(not_exact());
        }
        let bucket = |(limit, rate): (&Limit, &(u64, u64))| Bucket {
            weight: scale / rate.1,
            flow: flow(rate) as u64,
            limit: limit.clone(),
        };
        Ok(Self { buckets: limits.iter().zip(&rates).map(bucket).collect(), scale })
    }
}

impl Bucket {
    fn convert(&self, state: &mut BucketCell) {
        if let Some(rule) = self.limit.cell_evaluator() {
            rule.convert(&mut state.cell, state.now);
        }
    }

    fn level(&self, state: &BucketCell, scale: u64) -> Level {
        let rule = self.limit.cell_evaluator();
        let units = rule.map_or(0, |rule| rule.bucket_level(state.cell, state.now));
        Level {
            // A debt lasts for at most 2^53 µs, and the flow is less than 2^64 a microsecond.
            now: units * i128::from(self.weight),
            full: i128::from(self.limit.quota()) * i128::from(scale),
            flow: i128::from(self.flow),
        }
    }

    fn charge(&self, state: &mut BucketCell, cost: Cost, debt_max: u64) -> bool {
        let rule = self.limit.cell_evaluator();
        rule.is_some_and(|rule| rule.charge(&mut state.cell, cost, debt_max, state.now).is_cut())
    }

    fn refund(&self, state: &mut BucketCell, cost: Cost, charged_at: Micros) {
        if let Some(rule) = self.limit.cell_evaluator() {
            let _ = rule.refund(&mut state.cell, cost, charged_at, state.now);
        }
    }
}
