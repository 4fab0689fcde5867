//! The metrics of the dependencies of a policy.

use ratekeeper::{ActivePolicy, BreakerState, Dependency, DependencyStats};

use super::{Labels, Page};

/// Adds the metrics of all dependencies.
pub(super) fn collect(page: &mut Page, policy: &ActivePolicy) {
    let stats: Vec<_> = policy.dependencies().map(|one| (labels(one), one.stats())).collect();
    if stats.is_empty() {
        return;
    }
    calls(page, &stats);
    permits(page, &stats);
    breakers(page, &stats);
}

/// Returns the labels of a dependency: its name, and its upstream if each has its own.
fn labels(dependency: &Dependency) -> Labels<'_> {
    let name = Some(("dependency", dependency.name()));
    let upstream = dependency.upstream().map(|upstream| ("upstream", upstream));
    Labels(name.into_iter().chain(upstream).collect())
}

fn with<'l>(labels: &Labels<'l>, name: &'static str, value: &'l str) -> Labels<'l> {
    Labels(labels.0.iter().copied().chain([(name, value)]).collect())
}

fn calls(page: &mut Page, stats: &[(Labels<'_>, DependencyStats)]) {
    let counts = stats.iter().flat_map(|(labels, stats)| {
        let permits = stats.permits.as_ref();
        let counts = [
            ("admitted", stats.admitted),
            ("rate_limited", stats.rate_limited),
            ("queue_full", permits.map_or(0, |permits| permits.full + permits.evicted)),
            ("queue_timeout", permits.map_or(0, |permits| permits.timed_out)),
            ("circuit_open", stats.breaker.map_or(0, |breaker| breaker.rejected)),
        ];
        counts.map(|(outcome, n)| (with(labels, "outcome", outcome), n))
    });
    let help = "Calls of a dependency, admitted or rejected.";
    page.counter("ratekeeper_dependency_calls_total", help, counts);
}

fn permits(page: &mut Page, stats: &[(Labels<'_>, DependencyStats)]) {
    let permits = || {
        let found =
            stats.iter().filter_map(|(labels, stats)| Some((labels, stats.permits.as_ref()?)));
        found.map(|(labels, permits)| (Labels(labels.0.clone()), permits))
    };
    let max = permits().map(|(labels, permits)| (labels, permits.permits_max));
    page.gauge("ratekeeper_dependency_limit", "Calls that may be in flight.", max);
    let in_flight = permits().map(|(labels, permits)| (labels, permits.in_flight));
    page.gauge("ratekeeper_dependency_in_flight", "Calls in flight.", in_flight);
    let waiting = permits().map(|(labels, permits)| (labels, permits.waiting));
    page.gauge("ratekeeper_dependency_queue_length", "Calls that wait for a permit.", waiting);
    let waits = permits().map(|(labels, permits)| (labels, permits.waits.clone()));
    let help = "How long admitted calls had waited for a permit.";
    page.histogram("ratekeeper_dependency_wait_seconds", help, waits);
}

fn breakers(page: &mut Page, stats: &[(Labels<'_>, DependencyStats)]) {
    let states = [
        ("closed", BreakerState::Closed),
        ("open", BreakerState::Open),
        ("half_open", BreakerState::HalfOpen),
    ];
    let state = stats.iter().filter_map(|(labels, stats)| Some((labels, stats.breaker_state?)));
    let state = state.flat_map(|(labels, is)| {
        states.map(|(name, state)| (with(labels, "state", name), u8::from(state == is)))
    });
    let help = "1 for the state of the circuit breaker of a dependency, 0 for the others.";
    page.gauge("ratekeeper_dependency_breaker_state", help, state);
    let opened = stats.iter().filter_map(|(labels, stats)| Some((labels, stats.breaker?.opened)));
    let opened = opened.map(|(labels, opened)| (Labels(labels.0.clone()), opened));
    let help = "How often the circuit breaker of a dependency has opened.";
    page.counter("ratekeeper_dependency_breaker_opened_total", help, opened);
}
