//! The status of the server as JSON: what pages show, once a second.

use ratekeeper::policy::Mode;
use ratekeeper::shared::StoreState;
use ratekeeper::telemetry::LimitStats;
use ratekeeper::{Engine, Policy, PolicyLimiter};
use serde_json::{Value, json};

use super::attention::attention;
use super::history::{History, Quantiles, Row, Span};
use super::protection::{breaker_name, protection};
use crate::reload::LoadStatus;

/// The time over which the use of a limit is counted.
const RECENT_US: u64 = 60_000_000;

pub(super) fn status(
    limiter: &PolicyLimiter,
    loads: &LoadStatus,
    not_ready: Option<&str>,
    history: &History,
) -> Value {
    let LoadStatus { version, loaded_at, failures, last_error, failed_at, .. } = loads;
    json!({
        "at_us": limiter.engine().now().get(),
        "version": env!("CARGO_PKG_VERSION"),
        "attention": attention(limiter, loads, not_ready, history),
        "policy": {
            "version": version,
            "loaded_at_us": loaded_at.get(),
            "failures": failures,
            "error": last_error,
            "failed_at_us": failed_at.map(|at| at.get()),
        },
        "store": store(limiter.engine()),
        "second": history.last().map(|row| columns(std::iter::once(row), None)),
        "limits": limits(limiter, history),
        "protection": protection(limiter),
    })
}

/// Returns the rows of a span as columns, of all limits or of one. Counts are per second.
pub(super) fn history(history: &History, span: Span, limit: Option<&str>) -> Option<Value> {
    let slot = match limit {
        Some(limit) => Some(history.slot(limit)?),
        None => None,
    };
    let mut columns = columns(history.rows(span), slot);
    columns["span"] = span.name().into();
    columns["step_us"] = span.step_us().into();
    columns["limit"] = limit.into();
    Some(columns)
}

fn columns<'r>(rows: impl Iterator<Item = &'r Row>, slot: Option<usize>) -> Value {
    let rows: Vec<_> = rows.collect();
    let at: Vec<_> = rows.iter().map(|row| row.at_us).collect();
    let of_limit = |row: &Row| slot.map_or(row.total, |slot| row.limit(slot));
    let mut columns = json!({
        "at_us": at,
        "decisions": counts(&rows, ["allowed", "near_limit", "denied", "shadow_denied"], of_limit),
    });
    if slot.is_some() {
        return columns;
    }
    let Some(last) = rows.last() else { return columns };
    for (i, (protocol, _)) in last.protocols.iter().enumerate() {
        let of = |row: &Row| row.protocols.get(i).map(|(_, counts)| *counts).unwrap_or_default();
        columns["protocols"][protocol] = counts(&rows, ["allowed", "denied", "error", "other"], of);
    }
    for (i, (what, _)) in last.durations.iter().enumerate() {
        let of = |row: &Row| row.durations.get(i).and_then(|(_, quantiles)| *quantiles);
        columns["durations_us"][what] = quantiles(&rows, of);
    }
    columns
}

fn counts(rows: &[&Row], names: [&str; 4], of: impl Fn(&Row) -> [u32; 4]) -> Value {
    let column = |i: usize| rows.iter().map(|row| per_second(of(row)[i], row)).collect::<Vec<_>>();
    let columns = names.iter().enumerate();
    columns.map(|(i, name)| ((*name).to_string(), Value::from(column(i)))).collect()
}

fn quantiles(rows: &[&Row], of: impl Fn(&Row) -> Quantiles) -> Value {
    let column =
        |i: usize| rows.iter().map(|row| of(row).map(|quantiles| quantiles[i])).collect::<Vec<_>>();
    json!({ "p50": column(0), "p95": column(1), "p99": column(2) })
}

fn per_second(count: u32, row: &Row) -> f64 {
    let rate = f64::from(count) * 1e6 / row.elapsed_us.max(1) as f64;
    (rate * 100.0).round() / 100.0
}

fn limits(limiter: &PolicyLimiter, history: &History) -> Vec<Value> {
    let active = limiter.policy().active();
    let policy = active.policy();
    let stats = limiter.telemetry().limits();
    let find = |name: &str| stats.iter().find(|stats| &*stats.name == name);
    let rules = policy.limits().iter();
    rules.filter_map(|rule| Some(limit(find(rule.name())?, rule.mode(), policy, history))).collect()
}

fn limit(stats: &LimitStats, mode: Mode, policy: &Policy, history: &History) -> Value {
    let slot = history.slot(&stats.name);
    let recent = slot.map(|slot| history.sum(slot, RECENT_US)).unwrap_or_default();
    let [allowed, near_limit, denied, shadow_denied] = recent;
    json!({
        "name": &*stats.name,
        "rule": policy.describe_limit(&stats.name),
        "mode": mode_text(mode),
        "has_history": slot.is_some(),
        "total": {
            "allowed": stats.allowed,
            "near_limit": stats.near_limit,
            "denied": stats.denied,
            "shadow_denied": stats.shadow_denied,
        },
        "last_minute": {
            "allowed": allowed,
            "near_limit": near_limit,
            "denied": denied,
            "shadow_denied": shadow_denied,
        },
    })
}

fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Enforce => "enforced".into(),
        Mode::Shadow => "shadow".into(),
        Mode::Off => "off".into(),
        Mode::Ramp(part) => format!("enforced for {}% of keys", f64::from(part) / 100.0),
    }
}

fn store(engine: &Engine) -> Value {
    let (state, error) = match engine.store_state() {
        None => ("memory", None),
        Some(StoreState::Up) => ("up", None),
        Some(StoreState::Partial { error, .. }) => ("partial", Some(error.to_string())),
        Some(StoreState::Down(error)) => ("down", Some(error.to_string())),
        Some(_) => ("unknown", None),
    };
    let breaker = engine.breaker_state().map(breaker_name);
    let memory = engine.memory_stats().map(|memory| {
        json!({ "keys": memory.live_keys, "bytes": memory.memory_bytes, "evictions": memory.evictions })
    });
    let fallback = engine.fallback_stats().map(|fallback| {
        json!({
            "nodes": fallback.nodes,
            "by_store": fallback.store,
            "local": fallback.local,
            "open": fallback.open,
            "closed": fallback.closed,
            "backlog_keys": fallback.backlog_keys,
        })
    });
    let leases = engine.lease_stats().map(|leases| {
        json!({ "keys": leases.keys, "unspent": leases.unspent, "local": leases.local, "store_calls": leases.store_calls })
    });
    json!({
        "state": state,
        "error": error,
        "breaker": breaker,
        "memory": memory,
        "fallback": fallback,
        "leases": leases,
    })
}
