//! A command that applies a limit to a key, and its reply.

use std::sync::Arc;

use ratekeeper::refusals::Decided;
use ratekeeper::{Applied, Charge, ChargesError, Cost, Decision, Engine, HoldId, Limit, MaxDebt};
use ratekeeper::{MaybeReady, Micros, Op, StoreError, Wait};

use super::RespServer;
use super::codec::ReplyWriter;
use super::hold_command::write_id;
use crate::serve::recorded::{outcome_of, record_check};
use crate::serve::request_metrics::Outcome;

/// A command that applies a limit to a key.
pub(super) struct RateCommand<'a> {
    pub(super) action: Action,
    pub(super) limit: &'a Arc<Limit>,
    pub(super) key: &'a [u8],
    pub(super) cost: Cost,
    pub(super) overdraft: Option<MaxDebt>,
    pub(super) format: ReplyFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Apply(Op),
    Reset,
}

/// How a decision is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyFormat {
    /// Five integers, as in redis-cell.
    Throttle,
    /// The same for a quantity of 0, which is always allowed.
    ThrottlePeek,
    /// A map of names and values.
    Named,
}

/// A command that is in flight or finished.
pub(super) enum Running {
    Apply(MaybeReady<Result<Applied, ChargesError>>),
    Reset(MaybeReady<Result<(), StoreError>>),
}

/// The result of a command.
pub(super) enum Finished {
    Applied(Result<Applied, ChargesError>),
    Reset(Result<(), StoreError>),
}

impl RateCommand<'_> {
    /// Applies the command at a time that was read from the engine's clock.
    #[inline]
    pub(super) fn run(&self, engine: &Engine, now: Micros) -> Running {
        let charge = self.charge();
        match self.action {
            Action::Apply(op) => Running::Apply(engine.apply_at(op, &[charge], now)),
            Action::Reset => Running::Reset(engine.reset(&charge)),
        }
    }

    #[inline]
    fn charge(&self) -> Charge<'_> {
        let charge = Charge::new(self.limit, self.key).cost(self.cost);
        match self.overdraft {
            Some(max_debt) => charge.overdraft(max_debt),
            None => charge,
        }
    }

    /// Writes the reply, records the decision, and counts it. Only a check counts as allowed or denied.
    #[inline]
    pub(super) fn reply(
        &self,
        finished: &Finished,
        server: &RespServer,
        now: Micros,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        let checked = match (finished, self.action) {
            (Finished::Applied(Ok(applied)), Action::Apply(Op::Check)) => Some(applied),
            _ => None,
        };
        let is_denied = checked.is_some_and(|applied| !applied.allowed());
        let has_id = is_denied && self.format == ReplyFormat::Named;
        let request_id = has_id.then(|| server.limiter.refusals().new_request_id());
        if let Some(applied) = checked {
            let outcome = outcome_of(!is_denied);
            let decided = Decided::new(self.limit.name(), self.key, outcome, now);
            let decided = decided.by(request_id.as_ref(), "resp");
            record_check(&server.limiter, &decided, &[self.charge()], applied);
        }
        let outcome = finished.write(self.action, self.format, request_id.as_deref(), reply);
        server.count_name(self.limit.name(), self.key, outcome, now);
        outcome
    }
}

impl Running {
    /// Returns the result if the command is finished; otherwise itself, to be awaited.
    #[expect(clippy::result_large_err, reason = "a box would allocate for each command")]
    #[inline]
    pub(super) fn try_now(self) -> Result<Finished, Self> {
        match self {
            Self::Apply(applying) => applying.try_now().map(Finished::Applied).map_err(Self::Apply),
            Self::Reset(resetting) => resetting.try_now().map(Finished::Reset).map_err(Self::Reset),
        }
    }

    pub(super) async fn finish(self) -> Finished {
        match self {
            Self::Apply(applying) => Finished::Applied(applying.await),
            Self::Reset(resetting) => Finished::Reset(resetting.await),
        }
    }
}

impl Finished {
    #[inline]
    fn write(
        &self,
        action: Action,
        format: ReplyFormat,
        request_id: Option<&str>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        match self {
            Self::Applied(Ok(applied)) => {
                format.write(applied, applied.is_degraded(), request_id, reply);
                match action {
                    Action::Apply(Op::Check) => Outcome::of(applied.allowed()),
                    _ => Outcome::Other,
                }
            }
            Self::Reset(Ok(())) => {
                reply.ok();
                Outcome::Other
            }
            Self::Applied(Err(error)) => write_error(error, reply),
            Self::Reset(Err(error)) => write_error(error, reply),
        }
    }

    pub(super) fn is_degraded(&self) -> bool {
        matches!(self, Self::Applied(Ok(applied)) if applied.is_degraded())
    }
}

#[cold]
fn write_error(error: &dyn std::error::Error, reply: &mut ReplyWriter<'_>) -> Outcome {
    reply.error(&format!("ERR {error}"));
    Outcome::Error
}

impl ReplyFormat {
    #[inline]
    fn write(
        self,
        decision: &Decision,
        is_degraded: bool,
        request_id: Option<&str>,
        reply: &mut ReplyWriter<'_>,
    ) {
        match self {
            Self::Throttle => write_throttle(decision, decision.wait(), reply),
            Self::ThrottlePeek => write_throttle(decision, Wait::None, reply),
            Self::Named => {
                let ids = request_id.map(|id| ("request_id", ReplyId::Request(id)));
                write_named(decision, is_degraded, ids.as_slice(), reply);
            }
        }
    }
}

#[inline]
fn write_throttle(decision: &Decision, wait: Wait, reply: &mut ReplyWriter<'_>) {
    let (limited, retry_after) = match wait {
        Wait::None => (0, -1),
        Wait::Micros(us) => (1, us.div_ceil(1_000_000) as i64),
        Wait::Never => (1, -1),
    };
    reply.array(5);
    reply.integer(limited);
    reply.count(decision.limit());
    reply.count(decision.remaining());
    reply.integer(retry_after);
    reply.count((decision.reset_after().as_micros() as u64).div_ceil(1_000_000));
}

/// An id in a reply.
pub(super) enum ReplyId<'a> {
    /// Of a reservation, or none.
    Hold(Option<HoldId>),
    /// Of a refused request.
    Request(&'a str),
}

/// Writes a decision, and ids with their names.
pub(super) fn write_named(
    decision: &Decision,
    is_degraded: bool,
    ids: &[(&str, ReplyId<'_>)],
    reply: &mut ReplyWriter<'_>,
) {
    reply.map(8 + usize::from(decision.is_cut()) + ids.len());
    reply.text("allowed");
    reply.boolean(decision.allowed());
    reply.text("limit");
    reply.count(decision.limit());
    reply.text("remaining");
    reply.count(decision.remaining());
    reply.text("retry_after_ms");
    reply.integer(match decision.wait() {
        Wait::Micros(us) => us.div_ceil(1_000) as i64,
        Wait::None | Wait::Never => -1,
    });
    reply.text("reset_after_ms");
    reply.count((decision.reset_after().as_micros() as u64).div_ceil(1_000));
    reply.text("delay_ms");
    reply.count((decision.delay().as_micros() as u64).div_ceil(1_000));
    reply.text("exceeds_capacity");
    reply.boolean(decision.exceeds_capacity());
    reply.text("degraded");
    reply.boolean(is_degraded);
    if decision.is_cut() {
        reply.text("cut");
        reply.boolean(true);
    }
    for (name, id) in ids {
        reply.text(name);
        match id {
            ReplyId::Hold(id) => write_id(*id, reply),
            ReplyId::Request(id) => reply.text(id),
        }
    }
}
