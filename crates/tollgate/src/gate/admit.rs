//! One request and all its limits: permits first, for they can be put back; then rates, all or none;
//! then those that are only watched.

use std::cmp::Reverse;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{Decision, Micros};
use tollgate_rules::{Amount, Applied};
use tollgate_stores::{LIMITS_MAX, Op};

use super::admission::{Admission, Admitted, Charged, Refusal, Refused, Speaker};
use super::backend::{Origin, Permit, rate};
use super::live::Live;
use super::{Gate, Inner};

/// The limits that a request is to be charged to.
pub(crate) type Charges = SmallVec<[Applied; 4]>;

type Refs<'a> = SmallVec<[&'a Applied; 4]>;

impl Gate {
    /// The answer, if it can be had at once, as it can in memory.
    pub(crate) fn admit_now(&self, live: &Arc<Live>, of: Charges) -> Result<Admission, Charges> {
        if self.inner.backend.memory().is_none() {
            return Err(of);
        }
        let admission = pin!(self.admit(live, of));
        match admission.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(admission) => Ok(admission),
            Poll::Pending => unreachable!("a store in memory answers at once"),
        }
    }

    pub(crate) async fn admit(&self, live: &Arc<Live>, of: Charges) -> Admission {
        let inner = &*self.inner;
        let is_rate = |one: &&Applied| matches!(one.amount(), Amount::Rate(_));
        let enforced: Refs<'_> = of.iter().filter(|one| one.is_enforced).collect();
        let mut permits = SmallVec::new();
        for one in enforced.iter().filter(|one| !is_rate(one)) {
            match inner.backend.acquire(live, one).await.0 {
                Some(permit) => permits.push(permit),
                None => return busy(live, one),
            }
        }
        let rates: Refs<'_> = enforced.iter().copied().filter(is_rate).collect();
        let checked = match inner.check(&rates, self.now()).await {
            Ok(checked) => checked,
            Err(speaker) => {
                live.meter(&speaker.rule).count_denied();
                let rule = speaker.rule.clone();
                let why = Refused::Limited(speaker);
                return Admission::Refused(Box::new(Refusal { rule, why }));
            }
        };
        let watched: Refs<'_> = of.iter().filter(|one| !one.is_enforced).collect();
        inner.watch(live, &watched, self.now(), &mut permits).await;
        for one in enforced.iter().filter(|one| !one.is_share()) {
            live.meter(&one.rule).count_allowed();
        }
        let Accepted { speaker, delay, steps } = checked;
        let is_degraded = steps.iter().any(|step| step.origin.is_degraded());
        let charged = charged(&rates, &steps);
        let gate = self.clone();
        Admission::Admitted(Box::new(Admitted { speaker, delay, is_degraded, gate, permits, charged }))
    }
}

fn busy(live: &Live, one: &Applied) -> Admission {
    live.meter(&one.rule).count_denied();
    let Amount::Concurrency { max, .. } = one.amount() else { unreachable!("only permits are busy") };
    let why = Refused::Busy { max: *max };
    Admission::Refused(Box::new(Refusal { rule: one.rule.clone(), why }))
}

/// Rates that accepted a request.
struct Accepted {
    speaker: Option<Speaker>,
    delay: Duration,
    steps: SmallVec<[Step; 1]>,
}

/// One atomic step: so many of the rates, in their order.
struct Step {
    len: usize,
    at: Micros,
    origin: Origin,
}

impl Inner {
    /// Charges all of them or none; more than one step can take are charged step by step, and given
    /// back if a later one refuses.
    async fn check(&self, rates: &[&Applied], now: Micros) -> Result<Accepted, Speaker> {
        let mut accepted = Accepted { speaker: None, delay: Duration::ZERO, steps: SmallVec::new() };
        for part in rates.chunks(LIMITS_MAX) {
            let checked = self.backend.apply(Op::Check, part, now).await;
            let speaker = speaker(part[checked.verdict.decided_by()], *checked.verdict);
            if !checked.verdict.allowed() {
                self.give_back(rates, &accepted.steps, now).await;
                return Err(speaker);
            }
            accepted.delay = accepted.delay.max(checked.verdict.delay());
            let is_tighter = |known: &Speaker| strictness(&speaker) > strictness(known);
            if accepted.speaker.as_ref().is_none_or(is_tighter) {
                accepted.speaker = Some(speaker);
            }
            let (at, origin) = (checked.verdict.at(), checked.origin);
            accepted.steps.push(Step { len: part.len(), at, origin });
        }
        Ok(accepted)
    }

    async fn give_back(&self, rates: &[&Applied], steps: &[Step], now: Micros) {
        let mut rest = rates;
        for step in steps {
            let (part, after) = rest.split_at(step.len);
            rest = after;
            self.backend.apply(Op::Refund { charged_at: step.at }, part, now).await;
        }
    }

    /// Limits that refuse nothing: each counts by itself, as it would if it alone were enforced.
    async fn watch(
        &self,
        live: &Live,
        watched: &[&Applied],
        now: Micros,
        permits: &mut SmallVec<[Permit; 1]>,
    ) {
        for one in watched {
            let fits = match one.amount() {
                Amount::Rate(_) => self.backend.apply(Op::Check, &[one], now).await.verdict.allowed(),
                Amount::Concurrency { .. } => {
                    let permit = self.backend.acquire(live, one).await.0;
                    let fits = permit.is_some();
                    permits.extend(permit);
                    fits
                }
            };
            match fits {
                true if one.is_share() => {}
                true => live.meter(&one.rule).count_allowed(),
                false => live.meter(&one.rule).count_shadow_denied(),
            }
        }
    }
}

fn charged(rates: &[&Applied], steps: &[Step]) -> SmallVec<[Charged; 2]> {
    let steps = steps.iter().flat_map(|step| std::iter::repeat_n(step, step.len));
    let charged = rates.iter().zip(steps).map(|(one, step)| Charged {
        applied: (*one).clone(),
        at: step.at,
        origin: step.origin.clone(),
    });
    charged.collect()
}

fn speaker(one: &Applied, decision: Decision) -> Speaker {
    Speaker { rule: one.rule.clone(), limit: rate(one).clone(), decision }
}

fn strictness(speaker: &Speaker) -> (tollgate_core::Wait, Reverse<u64>) {
    (speaker.decision.wait(), Reverse(speaker.decision.remaining()))
}
