//! What protects services, as JSON: limits with permits, load shedding, dependencies.

use ratekeeper::histogram::DurationCounts;
use ratekeeper::policy::{ConcurrencyRule, Permits};
use ratekeeper::{
    ActivePolicy, BreakerState, BulkheadStats, Dependency, DependencyStats, Policy, PolicyLimiter,
};
use serde_json::{Value, json};

use super::history::quantiles;

/// Returns the state of what the policy protects. Counters are since the start, or since the policy was loaded.
pub(super) fn protection(limiter: &PolicyLimiter) -> Value {
    let active = limiter.policy().active();
    json!({
        "concurrency": concurrency(limiter, active.policy()),
        "shedding": shedding(limiter, active.policy()),
        "dependencies": active.dependencies().map(dependency).collect::<Vec<_>>(),
    })
}

fn concurrency(limiter: &PolicyLimiter, policy: &Policy) -> Vec<Value> {
    let all = limiter.engine().concurrency_stats();
    let all = all.iter().map(|of| {
        let rule = policy.limits().iter().find(|rule| rule.name() == &*of.name);
        let rule = rule.and_then(|rule| rule.service_permits());
        let mut json = permits(&of.permits);
        json["limit"] = (*of.name).into();
        json["rule"] = rule.map(ToString::to_string).into();
        json["is_adaptive"] = rule.is_some_and(is_adaptive).into();
        json
    });
    all.collect()
}

fn is_adaptive(rule: &ConcurrencyRule) -> bool {
    matches!(rule.permits, Permits::Adaptive(_))
}

fn permits(stats: &BulkheadStats) -> Value {
    json!({
        "permits": stats.permits_max,
        "in_flight": stats.in_flight,
        "waiting": stats.waiting,
        "admitted": stats.admitted,
        "queue_full": stats.full + stats.evicted,
        "queue_timeout": stats.timed_out,
        "waits_us": waits(&stats.waits),
    })
}

fn waits(counts: &DurationCounts) -> Value {
    quantiles(counts, &DurationCounts::default())
        .map_or(Value::Null, |[p50, p95, p99]| json!({ "p50": p50, "p95": p95, "p99": p99 }))
}

fn shedding(limiter: &PolicyLimiter, policy: &Policy) -> Vec<Value> {
    let stats = limiter.engine().shed_stats();
    let classes = policy.classes().iter().zip(&stats).map(|(class, stats)| {
        json!({
            "class": class,
            "admitted": stats.admitted,
            "shed": stats.shed,
            "shed_share": stats.shed_share,
        })
    });
    classes.collect()
}

fn dependency(dependency: &Dependency) -> Value {
    let DependencyStats { admitted, rate_limited, permits: of, breaker_state, breaker, .. } =
        dependency.stats();
    json!({
        "name": dependency.name(),
        "upstream": dependency.upstream(),
        "admitted": admitted,
        "rate_limited": rate_limited,
        "concurrency": of.as_ref().map(permits),
        "breaker": breaker_state.map(breaker_name),
        "breaker_rejected": breaker.map(|breaker| breaker.rejected),
        "breaker_opened": breaker.map(|breaker| breaker.opened),
    })
}

/// Returns the name of a state.
pub(super) fn breaker_name(state: BreakerState) -> &'static str {
    match state {
        BreakerState::Closed => "closed",
        BreakerState::Open => "open",
        BreakerState::HalfOpen => "half-open",
        _ => "unknown",
    }
}

/// Returns the dependencies with a circuit breaker that lets no calls through.
pub(super) fn open_breakers(active: &ActivePolicy) -> impl Iterator<Item = &Dependency> {
    active
        .dependencies()
        .filter(|dependency| dependency.stats().breaker_state == Some(BreakerState::Open))
}
