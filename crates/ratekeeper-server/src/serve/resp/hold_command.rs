//! A command about a reservation or a permit, and its reply.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper::refusals::{Decided, Details, RecordedReason};
use ratekeeper::{
    Charge, Cost, HoldId, Limit, MaxDebt, Micros, PermitError, ReservationError, ReserveError,
    Reserved, Settled, TooManyHeld,
};

use super::RespServer;
use super::codec::ReplyWriter;
use super::rate_command::{ReplyId, write_named};
use crate::serve::recorded::{outcome_of, record_check};
use crate::serve::request_metrics::Outcome;

/// A command about a reservation or a permit. It owns what it needs, because it may wait for the store.
pub(super) enum HoldCommand {
    Reserve {
        limit: Arc<Limit>,
        key: Box<[u8]>,
        estimate: Cost,
        overdraft: Option<MaxDebt>,
        valid: Duration,
    },
    Settle {
        id: HoldId,
        actual: u64,
    },
    Acquire {
        name: Box<str>,
        key: Box<[u8]>,
        max: u64,
        valid: Duration,
    },
    Release {
        id: HoldId,
    },
}

/// The result of a command.
enum HoldResult {
    Reserved(Result<Reserved, ReserveError>),
    Settled(Result<Box<Settled>, ReservationError>),
    Acquired { held: Result<Option<HoldId>, TooManyHeld>, max: u64 },
    Released(Result<(), PermitError>),
}

impl HoldCommand {
    /// Executes the command, and writes the reply.
    pub(super) async fn run(self, server: &RespServer, reply: &mut ReplyWriter<'_>) -> Outcome {
        let engine = server.limiter.engine();
        let began = engine.now();
        let finished = match &self {
            Self::Reserve { limit, key, estimate, overdraft, valid } => {
                let charge = reserve_charge(limit, key, *overdraft);
                HoldResult::Reserved(engine.reserve(&[charge], *estimate, *valid).await)
            }
            Self::Settle { id, actual } => {
                HoldResult::Settled(engine.settle(*id, *actual).await.map(Box::new))
            }
            Self::Acquire { name, key, max, valid } => {
                HoldResult::Acquired { held: engine.hold(name, key, *max, *valid).await, max: *max }
            }
            Self::Release { id } => HoldResult::Released(engine.release(*id).await),
        };
        let is_degraded = finished.is_degraded();
        self.record(&finished, server, began);
        let outcome = finished.write(reply);
        if let Self::Reserve { limit, .. } = &self {
            server.trace(limit, outcome, is_degraded, began);
        }
        if let Self::Reserve { key, .. } | Self::Acquire { key, .. } = &self {
            server.count_name(self.limit_name(), key, outcome, engine.now());
        }
        outcome
    }

    /// Records whether a reservation or a permit was refused.
    fn record(&self, finished: &HoldResult, server: &RespServer, now: Micros) {
        let name = self.limit_name();
        match (self, finished) {
            (
                Self::Reserve { limit, key, estimate, overdraft, .. },
                HoldResult::Reserved(Ok(reserved)),
            ) => {
                let applied = reserved.applied();
                let decided = Decided::new(name, key, outcome_of(applied.allowed()), now);
                let charge = reserve_charge(limit, key, *overdraft).cost(*estimate);
                let decided = decided.by(None, "resp");
                record_check(&server.limiter, &decided, &[charge], applied);
            }
            (Self::Acquire { key, max, .. }, HoldResult::Acquired { held: Ok(None), .. }) => {
                let decided = Decided::new(name, key, outcome_of(false), now).by(None, "resp");
                server.limiter.refusals().record(&decided, || {
                    Details::new(RecordedReason::InFlight { max: *max }, false)
                });
            }
            _ => {}
        }
    }

    fn limit_name(&self) -> &str {
        match self {
            Self::Reserve { limit, .. } => limit.name(),
            Self::Acquire { name, .. } => name,
            Self::Settle { .. } | Self::Release { .. } => "",
        }
    }
}

fn reserve_charge<'c>(limit: &'c Limit, key: &'c [u8], overdraft: Option<MaxDebt>) -> Charge<'c> {
    let charge = Charge::new(limit, key);
    match overdraft {
        Some(max_debt) => charge.overdraft(max_debt),
        None => charge,
    }
}

impl HoldResult {
    fn is_degraded(&self) -> bool {
        matches!(self, Self::Reserved(Ok(reserved)) if reserved.applied().is_degraded())
    }

    fn write(self, reply: &mut ReplyWriter<'_>) -> Outcome {
        match self {
            Self::Reserved(Ok(reserved)) => {
                let applied = reserved.applied();
                write_named(
                    applied,
                    applied.is_degraded(),
                    &[("reservation", ReplyId::Hold(reserved.id()))],
                    reply,
                );
                Outcome::of(applied.allowed())
            }
            Self::Settled(Ok(settled)) => {
                write_named(settled.applied(), settled.applied().is_degraded(), &[], reply);
                Outcome::Other
            }
            Self::Acquired { held: Ok(id), max } => {
                reply.map(3);
                reply.text("allowed");
                reply.boolean(id.is_some());
                reply.text("max");
                reply.count(max);
                reply.text("permit");
                write_id(id, reply);
                Outcome::of(id.is_some())
            }
            Self::Released(Ok(())) => {
                reply.ok();
                Outcome::Other
            }
            Self::Reserved(Err(error)) => write_error("ERR", &error, reply),
            Self::Acquired { held: Err(error), .. } => write_error("ERR", &error, reply),
            Self::Settled(Err(error)) => {
                let is_store = matches!(error, ReservationError::Store(_));
                write_error(code(is_store), &error, reply)
            }
            Self::Released(Err(error)) => {
                write_error(code(matches!(error, PermitError::Store(_))), &error, reply)
            }
        }
    }
}

/// Returns the error code of what is not held, or of a store that is unavailable.
fn code(is_store: bool) -> &'static str {
    if is_store { "UNAVAILABLE" } else { "GONE" }
}

fn write_error(code: &str, error: &dyn std::error::Error, reply: &mut ReplyWriter<'_>) -> Outcome {
    reply.error(&format!("{code} {error}"));
    Outcome::Error
}

pub(super) fn write_id(id: Option<HoldId>, reply: &mut ReplyWriter<'_>) {
    match id {
        Some(id) => reply.text(&id.to_string()),
        None => reply.null(),
    }
}
