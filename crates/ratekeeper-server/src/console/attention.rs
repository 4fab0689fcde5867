//! What an operator should look at first.

use ratekeeper::PolicyLimiter;
use ratekeeper::shared::{BreakerState, StoreState};
use serde::Serialize;

use super::history::History;
use super::protection::open_breakers;
use crate::reload::LoadStatus;

/// The time over which the requests of a limit are counted.
const RECENT_US: u64 = 60_000_000;
/// A limit with fewer requests in that time is not mentioned.
const REQUESTS_MIN: u64 = 20;
/// A limit that refuses at least this share is mentioned, in percent.
const REFUSED_MIN: u64 = 20;

/// How soon something needs attention, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Urgency {
    Error,
    Warning,
    Note,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Attention {
    pub(super) urgency: Urgency,
    pub(super) text: String,
    /// What the error message says, such as the lines of a file.
    pub(super) details: Option<String>,
    /// The limit that it is about.
    pub(super) limit: Option<String>,
}

impl Attention {
    fn new(urgency: Urgency, text: impl Into<String>) -> Self {
        Self { urgency, text: text.into(), details: None, limit: None }
    }
}

/// Returns what needs attention, most urgent first.
pub(super) fn attention(
    limiter: &PolicyLimiter,
    loads: &LoadStatus,
    not_ready: Option<&str>,
    history: &History,
) -> Vec<Attention> {
    let mut all = Vec::new();
    if let Some(error) = &loads.last_error {
        let text = "The policy file was rejected; the policy before it stays active.";
        all.push(Attention {
            details: Some(error.clone()),
            ..Attention::new(Urgency::Error, text)
        });
    }
    all.extend(not_ready.map(|why| Attention::new(Urgency::Warning, format!("Not ready: {why}."))));
    all.extend(of_store(limiter));
    let evictions = limiter.engine().memory_stats().map_or(0, |memory| memory.evictions);
    if evictions > 0 {
        let text = format!(
            "{evictions} live keys were evicted, because there is no memory for more; raise keys_max."
        );
        all.push(Attention::new(Urgency::Warning, text));
    }
    all.extend(of_protection(limiter));
    all.extend(of_limits(limiter, history));
    all.sort_by_key(|attention| attention.urgency);
    all
}

fn of_store(limiter: &PolicyLimiter) -> Option<Attention> {
    let breaker = match limiter.engine().breaker_state() {
        Some(BreakerState::Open) => " Its circuit breaker is open.",
        Some(BreakerState::HalfOpen) => " Its circuit breaker is half-open.",
        _ => "",
    };
    let (urgency, text, error) = match limiter.engine().store_state()? {
        StoreState::Down(error) => (
            Urgency::Error,
            "The store is unavailable; limits are decided by their failure mode.",
            error.to_string(),
        ),
        StoreState::Partial { error, .. } => (
            Urgency::Error,
            "A part of the store is unavailable; its keys are decided by their failure mode.",
            error.to_string(),
        ),
        _ => return None,
    };
    let attention = Attention::new(urgency, format!("{text}{breaker}"));
    Some(Attention { details: Some(error), ..attention })
}

/// Returns the circuit breakers that are open, and the classes that are shed now.
fn of_protection(limiter: &PolicyLimiter) -> Vec<Attention> {
    let active = limiter.policy().active();
    let warning = |text| Attention::new(Urgency::Warning, text);
    let breakers = open_breakers(&active).map(|dependency| {
        let upstream = dependency.upstream().map(|upstream| format!(" at {upstream}"));
        let (name, upstream) = (dependency.name(), upstream.unwrap_or_default());
        warning(format!("The circuit breaker of {name}{upstream} is open; calls are rejected."))
    });
    let stats = limiter.engine().shed_stats();
    let classes = active.policy().classes().iter().zip(&stats);
    let shed = classes.filter(|(_, stats)| stats.shed_share > 0.0).map(|(class, stats)| {
        let percent = (stats.shed_share * 100.0).ceil();
        warning(format!("The service is overloaded: {percent}% of the class {class} is shed."))
    });
    breakers.chain(shed).collect()
}

/// Returns the limits that refuse much, or would but for shadow mode.
fn of_limits(limiter: &PolicyLimiter, history: &History) -> Vec<Attention> {
    let stats = limiter.telemetry().limits();
    let found = stats.iter().filter_map(|stats| {
        let [allowed, _, denied, shadow] = history.sum(history.slot(&stats.name)?, RECENT_US);
        let requests = allowed + denied + shadow;
        let share = |count: u64| (count * 100).checked_div(requests).unwrap_or(0);
        let (count, what) = match (share(denied), share(shadow)) {
            _ if requests < REQUESTS_MIN => return None,
            (REFUSED_MIN.., _) => (denied, "refused"),
            (_, REFUSED_MIN..) => (shadow, "would have refused, but for shadow mode,"),
            _ => return None,
        };
        let text =
            format!("{} {what} {}% of its requests in the last minute.", stats.name, share(count));
        let attention = Attention::new(Urgency::Note, text);
        Some(Attention { limit: Some(stats.name.to_string()), ..attention })
    });
    found.collect()
}
