//! The current state of the limits that apply, from the policy's store.

use std::time::Duration;

use ratekeeper::policy::{AppliedLimit, Explanation, LimitOutcome};
use ratekeeper::{Decision, PolicyLimiter};

/// How often and after which pause a store is tried that this process has just begun to connect to, two seconds in
/// all: longer than the deadline of a request.
pub(super) const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// The states of the limits that apply, in their order; empty without `--state`.
#[derive(Default)]
pub(super) struct LimitStates {
    pub(super) each: Vec<LimitState>,
    pub(super) is_memory: bool,
}

pub(super) enum LimitState {
    /// The decision that a request would get now.
    Known(Decision),
    /// The store did not respond.
    NoResponse,
    /// A concurrency limit: only the process that serves knows how many requests are in flight.
    Concurrency,
}

impl LimitStates {
    /// Reads the states from the store, which is tried so many times until it responds.
    pub(super) async fn read(
        limiter: &PolicyLimiter,
        explanation: &Explanation<'_>,
        tries: u32,
    ) -> Self {
        let is_memory = limiter.policy().active().policy().store().url.is_none();
        let mut each = Vec::new();
        for one in applied(explanation) {
            // Later, a store that does not respond is not tried again.
            let tries = if each.is_empty() { tries } else { 1 };
            each.push(state(limiter, one, tries).await);
        }
        Self { each, is_memory }
    }
}

/// Returns all limits that apply, and shares of them.
pub(super) fn applied<'e>(
    explanation: &'e Explanation<'_>,
) -> impl Iterator<Item = &'e AppliedLimit> {
    explanation.limits.iter().flat_map(|limit| match &limit.outcome {
        LimitOutcome::Applies(applied) => applied.as_slice(),
        _ => &[],
    })
}

/// Reads the state of a limit.
async fn state(limiter: &PolicyLimiter, one: &AppliedLimit, tries: u32) -> LimitState {
    for n in 0..tries {
        if n > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        match limiter.peek(one).await {
            None => return LimitState::Concurrency,
            Some(applied) if !applied.is_degraded() => {
                return LimitState::Known(**applied.verdict());
            }
            Some(_) => {}
        }
    }
    LimitState::NoResponse
}
