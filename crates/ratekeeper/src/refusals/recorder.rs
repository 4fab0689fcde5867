//! Adds what a policy decides about a request to the log.

use std::sync::Arc;

use ratekeeper_core::Micros;
use ratekeeper_policy::{Amount, AppliedLimit, AppliedLimits, LimitRule};

use super::{Decided, Details, RecordedReason, RefusalLog, RulePlace};
use crate::admission::{
    Admission, Admitted, Denial, NotAdmitted, Refusal, RefusalReason, ShadowDenial,
};
use crate::engine::{Applied, Engine};
use crate::policy_handle::ActivePolicy;
use crate::telemetry::Outcome;

/// Adds the decisions on a request to the refusal log.
pub(crate) struct Recorder<'r> {
    pub(crate) engine: &'r Engine,
    pub(crate) refusals: &'r RefusalLog,
    pub(crate) policy: &'r ActivePolicy,
    pub(crate) request_id: Option<Arc<str>>,
    pub(crate) protocol: &'static str,
    pub(crate) now: Micros,
}

impl Recorder<'_> {
    /// Records what was decided. A refusal gets an id if the request has none.
    pub(crate) fn admission(
        mut self,
        result: Result<Admitted, (AppliedLimits, NotAdmitted)>,
    ) -> Admission {
        match result {
            Ok(admitted) => {
                for ShadowDenial { index, applied } in &admitted.shadow_denials {
                    let limit = &admitted.limits[*index];
                    let is_degraded = applied.as_ref().is_some_and(|applied| applied.is_degraded());
                    self.refused(limit, applied.as_deref(), Outcome::ShadowDenied, is_degraded);
                }
                self.sample(&admitted);
                Admission::Admitted(Box::new(admitted))
            }
            Err((_, NotAdmitted::Shed(shed))) => Admission::Shed(shed),
            Err((limits, NotAdmitted::Refused(denial))) => {
                let Denial { index, mut refusal, applied } = denial;
                refusal.request_id = Some(self.own_id());
                let key = limits[index].key.as_bytes();
                match &refusal.reason {
                    RefusalReason::TooManyLimits { .. } => {
                        self.record(&refusal.rule, key, || RecordedReason::TooManyLimits);
                    }
                    RefusalReason::NoPermit(error) => {
                        let reason = || RecordedReason::NoPermit(error.to_string().into());
                        self.record(&refusal.rule, key, reason);
                    }
                    _ => {
                        let (limit, is_degraded) = (&limits[index], refusal.is_degraded);
                        self.refused(limit, applied.as_deref(), Outcome::Denied, is_degraded);
                    }
                }
                Admission::Refused(refusal)
            }
        }
    }

    pub(crate) fn missing_identity(mut self, mut refusal: Box<Refusal>) -> Admission {
        refusal.request_id = Some(self.own_id());
        if let RefusalReason::MissingIdentity { identity, why } = &refusal.reason {
            let reason = || RecordedReason::MissingIdentity(format!("{identity}: {why}").into());
            self.record(&refusal.rule, b"", reason);
        }
        Admission::Refused(refusal)
    }

    fn own_id(&mut self) -> Arc<str> {
        self.request_id.get_or_insert_with(|| self.refusals.new_request_id()).clone()
    }

    fn record(&self, rule: &LimitRule, key: &[u8], reason: impl FnOnce() -> RecordedReason) {
        let decided = self.decided(rule, key, Outcome::Denied);
        self.refusals.record(&decided, || self.details(rule, reason(), false));
    }

    fn refused(
        &self,
        limit: &AppliedLimit,
        applied: Option<&Applied>,
        outcome: Outcome,
        is_degraded: bool,
    ) {
        let decided = self.decided(&limit.rule, limit.key.as_bytes(), outcome);
        self.refusals.record(&decided, || {
            let charge = limit.charge();
            let reason = match (limit.amount(), applied.zip(charge)) {
                (Amount::Concurrency { rule, .. }, _) => {
                    RecordedReason::InFlight { max: rule.max() }
                }
                (_, Some((applied, charge))) => RecordedReason::Rate {
                    decision: ***applied,
                    inputs: Some(Box::new(self.engine.denial_inputs(&[charge], applied))),
                    cost: limit.cost.get(),
                },
                (_, None) => RecordedReason::TooManyLimits,
            };
            self.details(&limit.rule, reason, is_degraded)
        });
    }

    fn sample(&self, admitted: &Admitted) {
        let Some((index, decision)) = &admitted.binding else { return };
        let limit = &admitted.limits[*index];
        let decided = self.decided(&limit.rule, limit.key.as_bytes(), Outcome::Allowed);
        self.refusals.sample(&decided, || {
            let cost = limit.cost.get();
            let reason = RecordedReason::Rate { decision: *decision, inputs: None, cost };
            self.details(&limit.rule, reason, admitted.is_degraded)
        });
    }

    fn decided<'d>(&'d self, rule: &'d LimitRule, key: &'d [u8], outcome: Outcome) -> Decided<'d> {
        let decided = Decided::new(rule.name(), key, outcome, self.now);
        decided.by(self.request_id.as_ref(), self.protocol)
    }

    fn details(&self, rule: &LimitRule, reason: RecordedReason, is_degraded: bool) -> Details {
        let place = RulePlace::new(Arc::clone(self.policy.policy().file()), rule.line());
        let version = self.policy.version();
        Details::new(reason, is_degraded).of_policy(place, version)
    }
}
