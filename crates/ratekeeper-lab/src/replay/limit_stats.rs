//! What a limit did.

use super::demand::TotalDemand;
use super::keys::KeyTable;
use super::request::BatchCharge;
use crate::histogram::Histogram;

const SECOND_US: u64 = 1_000_000;

/// What a limit did to all requests that it applies to.
#[derive(Debug)]
pub(super) struct LimitStats {
    /// By the index of the tier; the last is for policies without tiers.
    pub(super) tiers: Vec<Counts>,
    pub(super) keys: KeyTable,
    pub(super) demand: TotalDemand,
    pub(super) delays: Histogram,
    /// Requests of keys that are not listed, or that have none, and were decided otherwise by the other policy.
    pub(super) changed_without_key: u64,
}

/// How many requests had which outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) cost: u64,
    pub(super) admitted: u64,
    pub(super) delayed: u64,
    pub(super) refused: u64,
    pub(super) refused_elsewhere: u64,
    pub(super) shadow_refused: u64,
    pub(super) binding: u64,
}

/// What a limit did to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Admitted {
        delay_us: u64,
        is_binding: bool,
    },
    Refused,
    /// Another limit refused it.
    RefusedElsewhere,
    /// It would have been refused if the limit were enforced.
    ShadowRefused,
}

impl LimitStats {
    pub(super) fn new(tiers: usize, keys_max: usize) -> Self {
        Self {
            tiers: vec![Counts::default(); tiers + 1],
            keys: KeyTable::new(keys_max),
            demand: TotalDemand::default(),
            delays: Histogram::default(),
            changed_without_key: 0,
        }
    }

    /// Records a request. Returns where its key is.
    pub(super) fn record(
        &mut self,
        charge: &BatchCharge,
        key: &[u8],
        tier: Option<usize>,
        at_us: u64,
        outcome: Outcome,
    ) -> Option<usize> {
        let last = self.tiers.len() - 1;
        let counts = &mut self.tiers[tier.unwrap_or(last)];
        let (second, cost) = (at_us / SECOND_US, charge.cost.get());
        counts.add(outcome, cost);
        if let Outcome::Admitted { delay_us, .. } = outcome {
            self.delays.add(delay_us);
        }
        self.demand.add(second, cost);
        let slot = self.keys.find_or_add(key, charge.key_hash)?;
        let stats = self.keys.get_mut(slot);
        stats.requests += 1;
        stats.demand.add(second, cost);
        if matches!(outcome, Outcome::Refused | Outcome::ShadowRefused) {
            stats.refuse(at_us);
        }
        Some(slot)
    }

    /// Records a request that is refused because it has no identity.
    pub(super) fn refuse_without_key(&mut self, at_us: u64) {
        let last = self.tiers.len() - 1;
        self.tiers[last].add(Outcome::Refused, 1);
        self.demand.add(at_us / SECOND_US, 1);
    }

    /// Records that the other policy decided a request otherwise that this limit refused.
    pub(super) fn change(&mut self, slot: Option<usize>) {
        match slot {
            Some(slot) => self.keys.get_mut(slot).changed += 1,
            None => self.changed_without_key += 1,
        }
    }
}

impl Counts {
    fn add(&mut self, outcome: Outcome, cost: u64) {
        self.requests += 1;
        self.cost = self.cost.saturating_add(cost);
        match outcome {
            Outcome::Admitted { delay_us, is_binding } => {
                self.admitted += 1;
                self.delayed += u64::from(delay_us > 0);
                self.binding += u64::from(is_binding);
            }
            Outcome::Refused => self.refused += 1,
            Outcome::RefusedElsewhere => self.refused_elsewhere += 1,
            Outcome::ShadowRefused => self.shadow_refused += 1,
        }
    }

    pub(super) fn and(self, other: &Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            cost: self.cost.saturating_add(other.cost),
            admitted: self.admitted + other.admitted,
            delayed: self.delayed + other.delayed,
            refused: self.refused + other.refused,
            refused_elsewhere: self.refused_elsewhere + other.refused_elsewhere,
            shadow_refused: self.shadow_refused + other.shadow_refused,
            binding: self.binding + other.binding,
        }
    }
}
