//! An explanation as JSON.

use ratekeeper::MaxDebt;
use ratekeeper::policy::{AppliedLimit, Explanation, LimitOutcome, RequestAttributes};
use serde_json::{Value as Json, json};

use super::state::{LimitState, LimitStates};
use super::text::{failure_mode, mode, why_not};

pub(super) fn show(
    request: &RequestAttributes<'_>,
    explanation: &Explanation<'_>,
    states: &LimitStates,
) -> Json {
    let identities = explanation.identities.iter().map(|(name, value)| match value {
        Ok(value) => json!({ "name": name, "value": value }),
        Err(missing) => json!({ "name": name, "missing": missing.to_string() }),
    });
    let mut states = states.each.iter();
    let mut limits = Vec::new();
    for limit in &explanation.limits {
        let name = limit.rule.name();
        match &limit.outcome {
            LimitOutcome::Applies(applied) => {
                let each =
                    applied.iter().map(|one| applied_limit(one, &limit.counted, states.next()));
                limits.extend(each);
            }
            other => {
                let refuses = matches!(other, LimitOutcome::MissingIdentity(_));
                limits.push(json!({ "name": name, "applies": false, "refuses": refuses, "reason": why_not(other) }));
            }
        }
    }
    let dependencies = explanation
        .dependencies
        .iter()
        .map(|one| json!({ "name": one.name(), "protection": one.to_string() }));
    json!({
        "method": request.method,
        "path": explanation.path,
        "other_readings": explanation.other_readings,
        "query": request.query,
        "host": request.host,
        "client": explanation.client,
        "identities": identities.collect::<Vec<_>>(),
        "tier": explanation.tier,
        "class": explanation.class,
        "shed_order": explanation.shed_order.map(|(rank, of)| json!({ "rank": rank, "of": of })),
        "dependencies": dependencies.collect::<Vec<_>>(),
        "exempt": explanation.exempt.map(|entry| entry + 1),
        "limits": limits,
    })
}

fn applied_limit(one: &AppliedLimit, counted: &str, state: Option<&LimitState>) -> Json {
    let mut json = json!({
        "name": one.rule.name(),
        "applies": true,
        "is_share": one.is_share(),
        "amount": one.amount().to_string(),
        "key": one.key.to_string(),
        "counted": counted,
        "cost": one.cost.get(),
        "mode": mode(one),
        "on_store_failure": failure_mode(one.rule.on_failure()),
    });
    if let Some(max_debt) = one.rule.overdraft() {
        json["overdraft"] =
            json!({ "max": (max_debt != MaxDebt::NONE).then(|| max_debt.to_string()) });
    }
    if let Some(limit) = one.guaranteed_limit() {
        json["guarantee"] = limit.guarantee().map(|limit| limit.rate().to_string()).into();
    }
    if let Some(format) = one.rule.usage_format() {
        json["usage"] = format.to_string().into();
    }
    if let Some(state) = state {
        json["state"] = limit_state(state);
    }
    json
}

fn limit_state(state: &LimitState) -> Json {
    match state {
        LimitState::NoResponse => json!({ "known": false }),
        LimitState::Concurrency => Json::Null,
        LimitState::Known(decision) => json!({
            "known": true,
            "fits": decision.allowed(),
            "limit": decision.limit(),
            "remaining": decision.remaining(),
            "retry_after_us": decision.retry_after().map(|after| after.as_micros() as u64),
            "exceeds_capacity": decision.exceeds_capacity(),
            "reset_after_us": decision.reset_after().as_micros() as u64,
        }),
    }
}
