//! The metrics of a policy limiter and its store. Labels come from the configuration, never from requests.

mod dependencies;
mod page;
mod protection;

use ratekeeper::policy::LimitRule;
use ratekeeper::shared::{BreakerState, StoreState};
use ratekeeper::telemetry::LimitStats;
use ratekeeper::{Engine, Policy, PolicyLimiter};

pub(crate) use page::{CONTENT_TYPE, Labels, Page};

/// Returns one value without labels.
pub(crate) fn one<'l, V>(value: V) -> [(Labels<'l>, V); 1] {
    [(Labels::default(), value)]
}

/// Adds the metrics of a policy limiter.
pub(crate) fn collect(page: &mut Page, limiter: &PolicyLimiter) {
    let version = Labels(vec![("version", env!("CARGO_PKG_VERSION"))]);
    page.gauge(
        "ratekeeper_build_info",
        "The version of the program; the value is always 1.",
        [(version, 1)],
    );
    decisions(page, limiter);
    protection::collect(page, limiter);
    policy(page, limiter);
    refusals(page, limiter);
    memory(page, limiter.engine());
    store(page, limiter.engine());
    leases(page, limiter.engine());
    dependencies::collect(page, &limiter.policy().active());
}

fn decisions(page: &mut Page, limiter: &PolicyLimiter) {
    let stats = limiter.telemetry().limits();
    let decisions = stats.iter().flat_map(|limit| {
        let counts = [
            ("allowed", limit.allowed),
            ("denied", limit.denied),
            ("shadow_denied", limit.shadow_denied),
        ];
        counts.map(|(outcome, n)| (Labels(vec![("limit", &*limit.name), ("outcome", outcome)]), n))
    });
    page.counter("ratekeeper_decisions_total", "Decisions of each limit.", decisions);
    let near = stats.iter().map(|limit| (Labels(vec![("limit", &*limit.name)]), limit.near_limit));
    let help = "Requests that a limit allowed when it was nearly used up.";
    page.counter("ratekeeper_near_limit_total", help, near);
    guaranteed(page, limiter, &stats);
    metered(page, limiter, &stats);
    page.counter(
        "ratekeeper_exempt_total",
        "Requests that are exempt from all limits.",
        one(limiter.telemetry().exempt()),
    );
}

/// Adds the metrics of limits with guarantees.
fn guaranteed(page: &mut Page, limiter: &PolicyLimiter, stats: &[LimitStats]) {
    let active = limiter.policy().active();
    let found = stats_of(stats, active.policy(), LimitRule::has_guarantees);
    let admitted = found.flat_map(|limit| {
        let counts = [("guarantee", limit.guaranteed), ("borrowing", limit.borrowed)];
        counts.map(|(by, n)| (Labels(vec![("limit", &*limit.name), ("by", by)]), n))
    });
    let help = "Requests that a limit with guarantees allowed, by a guarantee or by borrowing.";
    page.counter("ratekeeper_guarantees_total", help, admitted);
}

/// Returns the counters of the limits of a policy that are such.
fn stats_of<'s>(
    stats: &'s [LimitStats],
    policy: &Policy,
    is_such: impl Fn(&LimitRule) -> bool,
) -> impl Iterator<Item = &'s LimitStats> {
    policy.limits().iter().filter(move |rule| is_such(rule)).filter_map(|rule| {
        // They are sorted by name.
        let index = stats.binary_search_by(|limit| (*limit.name).cmp(rule.name())).ok()?;
        Some(&stats[index])
    })
}

/// Adds the metrics of limits that charge the usage of responses.
fn metered(page: &mut Page, limiter: &PolicyLimiter, stats: &[LimitStats]) {
    let active = limiter.policy().active();
    let found = stats_of(stats, active.policy(), |rule| rule.usage_format().is_some());
    let responses = found.flat_map(|limit| {
        let counts = [
            ("settled", limit.metered.settled),
            ("unstated", limit.metered.unstated),
            ("interrupted", limit.metered.interrupted),
            ("encoded", limit.metered.encoded),
            ("refunded", limit.metered.refunded),
        ];
        counts.map(|(outcome, n)| (Labels(vec![("limit", &*limit.name), ("outcome", outcome)]), n))
    });
    let help = "Responses whose usage a limit charges, by whether the usage was known.";
    page.counter("ratekeeper_metered_responses_total", help, responses);
}

fn policy(page: &mut Page, limiter: &PolicyLimiter) {
    let loaded = limiter.policy().status();
    let help = "Policies that have been active since the start.";
    page.gauge("ratekeeper_policy_version", help, one(loaded.version));
    let help = "When the active policy was loaded.";
    let at = loaded.loaded_at.get() / 1_000_000;
    page.gauge("ratekeeper_policy_loaded_timestamp_seconds", help, one(at));
    let help = "Policies that were rejected.";
    page.counter("ratekeeper_policy_failures_total", help, one(loaded.failures));
    let help =
        "1 if the policy file is active, 0 if it was rejected and an older policy is active.";
    page.gauge("ratekeeper_policy_ok", help, one(u8::from(loaded.last_error.is_none())));
    let help = "When the policy file was rejected; 0 if it is active.";
    let failed_at = loaded.failed_at.map_or(0, |at| at.get() / 1_000_000);
    page.gauge("ratekeeper_policy_failed_timestamp_seconds", help, one(failed_at));
}

/// Adds the metrics of the refusal log.
fn refusals(page: &mut Page, limiter: &PolicyLimiter) {
    let stats = limiter.refusals().stats();
    let counts = [
        ("recorded", stats.recorded),
        ("sampled_out", stats.sampled_out),
        ("dropped", stats.dropped),
    ];
    let counts = counts.map(|(result, n)| (Labels(vec![("result", result)]), n));
    let help = "Refusals and samples of admissions, by whether the refusal log recorded them.";
    page.counter("ratekeeper_refusal_log_total", help, counts);
    page.gauge("ratekeeper_refusal_log_records", "Records in the refusal log.", one(stats.records));
}

fn memory(page: &mut Page, engine: &Engine) {
    let Some(memory) = engine.memory_stats() else { return };
    page.gauge("ratekeeper_memory_keys", "Live keys in the memory store.", one(memory.live_keys));
    page.gauge(
        "ratekeeper_memory_bytes",
        "Memory reserved by the memory store.",
        one(memory.memory_bytes),
    );
    let help = "Live keys that were evicted because the memory store was full.";
    page.counter("ratekeeper_memory_evictions_total", help, one(memory.evictions));
}

fn store(page: &mut Page, engine: &Engine) {
    let kind = if engine.is_memory() { "memory" } else { "redis" };
    let took = [(Labels(vec![("store", kind)]), engine.store_time())];
    page.histogram("ratekeeper_store_duration_seconds", "Duration of calls to the store.", took);
    let (Some(state), Some(fallback)) = (engine.store_state(), engine.fallback_stats()) else {
        return;
    };
    let is_up = u8::from(!matches!(state, StoreState::Down(_)));
    page.gauge("ratekeeper_store_up", "Whether the shared store is available.", one(is_up));
    let by = |by| Labels(vec![("by", by)]);
    let decisions = [
        (by("store"), fallback.store),
        (by("local"), fallback.local),
        (by("open"), fallback.open),
        (by("closed"), fallback.closed),
    ];
    let help = "Decisions by the shared store, or by a failure mode while it was unavailable.";
    page.counter("ratekeeper_store_decisions_total", help, decisions);
    let kind = |kind| Labels(vec![("kind", kind)]);
    let errors = [
        (kind("deadline"), fallback.deadlines),
        (kind("unreachable"), fallback.unreachable),
        (kind("refused"), fallback.refused),
        (kind("misconfigured"), fallback.misconfigured),
        (kind("invalid_response"), fallback.invalid_responses),
    ];
    page.counter("ratekeeper_store_errors_total", "Calls to the store that failed.", errors);
    let help = "How often a circuit breaker of the store has opened.";
    page.counter("ratekeeper_breaker_opened_total", help, one(fallback.breaker_opened));
    let state = engine.breaker_state();
    let breaker = [
        ("closed", BreakerState::Closed),
        ("open", BreakerState::Open),
        ("half_open", BreakerState::HalfOpen),
    ];
    let breaker = breaker
        .map(|(name, of)| (Labels(vec![("state", name)]), u8::from(state.as_ref() == Some(&of))));
    page.gauge("ratekeeper_breaker_state", "1 for the state of the circuit breaker.", breaker);
    page.gauge("ratekeeper_nodes", "Nodes that share the store.", one(fallback.nodes));
    let help = "Shards of the store whose circuit breaker is not closed.";
    page.gauge("ratekeeper_store_shards_down", help, one(fallback.shards_down));
    let help = "Keys whose local admissions have not been charged to the store yet.";
    page.gauge("ratekeeper_backlog_keys", help, one(fallback.backlog_keys));
    let help = "Units that were admitted locally and charged to the store afterwards.";
    page.counter("ratekeeper_backlog_charged_units_total", help, one(fallback.backlog_charged));
    let help = "Units that were admitted locally and will never be charged to the store.";
    page.counter("ratekeeper_backlog_dropped_units_total", help, one(fallback.backlog_dropped));
}

fn leases(page: &mut Page, engine: &Engine) {
    let Some(leases) = engine.lease_stats() else { return };
    let by = |by| Labels(vec![("by", by)]);
    let decisions = [(by("lease"), leases.local), (by("store"), leases.store_calls)];
    let help = "Decisions on keys that can be leased, by a lease or by the store.";
    page.counter("ratekeeper_lease_decisions_total", help, decisions);
    let help = "Units that were leased.";
    page.counter("ratekeeper_lease_units_total", help, one(leases.leased));
    let help = "Leased units that were refunded unused.";
    page.counter("ratekeeper_lease_refunded_units_total", help, one(leases.refunded));
    page.gauge("ratekeeper_lease_keys", "Keys that are leased now.", one(leases.keys));
    let help = "Leased units that are not used yet, and that other nodes cannot use.";
    page.gauge("ratekeeper_lease_unspent_units", help, one(leases.unspent));
}
