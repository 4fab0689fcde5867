//! The refusal log in JSON, for the admin API.

mod query;
mod words;

use jiff::Timestamp;
use ratekeeper::refusals::{RecordedKey, RecordedReason, RefusalFilter, RefusalLog, RefusalRecord};
use ratekeeper::telemetry::Outcome;
use ratekeeper::{Decision, DecisionInputs, Limit, Micros, Rate, Snapshot, StateBefore, Wait};
use serde_json::{Value, json};

pub(crate) use query::{InvalidQuery, encoded};
use query::{Parameters, decoded_segment, since};
pub(crate) use words::span;

/// How many refusals are returned by default, and at most.
const LISTED: usize = 50;
const LISTED_MAX: usize = 1_000;

/// Returns the recent refusals that a query asks for, the latest first.
///
/// # Errors
///
/// If the query is invalid.
pub(crate) fn list(
    log: &RefusalLog,
    query: Option<&str>,
    now: Micros,
) -> Result<Value, InvalidQuery> {
    let names = ["key", "limit", "since", "outcome", "n"];
    let parameters = Parameters::parse(query, &names)?;
    let (key, limit) = (parameters.get("key"), parameters.get("limit"));
    let filter = RefusalFilter {
        key: key.map(str::as_bytes),
        limit,
        since: parameters.get("since").map_or(Ok(Micros::new(0)), |text| since(text, now))?,
        outcome: parameters.get("outcome").map(outcome).transpose()?,
    };
    let listed = match parameters.get("n").map(str::parse) {
        None => LISTED,
        Some(Ok(n)) if (1..=LISTED_MAX).contains(&n) => n,
        Some(_) => return Err(InvalidQuery::Count),
    };
    let found = log.recent(&filter);
    let stats = log.stats();
    Ok(json!({
        "about": "the latest refusals, refusals that shadow mode prevented (shadow_denied), and with outcome=allowed \
            samples of admissions; of a key or limit that is refused very often only some are recorded",
        "recorded": stats.recorded,
        "sampled_out": stats.sampled_out,
        "dropped": stats.dropped,
        "records": stats.records,
        "capacity": stats.capacity,
        "matching": found.len(),
        "refusals": found.iter().take(listed).map(|record| to_json(record)).collect::<Vec<_>>(),
    }))
}

/// Returns all that is known of one request, whose id may be in percent notation, the decision made again, and with `rate=…` the one that another rate would
/// have led to. `None` if it is not in the log.
///
/// # Errors
///
/// If the query is invalid.
pub(crate) fn explain(
    log: &RefusalLog,
    request_id: &str,
    query: Option<&str>,
) -> Result<Option<Value>, InvalidQuery> {
    let parameters = Parameters::parse(query, &["rate"])?;
    let rate = parameters.get("rate").map(str::parse::<Rate>).transpose();
    let rate = rate.map_err(|error| InvalidQuery::Rate(error.to_string()))?;
    let request_id = decoded_segment(request_id).unwrap_or_default();
    let found = log.find(&request_id);
    if found.is_empty() {
        return Ok(None);
    }
    let explained = found.iter().map(|record| {
        let mut json = to_json(record);
        json["again"] = again(record);
        if let Some(rate) = rate {
            json["what_if"] = what_if(record, rate);
        }
        json
    });
    Ok(Some(json!({
        "request_id": &*found[0].request_id,
        "refusals": explained.collect::<Vec<_>>(),
    })))
}

fn outcome(text: &str) -> Result<Outcome, InvalidQuery> {
    let all = [Outcome::Denied, Outcome::ShadowDenied, Outcome::Allowed];
    all.into_iter().find(|outcome| name_of(*outcome) == text).ok_or(InvalidQuery::Outcome)
}

fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allowed => "allowed",
        Outcome::Denied => "denied",
        Outcome::ShadowDenied => "shadow_denied",
    }
}

fn to_json(record: &RefusalRecord) -> Value {
    let RefusalRecord { at, request_id, outcome, limit, rule, key, reason, .. } = record;
    let mut json = json!({
        "at": time(*at),
        "at_us": at.get(),
        "request_id": &**request_id,
        "outcome": name_of(*outcome),
        "limit": limit,
        "rule": rule.as_ref().map(|rule| json!({ "file": &*rule.file, "line": rule.line })),
        "key": match key {
            RecordedKey::Off => None,
            key => Some(key.to_string()),
        },
        "key_hashed": matches!(key, RecordedKey::Hashed(_)),
        "key_truncated": matches!(key, RecordedKey::Plain { is_truncated: true, .. }),
        "reason": reason_name(reason),
        "message": words::message(record),
        "degraded": record.is_degraded,
        "protocol": record.protocol,
        "policy_version": record.policy_version,
    });
    if let RecordedReason::Rate { decision, inputs, cost } = reason {
        json["cost"] = (*cost).into();
        json["decision"] = decision_json(decision);
        if let Some(inputs) = inputs {
            json["rate"] = inputs.limit().to_string().into();
            json["state"] = state(inputs);
        }
        if let Wait::Micros(us) = decision.wait() {
            let passes_at = Micros::new(at.get().saturating_add(us));
            json["passes_at"] = time(passes_at).into();
            json["passes_at_us"] = passes_at.get().into();
        }
    }
    json
}

fn reason_name(reason: &RecordedReason) -> &'static str {
    match reason {
        RecordedReason::Rate { .. } => "rate_limited",
        RecordedReason::InFlight { .. } => "too_many_in_flight",
        RecordedReason::NoPermit(_) => "no_permit",
        RecordedReason::MissingIdentity(_) => "identity_required",
        RecordedReason::TooManyLimits => "too_many_limits",
        RecordedReason::DeniesAll => "denies_all",
        _ => "other",
    }
}

/// Returns every number of a decision, so that two decisions are equal if their JSON is.
fn decision_json(decision: &Decision) -> Value {
    json!({
        "allowed": decision.allowed(),
        "limit": decision.limit(),
        "remaining": decision.remaining(),
        "retry_after_us": match decision.wait() {
            Wait::Micros(us) => Some(us),
            Wait::None | Wait::Never => None,
        },
        "reset_after_us": micros(decision.reset_after()),
        "delay_us": micros(decision.delay()),
        "exceeds_capacity": decision.exceeds_capacity(),
        "borrowed": decision.is_borrowed(),
    })
}

/// Returns the state before the decision: in words, and as it is stored.
fn state(inputs: &DecisionInputs) -> Value {
    let stored = inputs.state().map(|state| match state {
        StateBefore::Own(Snapshot::Cell(cell)) => json!({ "cell": cell.to_words() }),
        StateBefore::Own(Snapshot::Log(log)) => json!({ "log": { "total": log.total(), "newest_us": log.newest() } }),
        StateBefore::Buckets(buckets) => {
            json!({ "buckets": buckets.iter().map(|bucket| bucket.cell.to_words()).collect::<Vec<_>>() })
        }
        StateBefore::LogSummary { used, newest_us, .. } => {
            json!({ "log": { "total": used, "newest_us": newest_us } })
        }
        _ => json!({}),
    });
    json!({
        "words": words::state(inputs),
        "at_us": inputs.at().get(),
        "remaining": inputs.remaining(),
        "stored": stored,
    })
}

/// Returns the decision that the recorded state leads to, and whether it is the same, bit for bit.
fn again(record: &RefusalRecord) -> Value {
    let RecordedReason::Rate { decision, inputs: Some(inputs), .. } = &record.reason else {
        return Value::Null;
    };
    inputs.decide().map_or(
        Value::Null,
        |again| json!({ "decision": decision_json(&again), "same": again == *decision }),
    )
}

/// Returns the decision that another rate would have led to in the recorded state.
fn what_if(record: &RefusalRecord, rate: Rate) -> Value {
    let unknown = |why: &str| json!({ "rate": rate.to_string(), "decision": null, "why": why });
    let RecordedReason::Rate { inputs: Some(inputs), .. } = &record.reason else {
        return unknown("no rate refused this request");
    };
    let limit = match Limit::new(rate, inputs.limit().algorithm()) {
        Ok(limit) => limit,
        Err(error) => return unknown(&error.to_string()),
    };
    match inputs.decide_under(&limit) {
        Some(decision) => json!({
            "rate": rate.to_string(),
            "decision": decision_json(&decision),
            "message": words::what_if(&limit, &decision),
        }),
        None => unknown(words::why_no_what_if(inputs)),
    }
}

fn micros(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// RFC 3339 with microseconds.
fn time(at: Micros) -> String {
    let us = i64::try_from(at.get()).unwrap_or(i64::MAX);
    let time = Timestamp::from_microsecond(us).unwrap_or(Timestamp::MAX);
    format!("{time:.6}")
}
