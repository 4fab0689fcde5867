//! The Redis protocol without a network: what bytes mean, what commands reply.

mod codec;
mod commands;
mod connection;
mod reading;

use std::sync::Arc;
use std::time::Duration;

use ratekeeper::policy::NoSources;
use ratekeeper::{ManualClock, Policy, PolicyLimiter};
use ratekeeper_core::Micros;

use super::{Passwords, RespServer, timeouts};
use crate::listener::ConnectionLimit;
use crate::tokens::Tokens;

const IDLE: Duration = Duration::from_secs(60);
const WRITE: Duration = Duration::from_secs(5);

const NOW: Micros = Micros::new(1_700_000_000_000_000);

/// A server with counts in memory, at a time that stands still.
fn door(passwords: &[&str]) -> (Arc<RespServer>, ManualClock) {
    door_of("version: 1\nlimits: []\n", NOW, passwords)
}

/// A server with this policy, at a time that stands still.
fn door_of(policy: &str, now: Micros, passwords: &[&str]) -> (Arc<RespServer>, ManualClock) {
    let clock = ManualClock::at(now);
    let policy = Policy::parse("test", policy, &NoSources).unwrap();
    let gate = PolicyLimiter::with_clock(policy, clock.clone()).unwrap();
    let passwords = Passwords::new(Tokens::of(passwords).into());
    (
        Arc::new(RespServer::new(gate, passwords, timeouts(IDLE, WRITE), ConnectionLimit::new(10))),
        clock,
    )
}
