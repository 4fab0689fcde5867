//! An explanation for machines.

use ratekeeper::policy::{AppliedLimit, Explanation, LimitOutcome};
use serde_json::{Value as Json, json};

use super::request::Asked;
use super::state::{State, States};
use super::text::{failure_mode, mode, why_not};

pub(super) fn show(asked: &Asked<'_>, explained: &Explanation<'_>, states: &States) -> Json {
    let identities = explained.identities.iter().map(|(name, value)| match value {
        Ok(value) => json!({ "name": name, "value": value }),
        Err(missing) => json!({ "name": name, "missing": missing.to_string() }),
    });
    let mut states = states.each.iter();
    let mut limits = Vec::new();
    for verdict in &explained.limits {
        let name = verdict.rule.name();
        match &verdict.outcome {
            LimitOutcome::Applies(applied) => {
                limits.extend(applied.iter().map(|one| of_applied(one, states.next())));
            }
            other => {
                let refuses = matches!(other, LimitOutcome::MissingIdentity(_));
                limits.push(json!({ "name": name, "applies": false, "refuses": refuses, "why": why_not(other) }));
            }
        }
    }
    json!({
        "method": asked.method,
        "path": explained.path,
        "other_readings": explained.other_readings,
        "query": asked.query,
        "host": asked.host,
        "client": explained.client,
        "identities": identities.collect::<Vec<_>>(),
        "tier": explained.tier,
        "class": explained.class,
        "exempt": explained.exempt.map(|entry| entry + 1),
        "limits": limits,
    })
}

fn of_applied(one: &AppliedLimit, state: Option<&State>) -> Json {
    let mut told = json!({
        "name": one.rule.name(),
        "applies": true,
        "is_share": one.is_share(),
        "amount": one.amount().to_string(),
        "key": one.key.to_string(),
        "cost": one.cost.get(),
        "mode": mode(one),
        "on_store_failure": failure_mode(one.rule.on_failure()),
    });
    if let Some(state) = state {
        told["state"] = of_state(state);
    }
    told
}

fn of_state(state: &State) -> Json {
    match state {
        State::NoAnswer => json!({ "answered": false }),
        State::InFlight => Json::Null,
        State::Told(decision) => json!({
            "answered": true,
            "fits": decision.allowed(),
            "limit": decision.limit(),
            "remaining": decision.remaining(),
            "retry_after_us": decision.retry_after().map(|after| after.as_micros() as u64),
            "never": decision.exceeds_capacity(),
            "reset_after_us": decision.reset_after().as_micros() as u64,
        }),
    }
}
