//! What is left at present, as the policy's store says.

use std::time::Duration;

use ratekeeper::policy::{AppliedLimit, Explanation, LimitOutcome};
use ratekeeper::{Decision, PolicyLimiter};
use tokio::runtime::Builder;

use crate::failure::Failure;

/// A person waits longer than a request does, but not for ever.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// Of each limit that applies, in their order; nothing if it was not asked for.
#[derive(Default)]
pub(super) struct States {
    pub(super) each: Vec<State>,
    pub(super) is_memory: bool,
}

pub(super) enum State {
    Told(Decision),
    /// The store did not answer.
    NoAnswer,
    /// How many are in flight is known to those who let them in.
    InFlight,
}

impl States {
    pub(super) fn ask(gate: &PolicyLimiter, explained: &Explanation<'_>) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::io)?;
        let is_memory = gate.policy().active().policy().store().url.is_none();
        let each = runtime.block_on(async {
            let mut each = Vec::new();
            for one in applied(explained) {
                each.push(state(gate, one, each.is_empty()).await);
            }
            each
        });
        Ok(Self { each, is_memory })
    }
}

/// All limits that apply, and shares of them.
pub(super) fn applied<'e>(
    explained: &'e Explanation<'_>,
) -> impl Iterator<Item = &'e AppliedLimit> {
    explained.limits.iter().flat_map(|verdict| match &verdict.outcome {
        LimitOutcome::Applies(applied) => applied.as_slice(),
        _ => &[],
    })
}

/// The first time, it takes a while to connect; after that a store that is silent stays silent.
async fn state(gate: &PolicyLimiter, one: &AppliedLimit, is_first: bool) -> State {
    let tries = if is_first { TRIES } else { 1 };
    for n in 0..tries {
        if n > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        match gate.peek(one).await {
            None => return State::InFlight,
            Some(applied) if !applied.is_degraded() => return State::Told(**applied.verdict()),
            Some(_) => {}
        }
    }
    State::NoAnswer
}
