//! Decides the requests of a log by one policy, as a limiter with a store in memory does: permits first, then all rates
//! or none, then each limit in shadow mode by itself.

use std::sync::Arc;

use ratekeeper_core::Decision;
use ratekeeper_policy::{Amount, AppliedLimit};
use ratekeeper_stores::{CHARGES_MAX, Charge, MemoryStore, Op, Verdict};
use smallvec::SmallVec;

use super::in_flight::{Correction, InFlight};
use super::limit_stats::{LimitStats, Outcome};
use super::request::{BatchCharge, BatchSubject, LoggedRequest, UNKNOWN, Variants};
use crate::timeline::Timeline;

/// Memory for the entries of sliding logs.
const LOG_BYTES_MAX: usize = 1 << 30;

/// The decisions of one policy, and what they add up to.
#[derive(Debug)]
pub(super) struct Run<'v> {
    variants: &'v Variants,
    /// The variants that occurred so far.
    limits: Vec<Arc<AppliedLimit>>,
    store: MemoryStore,
    in_flight: InFlight,
    /// By the index of the limit in the policy.
    pub(super) stats: Vec<LimitStats>,
    pub(super) totals: Totals,
    pub(super) timeline: Timeline,
    start_us: Option<u64>,
}

/// How many requests were decided how.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) exempt: u64,
    pub(super) unlimited: u64,
    pub(super) admitted: u64,
    pub(super) delayed: u64,
    pub(super) refused: u64,
    pub(super) shadow_refused: u64,
}

/// How a request was decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) is_refused: bool,
    /// If it was refused: the limit, and the key in its table.
    pub(super) by: Option<(usize, Option<usize>)>,
}

const ADMITTED: Decided = Decided { is_refused: false, by: None };

/// The limits of a request that are enforced, decided.
struct Enforced {
    /// The index of the charge that refused the request.
    refused_by: Option<usize>,
    /// The index of the charge whose limit has the least left.
    binding: Option<usize>,
    delay_us: u64,
    /// The indices of the charges that the verdict is about.
    rates: SmallVec<[usize; 4]>,
    verdict: Option<Verdict>,
}

impl Enforced {
    /// Returns what a limit did to a request that was admitted.
    fn outcome(&self, index: usize) -> Outcome {
        let mut decisions = self.decisions();
        // Most requests are not delayed by any limit.
        let delay_us = match self.delay_us {
            0 => 0,
            _ => {
                decisions.find(|(of, _)| *of == index).map_or(0, |(_, decision)| delay_us(decision))
            }
        };
        Outcome::Admitted { delay_us, is_binding: self.binding == Some(index) }
    }

    /// Returns the decision on each rate, with the index of its charge.
    fn decisions(&self) -> impl Iterator<Item = (usize, &Decision)> {
        let decisions = self.verdict.iter().flat_map(Verdict::decisions);
        self.rates.iter().copied().zip(decisions)
    }
}

impl<'v> Run<'v> {
    pub(super) fn new(variants: &'v Variants, keys_max: usize) -> Self {
        let limits = variants.policy.limits();
        let in_store = keys_max.saturating_mul(limits.len().max(1)).min(u32::MAX as usize / 4);
        let store = MemoryStore::with_capacity(in_store).with_log_bytes_max(LOG_BYTES_MAX);
        let tiers = variants.policy.tiers().count();
        Self {
            variants,
            limits: Vec::new(),
            store,
            in_flight: InFlight::default(),
            stats: limits.iter().map(|_| LimitStats::new(tiers, keys_max)).collect(),
            totals: Totals::default(),
            timeline: Timeline::new(),
            start_us: None,
        }
    }

    /// Returns the variants of limits that occurred.
    pub(super) fn limits(&self) -> &[Arc<AppliedLimit>] {
        &self.limits
    }

    /// Returns how many keys were evicted although their state was still needed.
    pub(super) fn evictions(&self) -> u64 {
        self.store.evictions()
    }

    pub(super) fn decide(&mut self, request: &LoggedRequest<'_>, policy: usize) -> Decided {
        let at_us = request.at.get();
        let after_us = at_us - *self.start_us.get_or_insert(at_us);
        let decided = match request.subject(policy) {
            BatchSubject::Exempt => {
                self.totals.exempt += 1;
                ADMITTED
            }
            BatchSubject::MissingIdentity(rule) => {
                self.stats[*rule].refuse_without_key(at_us);
                Decided { is_refused: true, by: Some((*rule, None)) }
            }
            BatchSubject::Charged(range) if range.is_empty() => {
                self.totals.unlimited += 1;
                ADMITTED
            }
            BatchSubject::Charged(range) => {
                let charges = &request.batch.charges[range.start as usize..range.end as usize];
                self.charge(request, charges)
            }
        };
        self.timeline.add(after_us, !decided.is_refused);
        match decided.is_refused {
            true => self.totals.refused += 1,
            false => self.totals.admitted += 1,
        }
        decided
    }

    fn charge(&mut self, request: &LoggedRequest<'_>, charges: &[BatchCharge]) -> Decided {
        if charges.iter().any(|charge| charge.variant as usize >= self.limits.len()) {
            self.variants.update(&mut self.limits);
        }
        self.in_flight.advance(request.at, &self.store);
        let enforced = self.enforce(request, charges);
        if enforced.refused_by.is_none() {
            self.totals.delayed += u64::from(enforced.delay_us > 0);
            for (index, decision) in enforced.decisions() {
                self.settle(request, &charges[index], decision);
            }
        }
        let refused_rule = enforced.refused_by.map(|by| self.rule_of(&charges[by]));
        let mut shadow_share = None;
        let mut is_shadow_refused = false;
        let mut decided = ADMITTED;
        for (index, charge) in charges.iter().enumerate() {
            let limit = &self.limits[charge.variant as usize];
            let (tier, is_share) = (limit.tier(), limit.is_share());
            let rule = limit.rule.id();
            let outcome = match refused_rule {
                Some(by) if by == rule => Outcome::Refused,
                Some(_) => Outcome::RefusedElsewhere,
                None if limit.is_enforced => enforced.outcome(index),
                None => match self.shadow(request, charge) && shadow_share != Some(rule) {
                    true => Outcome::Admitted { delay_us: 0, is_binding: false },
                    false => Outcome::ShadowRefused,
                },
            };
            // A share comes before its limit, and is a part of it.
            if is_share {
                shadow_share = (outcome == Outcome::ShadowRefused).then_some(rule);
                continue;
            }
            is_shadow_refused |= outcome == Outcome::ShadowRefused;
            let (key, at_us) = (request.batch.key(charge), request.at.get());
            let slot = self.stats[rule].record(charge, key, tier, at_us, outcome);
            if outcome == Outcome::Refused {
                decided = Decided { is_refused: true, by: Some((rule, slot)) };
            }
        }
        self.totals.shadow_refused += u64::from(is_shadow_refused);
        decided
    }

    fn rule_of(&self, charge: &BatchCharge) -> usize {
        self.limits[charge.variant as usize].rule.id()
    }

    /// Charges the limits that are enforced: all or none.
    fn enforce(&mut self, request: &LoggedRequest<'_>, all: &[BatchCharge]) -> Enforced {
        let Self { limits, store, in_flight, .. } = self;
        let mut enforced = Enforced {
            refused_by: None,
            binding: None,
            delay_us: 0,
            rates: SmallVec::new(),
            verdict: None,
        };
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        let mut held: SmallVec<[usize; 1]> = SmallVec::new();
        for (index, charge) in all.iter().enumerate() {
            let limit = &*limits[charge.variant as usize];
            if !limit.is_enforced {
                continue;
            }
            let key = request.batch.key(charge);
            match limit.charge_to(key, charge.cost) {
                Some(charge) => {
                    enforced.rates.push(index);
                    charges.push(charge);
                }
                None if request.duration_us().is_none() => {}
                None if in_flight.acquire(limit, key) => held.push(index),
                None => enforced.refused_by = enforced.refused_by.or(Some(index)),
            }
        }
        if enforced.refused_by.is_none() && !charges.is_empty() {
            match store.apply_now(Op::Check, &charges, request.at) {
                Ok(verdict) => {
                    enforced.binding = Some(enforced.rates[verdict.binding()]);
                    enforced.refused_by = enforced.binding.filter(|_| !verdict.allowed());
                    enforced.delay_us =
                        u64::try_from(verdict.delay().as_micros()).unwrap_or(u64::MAX);
                    enforced.verdict = Some(verdict);
                }
                // The limits of a policy differ in name, so there are more than can be charged together.
                Err(_) => {
                    debug_assert!(charges.len() > CHARGES_MAX);
                    enforced.refused_by = Some(enforced.rates[0]);
                }
            }
        }
        let begins_us = request.at.get();
        let duration_us = match enforced.refused_by {
            None => request.duration_us().unwrap_or(0).saturating_add(enforced.delay_us),
            Some(_) => 0,
        };
        for index in held {
            let limit = &limits[all[index].variant as usize];
            let key = request.batch.key(&all[index]);
            in_flight.release_at(limit, key, begins_us.saturating_add(duration_us));
        }
        enforced
    }

    /// Charges a limit in shadow mode. Returns whether it would have admitted the request.
    fn shadow(&mut self, request: &LoggedRequest<'_>, charge: &BatchCharge) -> bool {
        let limit = &self.limits[charge.variant as usize];
        let key = request.batch.key(charge);
        if let Amount::Concurrency { .. } = limit.amount() {
            let Some(duration_us) = request.duration_us() else { return true };
            let is_admitted = self.in_flight.acquire(limit, key);
            if is_admitted {
                let end_us = request.at.get().saturating_add(duration_us);
                self.in_flight.release_at(limit, key, end_us);
            }
            return is_admitted;
        }
        let Some(one) = limit.charge_to(key, charge.cost) else { return true };
        let decision = self.store.apply_one(Op::Check, &one, request.at);
        if decision.allowed() {
            self.settle(request, charge, &decision);
        }
        decision.allowed()
    }

    /// Corrects a charge to the cost by the response, when that ends.
    fn settle(&mut self, request: &LoggedRequest<'_>, charge: &BatchCharge, decision: &Decision) {
        if charge.actual == UNKNOWN || decision.is_cut() {
            return;
        }
        let correction = Correction {
            limit: Arc::clone(&self.limits[charge.variant as usize]),
            key: request.batch.key(charge).into(),
            cost: charge.cost,
            actual: charge.actual,
            charged_at: request.at,
            is_borrowed: decision.is_borrowed(),
        };
        let took_us = request.duration_us().unwrap_or(0).saturating_add(delay_us(decision));
        self.in_flight.correct_at(correction, request.at.get().saturating_add(took_us));
    }
}

fn delay_us(decision: &Decision) -> u64 {
    u64::try_from(decision.delay().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;
    use ratekeeper_core::{Cost, Limit, Micros, Rate};
    use ratekeeper_policy::{NoSources, Policy};

    use super::*;
    use crate::arrival::Arrival;
    use crate::replay::{Logs, ReadOptions};
    use crate::simulate::Simulation;

    /// A log of these requests: milliseconds since the one before, and the client.
    fn log(requests: &[(u64, u8)]) -> (String, Vec<Arrival>) {
        let (mut at_ms, mut text, mut arrivals) = (1_791_640_536_000, String::new(), Vec::new());
        for (gap_ms, client) in requests {
            at_ms += gap_ms;
            text.push_str(&format!("{at_ms} 192.0.2.{client} GET /\n"));
            let key = format!("ip=192.0.2.{client}");
            arrivals.push(Arrival { at: Micros::new(at_ms * 1_000), key, cost: Cost::ONE });
        }
        (text, arrivals)
    }

    fn replayed(log: String, policy: &str, threads: usize) -> Vec<bool> {
        let policy = Arc::new(Policy::parse("policy.yaml", policy, &NoSources).unwrap());
        let format = "$msec $remote_addr $request_method $request_uri";
        let format = Some(crate::access_log::LogFormat::of_log_format(format).unwrap());
        let options = ReadOptions { format, threads, ..ReadOptions::default() };
        let logs = Logs::open([("log", Cursor::new(log))], options, &[&policy]).unwrap();
        let variants = [Variants::new(policy)];
        let (mut run, mut admitted) = (Run::new(&variants[0], 1_000), Vec::new());
        logs.each_of(&variants, |request| admitted.push(!run.decide(request, 0).is_refused));
        admitted
    }

    proptest! {
        #[test]
        fn a_replay_decides_as_a_simulation(
            requests in proptest::collection::vec((0u64..400, 0u8..4), 1..200),
            threads in 1usize..4,
        ) {
            let (log, arrivals) = log(&requests);
            for algorithm in ratekeeper_core::ALGORITHMS.iter().copied() {
                let rate: Rate = "5/s".parse().unwrap();
                let simulation = Simulation::new(Limit::new(rate, algorithm).unwrap(), 1_000);
                let simulated = simulation.decide(&arrivals).unwrap();
                let simulated: Vec<bool> = simulated.iter().map(Decision::allowed).collect();
                let policy = format!(
                    "version: 1\nlimits: [{{ name: api, per: ip, rate: 5/s, algorithm: {} }}]",
                    algorithm.name()
                );
                prop_assert_eq!(replayed(log.clone(), &policy, threads), simulated);
            }
        }
    }
}
