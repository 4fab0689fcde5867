//! The door that speaks Redis' protocol: `CL.THROTTLE` for those who have redis-cell, and commands of
//! our own for every algorithm.
//!
//! `connection` serves a connection: it reads what has come, `codec` finds
//! the commands in it, `commands` knows what they mean, and `rate_command` applies those that are about a
//! limit. Replies that a shared store has not given yet wait in `pending`.

mod codec;
mod commands;
mod connection;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod limits;
mod passwords;
mod pending;
mod rate_command;
mod session;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use ratekeeper::PolicyLimiter;
use ratekeeper_core::{Limit, Micros};

use super::meters::{DoorMeter, Meters, Outcome};
use crate::accept::Seats;
use crate::top::Top;
use crate::trace::{self, Question};

pub(crate) use connection::Worker;
pub(crate) use passwords::Passwords;

/// How much of anything there may be, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// A connection on which no command comes is closed after this.
    pub(crate) idle: Duration,
    /// One that does not take its answers is closed after this.
    pub(crate) stuck: Duration,
}

/// What all connections of this door share.
pub(crate) struct RespDoor {
    gate: PolicyLimiter,
    passwords: Passwords,
    bounds: Bounds,
    began: Micros,
    seats: Arc<Seats>,
    meter: Arc<DoorMeter>,
    top: Arc<Top>,
}

impl RespDoor {
    pub(crate) fn new(
        gate: PolicyLimiter,
        passwords: Passwords,
        bounds: Bounds,
        seats: Arc<Seats>,
    ) -> Self {
        let began = gate.engine().now();
        let (meter, top) = (Arc::default(), Arc::default());
        Self { gate, passwords, bounds, began, seats, meter, top }
    }

    /// The same, with what it does for everybody to see.
    pub(crate) fn watched_by(self, meters: &Meters) -> Self {
        Self { meter: Arc::clone(&meters.resp), top: Arc::clone(&meters.top), ..self }
    }

    /// Tells of a question that has been answered, if anybody wants to know.
    #[inline]
    fn trace(&self, limit: &Limit, outcome: Outcome, is_degraded: bool, began: Micros) {
        if trace::is_on() {
            trace::tell(&Question {
                door: "resp",
                limit: Some(limit.name()),
                outcome: outcome.name(),
                is_degraded,
                began,
                ended: self.gate.engine().now(),
                parent: None,
            });
        }
    }

    #[inline]
    fn note(&self, limit: &Limit, key: &[u8], outcome: Outcome, now: Micros) {
        if let Outcome::Allowed | Outcome::Denied = outcome {
            self.top.count(limit.name(), key, outcome == Outcome::Denied, now);
        }
    }

    /// Commands that were answered so far.
    pub(crate) fn commands(&self) -> u64 {
        self.meter.total()
    }
}
