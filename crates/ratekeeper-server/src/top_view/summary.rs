//! The essentials in a line each.

use super::rates::Rates;
use super::state::State;
use super::table::number;
use crate::terminal::printable;

/// Returns what is asked and how it is: address, policy and store.
pub(super) fn server(state: &State) -> String {
    let status = &state.reading.status;
    let store = &status.store;
    let mut text = format!(
        "{} {}  policy {}  store {}",
        status.version, state.address, status.policy.version, store.state
    );
    if let Some(breaker) = &store.breaker {
        text += &format!("  breaker {breaker}");
    }
    if let Some(fallback) = &store.fallback {
        text += &format!("  nodes {}", fallback.nodes);
    }
    printable(&text)
}

/// Returns the decisions per second of all limits.
pub(super) fn rates(state: &State) -> String {
    let known: Vec<_> = state.rates.iter().flatten().copied().collect();
    if known.is_empty() && !state.reading.status.limits.is_empty() {
        return "decisions/s: not known before the next reading".into();
    }
    let all = known.into_iter().fold(Rates::default(), Rates::plus);
    format!(
        "decisions/s: admitted {}  denied {}  shadow {}  near limit {}",
        number(all.allowed),
        number(all.denied),
        number(all.shadow_denied),
        number(all.near_limit)
    )
}
