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

use super::admission::{Admission, Admitted, Mark, Refusal, Refused, Speaker};
use super::backend::{Checked, Permit, rate};
use super::live::Live;
use super::{Gate, Inner};

/// The limits that a request is to be charged to.
pub(crate) type Charges = SmallVec<[Applied; 4]>;

type Refs<'a> = SmallVec<[&'a Applied; 4]>;

impl Gate {
    /// The answer, if it can be had at once, as it can in memory.
    #[expect(
        clippy::result_large_err,
        reason = "what comes back is used at once, on the way of every request"
    )]
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
        let mut permits = SmallVec::new();
        let accepted = self.inner.enforce(live, &of, self.now(), &mut permits).await;
        let Accepted { speaker, delay, marks } = match accepted {
            Ok(accepted) => accepted,
            Err(refusal) => {
                live.meter(&refusal.rule).count_denied();
                return Admission::Refused(refusal);
            }
        };
        let is_degraded = marks.iter().any(|mark| mark.origin.is_degraded());
        let mut marks = marks.into_iter();
        let mut charged = SmallVec::new();
        for one in of {
            let mark = match one.is_enforced {
                true if is_rate(&one) => marks.next(),
                true => None,
                false => self.inner.watch(live, &one, self.now(), &mut permits).await,
            };
            if one.is_enforced && !one.is_share() {
                live.meter(&one.rule).count_allowed();
            }
            charged.extend(mark.map(|mark| (one, mark)));
        }
        let gate = self.clone();
        let admitted = Admitted { speaker, delay, is_degraded, gate, permits, charged };
        Admission::Admitted(Box::new(admitted))
    }
}

fn is_rate(one: &Applied) -> bool {
    matches!(one.amount(), Amount::Rate(_))
}

/// Rates that accepted a request.
struct Accepted {
    speaker: Option<Speaker>,
    delay: Duration,
    /// Of each, in their order.
    marks: SmallVec<[Mark; 4]>,
}

impl Inner {
    /// Asks the limits that are enforced.
    async fn enforce(
        &self,
        live: &Live,
        of: &[Applied],
        now: Micros,
        permits: &mut SmallVec<[Permit; 1]>,
    ) -> Result<Accepted, Box<Refusal>> {
        let enforced = || of.iter().filter(|one| one.is_enforced);
        for one in enforced() {
            let Amount::Concurrency { max, .. } = one.amount() else { continue };
            let Some(permit) = self.backend.acquire(live, one).await else {
                let why = Refused::Busy { max: *max };
                return Err(Box::new(Refusal { rule: one.rule.clone(), why }));
            };
            permits.push(permit);
        }
        let rates: Refs<'_> = enforced().filter(|one| is_rate(one)).collect();
        self.check(&rates, now).await.map_err(|speaker| {
            let rule = speaker.rule.clone();
            Box::new(Refusal { rule, why: Refused::Limited(speaker) })
        })
    }

    /// Charges all of them or none; more than one step can take are charged step by step, and given
    /// back if a later one refuses.
    async fn check(&self, rates: &[&Applied], now: Micros) -> Result<Accepted, Speaker> {
        let mut accepted =
            Accepted { speaker: None, delay: Duration::ZERO, marks: SmallVec::new() };
        for part in rates.chunks(LIMITS_MAX) {
            let checked = self.backend.apply(Op::Check, part, now).await;
            let speaker = speaker(part[checked.verdict.decided_by()], *checked.verdict);
            if !checked.verdict.allowed() {
                self.give_back(rates, &accepted.marks, now).await;
                return Err(speaker);
            }
            accepted.delay = accepted.delay.max(checked.verdict.delay());
            let is_tighter = |known: &Speaker| strictness(&speaker) > strictness(known);
            if accepted.speaker.as_ref().is_none_or(is_tighter) {
                accepted.speaker = Some(speaker);
            }
            let mark = Mark { at: checked.verdict.at(), origin: checked.origin };
            accepted.marks.extend(std::iter::repeat_n(mark, part.len()));
        }
        Ok(accepted)
    }

    async fn give_back(&self, rates: &[&Applied], marks: &[Mark], now: Micros) {
        for (one, mark) in rates.iter().zip(marks) {
            self.backend.apply(Op::Refund { charged_at: mark.at }, &[one], now).await;
        }
    }

    /// A limit that refuses nothing: it counts by itself, as it would if it alone were enforced.
    async fn watch(
        &self,
        live: &Live,
        one: &Applied,
        now: Micros,
        permits: &mut SmallVec<[Permit; 1]>,
    ) -> Option<Mark> {
        let (fits, mark) = match one.amount() {
            Amount::Rate(_) => {
                let Checked { verdict, origin } = self.backend.apply(Op::Check, &[one], now).await;
                (verdict.allowed(), Some(Mark { at: verdict.at(), origin }))
            }
            Amount::Concurrency { .. } => {
                let permit = self.backend.acquire(live, one).await;
                let fits = permit.is_some();
                permits.extend(permit);
                (fits, None)
            }
        };
        match fits {
            true if one.is_share() => {}
            true => live.meter(&one.rule).count_allowed(),
            false => live.meter(&one.rule).count_shadow_denied(),
        }
        mark.filter(|_| fits)
    }
}

fn speaker(one: &Applied, decision: Decision) -> Speaker {
    Speaker { rule: one.rule.clone(), limit: rate(one).clone(), decision }
}

fn strictness(speaker: &Speaker) -> (tollgate_core::Wait, Reverse<u64>) {
    (speaker.decision.wait(), Reverse(speaker.decision.remaining()))
}
