//! Numbers in Prometheus' text format. Labels come from the configuration, never from requests.

mod page;

use ratekeeper::PolicyLimiter;
use ratekeeper::shared::{BreakerState, StoreState};

pub(crate) use page::{CONTENT_TYPE, Labels, Page};

/// One number without labels.
pub(crate) fn one<'l, V>(value: V) -> [(Labels<'l>, V); 1] {
    [(Labels::default(), value)]
}

/// What a gate has done.
pub(crate) fn gate(page: &mut Page, gate: &PolicyLimiter) {
    let version = Labels(vec![("version", env!("CARGO_PKG_VERSION"))]);
    page.gauge("ratekeeper_build_info", "Which version this is.", [(version, 1)]);
    decisions(page, gate);
    policy(page, gate);
    memory(page, gate);
    store(page, gate);
    leases(page, gate);
}

fn decisions(page: &mut Page, gate: &PolicyLimiter) {
    let stats = gate.telemetry().limits();
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
    let help = "Requests that a limit let pass when it was nearly used up.";
    page.counter("ratekeeper_near_limit_total", help, near);
    page.counter(
        "ratekeeper_exempt_total",
        "Requests that no limit applied to.",
        one(gate.telemetry().exempt()),
    );
}

fn policy(page: &mut Page, gate: &PolicyLimiter) {
    let loaded = gate.policy().status();
    let help = "Policies that have been in force since the start.";
    page.gauge("ratekeeper_policy_version", help, one(loaded.version));
    let help = "When the policy in force was loaded.";
    let at = loaded.loaded_at.get() / 1_000_000;
    page.gauge("ratekeeper_policy_loaded_timestamp_seconds", help, one(at));
    let help = "Policies that could not be loaded.";
    page.counter("ratekeeper_policy_failures_total", help, one(loaded.failures));
    let help = "Whether the last policy that was offered is in force.";
    page.gauge("ratekeeper_policy_ok", help, one(u8::from(loaded.last_error.is_none())));
    let help = "When the last policy that was offered was found wanting; 0 if it is in force.";
    let failed_at = loaded.failed_at.map_or(0, |at| at.get() / 1_000_000);
    page.gauge("ratekeeper_policy_failed_timestamp_seconds", help, one(failed_at));
}

fn memory(page: &mut Page, gate: &PolicyLimiter) {
    let Some(memory) = gate.engine().memory_stats() else { return };
    page.gauge("ratekeeper_memory_keys", "Keys in memory.", one(memory.live_keys));
    page.gauge("ratekeeper_memory_bytes", "Memory set aside for keys.", one(memory.memory_bytes));
    let help = "Keys that were given up for want of room.";
    page.counter("ratekeeper_memory_evictions_total", help, one(memory.evictions));
}

fn store(page: &mut Page, gate: &PolicyLimiter) {
    let kind = if gate.engine().is_memory() { "memory" } else { "redis" };
    let took = [(Labels(vec![("store", kind)]), gate.engine().store_time())];
    page.histogram("ratekeeper_store_duration_seconds", "How long the store took to answer.", took);
    let (Some(state), Some(fallback)) =
        (gate.engine().store_state(), gate.engine().fallback_stats())
    else {
        return;
    };
    let is_up = u8::from(!matches!(state, StoreState::Down(_)));
    page.gauge("ratekeeper_store_up", "Whether the store answers.", one(is_up));
    let by = |who| Labels(vec![("by", who)]);
    let answers = [
        (by("store"), fallback.store),
        (by("local"), fallback.local),
        (by("open"), fallback.open),
        (by("closed"), fallback.closed),
    ];
    page.counter("ratekeeper_answers_total", "Who gave the answers.", answers);
    let kind = |kind| Labels(vec![("kind", kind)]);
    let errors = [
        (kind("deadline"), fallback.deadlines),
        (kind("unreachable"), fallback.unreachable),
        (kind("refused"), fallback.refused),
        (kind("misconfigured"), fallback.misconfigured),
        (kind("invalid_response"), fallback.invalid_responses),
    ];
    page.counter("ratekeeper_store_errors_total", "Calls to the store that failed.", errors);
    let help = "How often the store was given up for a while.";
    page.counter("ratekeeper_breaker_opened_total", help, one(fallback.breaker_opened));
    let state = gate.engine().breaker_state();
    let breaker = [
        ("closed", BreakerState::Closed),
        ("open", BreakerState::Open),
        ("half_open", BreakerState::HalfOpen),
    ];
    let breaker = breaker
        .map(|(name, of)| (Labels(vec![("state", name)]), u8::from(state.as_ref() == Some(&of))));
    page.gauge("ratekeeper_breaker_state", "1 for the state that the breaker is in.", breaker);
    page.gauge("ratekeeper_nodes", "Nodes that share the store.", one(fallback.nodes));
    let help = "Shards of the store whose circuit breaker is not closed.";
    page.gauge("ratekeeper_store_shards_down", help, one(fallback.shards_down));
    let help = "Keys for which the store has yet to be charged what this node admitted by itself.";
    page.gauge("ratekeeper_backlog_keys", help, one(fallback.backlog_keys));
    let help = "Units that the store was charged after this node had admitted them by itself.";
    page.counter("ratekeeper_backlog_reported_units_total", help, one(fallback.backlog_reported));
    let help = "Units admitted by this node that the store will never be charged.";
    page.counter("ratekeeper_backlog_dropped_units_total", help, one(fallback.backlog_dropped));
}

fn leases(page: &mut Page, gate: &PolicyLimiter) {
    let Some(leases) = gate.engine().lease_stats() else { return };
    let by = |who| Labels(vec![("by", who)]);
    let answers = [(by("lease"), leases.local), (by("store"), leases.asked)];
    let help = "Answers for keys that may be leased, by who gave them.";
    page.counter("ratekeeper_lease_answers_total", help, answers);
    let help = "Units that were charged in batches.";
    page.counter("ratekeeper_lease_units_total", help, one(leases.leased));
    let help = "Units of batches that nobody needed and that were given back.";
    page.counter("ratekeeper_lease_returned_units_total", help, one(leases.returned));
    page.gauge("ratekeeper_lease_keys", "Keys that are leased.", one(leases.keys));
    let help = "Units that are charged and not spent: what other nodes cannot have.";
    page.gauge("ratekeeper_lease_unspent_units", help, one(leases.unspent));
}
