//! Adds decisions by limits that are in no policy to the refusal log.

use ratekeeper::refusals::{Decided, Details, RecordedReason};
use ratekeeper::telemetry::Outcome;
use ratekeeper::{Applied, Charge, PolicyLimiter};

/// Records the decision on charges that were checked together: always a refusal, and an admission now and then.
#[inline]
pub(super) fn record_check(
    limiter: &PolicyLimiter,
    decided: &Decided<'_>,
    charges: &[Charge<'_>],
    applied: &Applied,
) {
    match applied.allowed() {
        true => limiter.refusals().sample(decided, || details(limiter, charges, applied)),
        false => limiter.refusals().record(decided, || details(limiter, charges, applied)),
    }
}

#[cold]
fn details(limiter: &PolicyLimiter, charges: &[Charge<'_>], applied: &Applied) -> Details {
    let cost = charges.get(applied.binding()).map_or(0, |charge| charge.amount().get());
    let inputs =
        (!applied.allowed()).then(|| Box::new(limiter.engine().denial_inputs(charges, applied)));
    let reason = RecordedReason::Rate { decision: ***applied, inputs, cost };
    Details::new(reason, applied.is_degraded())
}

/// Returns whether a check was allowed, as an outcome.
pub(super) fn outcome_of(is_allowed: bool) -> Outcome {
    if is_allowed { Outcome::Allowed } else { Outcome::Denied }
}
