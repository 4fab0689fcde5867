//! One request and all its limits: permits first, for they can be put back; then rates, all or none;
//! then those that are only watched.

use std::time::Duration;

use ratekeeper_core::{Decision, Micros};
use ratekeeper_policy::{Amount, AppliedLimit};
use ratekeeper_stores::{CHARGES_MAX, Op};
use smallvec::SmallVec;

use super::admission::{Admission, Admitted, Receipt, Refusal, Refused};
use super::backend::{Permit, charge, rate};
use super::live::Live;
use super::seen::Outcome;
use super::{Gate, Inner};

/// The limits that a request is to be charged to.
pub(crate) type Charges = Vec<AppliedLimit>;

pub(crate) type Permits = SmallVec<[Permit; 1]>;

impl Gate {
    /// The answer, if it can be had at once, as it can in memory.
    #[cfg(feature = "tower")]
    pub(crate) fn admit_now(
        &self,
        live: &Live,
        of: Charges,
        now: Micros,
    ) -> Result<Admission, Charges> {
        use std::future::Future;
        use std::task::{Context, Poll, Waker};
        if self.inner.backend.memory().is_none() {
            return Err(of);
        }
        let admission = std::pin::pin!(self.admit(live, of, now));
        match admission.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(admission) => Ok(admission),
            Poll::Pending => unreachable!("a store in memory answers at once"),
        }
    }

    pub(crate) async fn admit(&self, live: &Live, of: Charges, now: Micros) -> Admission {
        let mut permits = Permits::new();
        let accepted = self.inner.enforce(live, &of, now, &mut permits).await;
        let Accepted { speaker, delay, near, mut receipts } = match accepted {
            Ok(accepted) => accepted,
            Err(Refuses { by, why, is_degraded }) => {
                let rule = of[by].rule.clone();
                self.inner.meters.note(live, &of[by], Outcome::Denied, now);
                return Admission::Refused(Box::new(Refusal { rule, why, is_degraded }));
            }
        };
        let is_degraded = receipts.iter().flatten().any(|receipt| receipt.origin.is_degraded());
        for (i, (one, receipt)) in of.iter().zip(&mut receipts).enumerate() {
            if !one.is_enforced {
                *receipt = self.inner.watch(live, one, now, &mut permits).await;
            } else if !one.is_share() {
                self.inner.passed(live, one, near.contains(&i), now);
            }
        }
        let gate = self.clone();
        let admitted = Admitted { of, receipts, speaker, delay, is_degraded, permits, gate };
        Admission::Admitted(Box::new(admitted))
    }
}

fn is_rate(one: &AppliedLimit) -> bool {
    matches!(one.amount(), Amount::Rate(_))
}

/// Rates that accepted a request.
struct Accepted {
    /// The one that is closest to refusing, by its place, and what it decided.
    speaker: Option<(usize, Decision)>,
    delay: Duration,
    /// Those that are nearly used up, by their places.
    near: SmallVec<[usize; 4]>,
    /// When and by whom each was charged, in the order of all limits.
    receipts: SmallVec<[Option<Receipt>; 2]>,
}

/// Which limit refuses, and why.
struct Refuses {
    by: usize,
    why: Refused,
    is_degraded: bool,
}

impl Inner {
    /// Asks the limits that are enforced.
    async fn enforce(
        &self,
        live: &Live,
        of: &[AppliedLimit],
        now: Micros,
        permits: &mut Permits,
    ) -> Result<Accepted, Refuses> {
        let mut rates: SmallVec<[usize; 8]> = SmallVec::new();
        for (i, one) in of.iter().enumerate().filter(|(_, one)| one.is_enforced) {
            let Amount::Concurrency { max, .. } = one.amount() else {
                rates.push(i);
                continue;
            };
            let permit = self.backend.acquire(live, one).await;
            let busy = || Refuses { by: i, why: Refused::Busy { max: *max }, is_degraded: false };
            permits.push(permit.ok_or_else(busy)?);
        }
        self.check(of, &rates, now).await
    }

    /// Charges all of these or none; more than one step can take are charged step by step, and given
    /// back if a later one refuses.
    async fn check(
        &self,
        of: &[AppliedLimit],
        rates: &[usize],
        now: Micros,
    ) -> Result<Accepted, Refuses> {
        let receipts = of.iter().map(|_| None).collect();
        let near = SmallVec::new();
        let mut accepted = Accepted { speaker: None, delay: Duration::ZERO, near, receipts };
        for part in rates.chunks(CHARGES_MAX) {
            let asked: SmallVec<[&AppliedLimit; 4]> = part.iter().map(|i| &of[*i]).collect();
            let timed = self.begin_timed();
            let checked = self.backend.apply(Op::Check, &asked, now).await;
            self.end_timed(timed);
            let speaker = (part[checked.decided_by], checked.decision);
            if !checked.decision.allowed() {
                self.give_back(of, &accepted.receipts, now).await;
                let (limit, decision) = (rate(&of[speaker.0]).clone(), checked.decision);
                let is_degraded = checked.receipt.origin.is_degraded();
                let why = Refused::Limited { limit, decision };
                return Err(Refuses { by: speaker.0, why, is_degraded });
            }
            accepted.delay = accepted.delay.max(checked.delay);
            let is_tighter =
                |known: (usize, Decision)| speaker.1.strictness() > known.1.strictness();
            if accepted.speaker.is_none_or(is_tighter) {
                accepted.speaker = Some(speaker);
            }
            for (i, decision) in part.iter().zip(&checked.decisions) {
                accepted.receipts[*i] = Some(checked.receipt.clone());
                if self.meters.is_near(decision) {
                    accepted.near.push(*i);
                }
            }
        }
        Ok(accepted)
    }

    fn passed(&self, live: &Live, one: &AppliedLimit, is_near: bool, now: Micros) {
        self.meters.note(live, one, Outcome::Allowed, now);
        if is_near {
            live.meter(&one.rule).count_near_limit();
        }
    }

    async fn give_back(&self, of: &[AppliedLimit], receipts: &[Option<Receipt>], now: Micros) {
        for (one, receipt) in of.iter().zip(receipts) {
            if let Some(receipt) = receipt {
                let refund = Op::Refund { charged_at: receipt.at };
                // What cannot be refunded stays charged.
                let _ =
                    self.backend.correct_where_charged(refund, &charge(one), receipt, now).await;
            }
        }
    }

    /// A limit that refuses nothing: it counts by itself, as it would if it alone were enforced.
    async fn watch(
        &self,
        live: &Live,
        one: &AppliedLimit,
        now: Micros,
        permits: &mut Permits,
    ) -> Option<Receipt> {
        let (fits, is_near, receipt) = if is_rate(one) {
            let checked = self.backend.apply(Op::Check, &[one], now).await;
            let is_near = self.meters.is_near(&checked.decision);
            (checked.decision.allowed(), is_near, Some(checked.receipt))
        } else {
            let permit = self.backend.acquire(live, one).await;
            let fits = permit.is_some();
            permits.extend(permit);
            (fits, false, None)
        };
        match fits {
            true if one.is_share() => {}
            true => self.passed(live, one, is_near, now),
            false => self.meters.note(live, one, Outcome::ShadowDenied, now),
        }
        receipt.filter(|_| fits)
    }
}
