//! The Redis protocol without a network.

mod codec;
mod commands;
mod connection;
mod holds;
mod reply_text;

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

/// Returns a server with its store in memory and a manual clock.
fn server(passwords: &[&str]) -> (Arc<RespServer>, ManualClock) {
    server_of("version: 1\nlimits: []\n", NOW, passwords)
}

/// Returns a server with this policy and a manual clock.
fn server_of(policy: &str, now: Micros, passwords: &[&str]) -> (Arc<RespServer>, ManualClock) {
    let clock = ManualClock::at(now);
    let policy = Policy::parse("test", policy, &NoSources).unwrap();
    let limiter = PolicyLimiter::with_clock(policy, clock.clone()).unwrap();
    let passwords = Passwords::new(Tokens::of(passwords).into());
    (
        Arc::new(RespServer::new(
            limiter,
            passwords,
            timeouts(IDLE, WRITE),
            ConnectionLimit::new(10),
        )),
        clock,
    )
}
