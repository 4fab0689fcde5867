//! Counts the decisions of the limits, and adds them to the refusal log.

use std::sync::Arc;

use ratekeeper::Micros;
use ratekeeper::refusals::{Decided, Details, RecordedReason};
use ratekeeper::telemetry::Outcome;

use super::RateLimitService;
use super::descriptors::DescriptorCheck;
use super::limit_metrics::increment;

impl RateLimitService {
    /// Counts the decisions of the limits. A limit that was not charged because another one denied the
    /// request has made no decision.
    pub(super) fn record(
        &self,
        checks: &[DescriptorCheck<'_>],
        is_allowed: bool,
        request_id: Option<&Arc<str>>,
        now: Micros,
    ) {
        let metrics = self.limit_metrics.load();
        for check in checks.iter().filter(|check| check.is_charge()) {
            let (counters, is_over) = (metrics.of(check.limit), check.is_over_limit());
            match (is_over, check.is_shadow) {
                (true, true) => increment(&counters.shadow_denied),
                (true, false) if is_allowed => increment(&counters.over_quota),
                (true, false) => increment(&counters.denied),
                (false, _) if is_allowed => increment(&counters.allowed),
                (false, _) => continue,
            }
            let is_near = |decision| self.settings.near_limit.is_near(decision);
            if is_allowed && check.decision.as_ref().is_some_and(is_near) {
                increment(&counters.near_limit);
            }
            let outcome = match is_over {
                true if check.is_shadow => Outcome::ShadowDenied,
                true if !is_allowed => Outcome::Denied,
                _ => Outcome::Allowed,
            };
            let (limit, key) = (check.limit.label(), check.key.as_bytes());
            self.metrics.top.count(limit, key, outcome, now);
            let decided = Decided::new(limit, key, outcome, now).by(request_id, "envoy");
            self.record_check(check, &decided);
        }
    }

    /// Records a refusal by the binding limit, and an admission now and then.
    fn record_check(&self, check: &DescriptorCheck<'_>, decided: &Decided<'_>) {
        let details = |reason| Details::new(reason, check.is_degraded);
        let rate = |decision| {
            let cost = check.charge().map_or(1, |charge| charge.amount().get());
            details(RecordedReason::Rate { decision, inputs: check.inputs.clone(), cost })
        };
        let refusals = self.limiter.refusals();
        match (decided.outcome, check.decision) {
            (Outcome::Allowed, Some(decision)) => refusals.sample(decided, || rate(decision)),
            (_, Some(decision)) if check.inputs.is_some() => {
                refusals.record(decided, || rate(decision));
            }
            (Outcome::Denied | Outcome::ShadowDenied, None) if check.denies_all() => {
                refusals.record(decided, || details(RecordedReason::DeniesAll));
            }
            _ => {}
        }
    }
}
