//! The door without a network: what bytes mean, what commands answer.

mod codec;
mod commands;
mod connection;
mod reading;

use std::sync::Arc;
use std::time::Duration;

use ratekeeper::policy::NoSources;
use ratekeeper::{ManualClock, Policy, PolicyLimiter};
use ratekeeper_core::Micros;

use super::{Bounds, Passwords, RespDoor};
use crate::accept::Seats;
use crate::tokens::Tokens;

const BOUNDS: Bounds = Bounds { idle: Duration::from_secs(60), stuck: Duration::from_secs(5) };

const NOW: Micros = Micros::new(1_700_000_000_000_000);

/// A door with counts in memory, at a time that stands still.
fn door(passwords: &[&str]) -> (Arc<RespDoor>, ManualClock) {
    door_of("version: 1\nlimits: []\n", NOW, passwords)
}

/// A door with this policy, at a time that stands still.
fn door_of(policy: &str, now: Micros, passwords: &[&str]) -> (Arc<RespDoor>, ManualClock) {
    let clock = ManualClock::at(now);
    let policy = Policy::parse("test", policy, &NoSources).unwrap();
    let gate = PolicyLimiter::with_clock(policy, clock.clone()).unwrap();
    let passwords = Passwords::new(Tokens::of(passwords).into());
    (Arc::new(RespDoor::new(gate, passwords, BOUNDS, Seats::new(10))), clock)
}
