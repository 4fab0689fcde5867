//! The door that speaks Redis' protocol: `CL.THROTTLE` for those who have redis-cell, and commands of
//! our own for every algorithm.
//!
//! `connection` serves a connection: it reads what has come, `codec` finds
//! the commands in it, `commands` knows what they mean, and `ask` puts the question to the store. With
//! counts in memory, all commands that have come together are answered in one go, with one write. A
//! store elsewhere is asked for many at once (`pipeline`), and answers leave in order.

mod ask;
mod codec;
mod commands;
mod connection;
mod limits;
mod passwords;
mod pipeline;
mod session;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Gate;
use tollgate_core::Micros;

use crate::accept::Seats;

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
    gate: Gate,
    passwords: Passwords,
    bounds: Bounds,
    began: Micros,
    seats: Arc<Seats>,
    commands: AtomicU64,
}

impl RespDoor {
    pub(crate) fn new(gate: Gate, passwords: Passwords, bounds: Bounds, seats: Arc<Seats>) -> Self {
        let began = gate.now();
        Self { gate, passwords, bounds, began, seats, commands: AtomicU64::new(0) }
    }

    /// Commands that were answered so far.
    pub(crate) fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }
}
