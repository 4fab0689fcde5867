//! The metrics of concurrency limits that are adaptive or have a queue, and of load shedding.

use ratekeeper::{ConcurrencyStats, PolicyLimiter};

use super::{Labels, Page};

/// Adds the metrics of what a policy protects.
pub(super) fn collect(page: &mut Page, limiter: &PolicyLimiter) {
    let stats = limiter.engine().concurrency_stats();
    if !stats.is_empty() {
        concurrency(page, &stats);
    }
    shedding(page, limiter);
}

fn concurrency(page: &mut Page, stats: &[ConcurrencyStats]) {
    let limit = stats.iter().map(|of| (labels(of), of.permits.permits_max));
    let help = "Requests that a concurrency limit lets be in flight now.";
    page.gauge("ratekeeper_concurrency_limit", help, limit);
    let in_flight = stats.iter().map(|of| (labels(of), of.permits.in_flight));
    let help = "Requests that hold a permit of a concurrency limit.";
    page.gauge("ratekeeper_concurrency_in_flight", help, in_flight);
    let waiting = stats.iter().map(|of| (labels(of), of.permits.waiting));
    let help = "Requests that wait for a permit of a concurrency limit.";
    page.gauge("ratekeeper_concurrency_queue_length", help, waiting);
    let waits = stats.iter().map(|of| (labels(of), of.permits.waits.clone()));
    let help = "How long requests waited for a permit that did not get one at once.";
    page.histogram("ratekeeper_concurrency_wait_seconds", help, waits);
    let rejected = stats.iter().flat_map(|of| {
        let counts = [
            ("queue_full", of.permits.full + of.permits.evicted),
            ("queue_timeout", of.permits.timed_out),
        ];
        counts.map(|(reason, n)| (Labels(vec![("limit", &*of.name), ("reason", reason)]), n))
    });
    let help = "Requests that got no permit of a concurrency limit.";
    page.counter("ratekeeper_concurrency_rejected_total", help, rejected);
}

fn labels(stats: &ConcurrencyStats) -> Labels<'_> {
    Labels(vec![("limit", &*stats.name)])
}

fn shedding(page: &mut Page, limiter: &PolicyLimiter) {
    let (stats, active) = (limiter.engine().shed_stats(), limiter.policy().active());
    if stats.is_empty() {
        return;
    }
    let requests = active.policy().classes().iter().zip(&stats).flat_map(|(class, stats)| {
        let counts = [("admitted", stats.admitted), ("shed", stats.shed)];
        counts.map(|(outcome, n)| (Labels(vec![("class", class), ("outcome", outcome)]), n))
    });
    let help = "Requests of each priority class that were admitted or shed.";
    page.counter("ratekeeper_shedding_requests_total", help, requests);
}
