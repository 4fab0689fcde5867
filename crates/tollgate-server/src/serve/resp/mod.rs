//! The door that speaks Redis' protocol: `CL.THROTTLE` for those who have redis-cell, and commands of
//! our own for every algorithm.
//!
//! `door` accepts connections, and `connection` serves one: it reads what has come, `codec` finds
//! the commands in it, `commands` knows what they mean, and `ask` puts the question to the store. With
//! counts in memory, all commands that have come together are answered in one go, with one write. A
//! store elsewhere is asked for many at once (`pipeline`), and answers leave in order.

mod ask;
mod codec;
mod commands;
mod connection;
mod door;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod limits;
mod passwords;
mod pipeline;
mod session;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::Gate;
use tollgate_core::Micros;

pub(crate) use door::serve;
pub(crate) use passwords::Passwords;

/// How much of anything there may be, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) connections_max: usize,
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
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    connections: AtomicUsize,
    accepted: AtomicU64,
    rejected: AtomicU64,
    commands: AtomicU64,
}

/// What the door has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RespStats {
    /// Open at present.
    pub(crate) connections: usize,
    pub(crate) accepted: u64,
    /// Turned away because there were too many.
    pub(crate) rejected: u64,
    pub(crate) commands: u64,
}

impl RespDoor {
    pub(crate) fn new(gate: Gate, passwords: Passwords, bounds: Bounds) -> Self {
        let began = gate.now();
        Self { gate, passwords, bounds, began, counters: Counters::default() }
    }

    pub(crate) fn stats(&self) -> RespStats {
        let Counters { connections, accepted, rejected, commands } = &self.counters;
        RespStats {
            connections: connections.load(Ordering::Relaxed),
            accepted: accepted.load(Ordering::Relaxed),
            rejected: rejected.load(Ordering::Relaxed),
            commands: commands.load(Ordering::Relaxed),
        }
    }
}
