//! Refusals in words.

use ratekeeper::refusals::{RecordedReason, RefusalRecord};
use ratekeeper::telemetry::Outcome;
use ratekeeper::{Algorithm, Decision, DecisionInputs, Limit, Wait};

/// Returns one sentence about what was decided.
pub(super) fn message(record: &RefusalRecord) -> String {
    let would = match record.outcome {
        Outcome::ShadowDenied => "would have been refused, but for shadow mode",
        Outcome::Denied => "was refused",
        Outcome::Allowed => "was admitted",
    };
    let why = match &record.reason {
        RecordedReason::Rate { inputs: Some(inputs), .. } => state(inputs),
        RecordedReason::Rate { decision, .. } => {
            format!("{} of {} left", decision.remaining(), decision.limit())
        }
        RecordedReason::InFlight { max } => format!("{max} requests were in flight, the maximum"),
        RecordedReason::NoPermit(error) => error.to_string(),
        RecordedReason::MissingIdentity(identity) => format!("it needs an identity: {identity}"),
        RecordedReason::TooManyLimits => "more limits apply than can be charged together".into(),
        RecordedReason::DeniesAll => "the limit denies every request".into(),
        _ => "for another reason".into(),
    };
    format!("The request {would} by {}: {why}.", record.limit)
}

/// Returns the state before a denial, such as `98 of 100 in the last minute, 3 asked`.
pub(super) fn state(inputs: &DecisionInputs) -> String {
    let (limit, cost) = (inputs.limit(), inputs.cost());
    let quota = limit.quota();
    let Some(remaining) = inputs.remaining() else {
        return format!("{cost} asked of {quota}; the state is not known", cost = cost.get());
    };
    let (used, period) = (quota.saturating_sub(remaining), period(limit));
    let usage = match limit.algorithm() {
        Algorithm::FixedWindow => format!("{used} of {quota} in the present {period}"),
        Algorithm::SlidingLog | Algorithm::SlidingCounter => {
            format!("{used} of {quota} in the last {period}")
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            format!("{remaining} of {quota} left, refilled at {}", rate(limit))
        }
    };
    let guarantees = if inputs.has_guarantees() { ", some of it guaranteed to others" } else { "" };
    format!("{usage}{guarantees}, {} asked", cost.get())
}

/// Returns what another rate would have decided.
pub(super) fn what_if(limit: &Limit, decision: &Decision) -> String {
    match decision.wait() {
        Wait::None => {
            let (left, quota) = (decision.remaining(), limit.quota());
            format!("With {}, it would have passed: {left} of {quota} left.", rate(limit))
        }
        Wait::Micros(us) => {
            format!("With {}, it would have passed {} later.", rate(limit), span(us))
        }
        Wait::Never => {
            format!("With {}, it would cost more than the limit ever allows.", rate(limit))
        }
    }
}

/// Returns why another rate cannot be tried.
pub(super) fn why_no_what_if(inputs: &DecisionInputs) -> &'static str {
    match inputs.state() {
        None => "the state before the decision is not known",
        Some(_) if inputs.has_guarantees() => "the limit has guarantees, which depend on its rate",
        Some(_) => "the store keeps this sliding log, and returned only its sum",
    }
}

/// Returns a time to wait in a unit that suits it.
pub(crate) fn span(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{} ms", us.div_ceil(1_000)),
        _ => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

fn rate(limit: &Limit) -> String {
    limit.rate().to_string()
}

/// Returns the period of a limit, such as `minute` or `10s`.
fn period(limit: &Limit) -> String {
    let rate = limit.rate().to_string();
    let (_, period) = rate.split_once('/').unwrap_or(("", &rate));
    match period {
        "s" => "second".into(),
        "m" => "minute".into(),
        "h" => "hour".into(),
        "d" => "day".into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use ratekeeper::{Charge, Cost, MemoryStore, Micros, Op};

    use super::*;

    fn words(algorithm: Algorithm, rate: &str) -> String {
        let (store, now) = (MemoryStore::with_capacity(10), Micros::new(1_700_000_000_000_000));
        let limit = Limit::new(rate.parse().unwrap(), algorithm).unwrap();
        let check = |cost| {
            let charges = [Charge::new(&limit, "ann").cost(Cost::of(cost))];
            let verdict = store.apply_now(Op::Check, &charges, now).unwrap();
            state(&store.denial_inputs(&charges, &verdict))
        };
        check(98);
        check(3)
    }

    #[test]
    fn a_state_reads_as_a_person_would_say_it() {
        let said = words(Algorithm::SlidingLog, "100/minute");
        assert_eq!(said, "98 of 100 in the last minute, 3 asked");
        let said = words(Algorithm::SlidingCounter, "100/10s");
        assert_eq!(said, "98 of 100 in the last 10s, 3 asked");
        let said = words(Algorithm::FixedWindow, "100/hour");
        assert_eq!(said, "98 of 100 in the present hour, 3 asked");
        let said = words(Algorithm::TokenBucket, "100/minute");
        assert_eq!(said, "2 of 100 left, refilled at 100/m, 3 asked");
    }

    #[test]
    fn a_span_has_a_unit_that_suits_it() {
        assert_eq!([span(12), span(1_001), span(61_450_000)], ["12 µs", "2 ms", "61.4 s"]);
    }
}
