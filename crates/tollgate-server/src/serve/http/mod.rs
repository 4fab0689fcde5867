//! The HTTP door: questions and answers in JSON, and forward-auth for proxies.

mod ask;
mod auth;
mod connection;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod held;
mod peek;
mod reply;
mod reset;
mod routes;

use std::sync::Arc;

use tollgate::{Clock, Gate, SystemClock};

use super::envoy::EnvoyDoor;
use super::tokens::Tokens;
use held::Held;

pub(crate) use connection::{Limits, serve};

/// What the HTTP door needs to answer.
pub(crate) struct HttpDoor {
    gate: Gate,
    /// Reservations and permits that callers hold.
    held: Held,
    /// Decides about descriptors, if there are limits for them.
    envoy: Option<Arc<EnvoyDoor>>,
    /// Who may ask, if not everybody.
    tokens: Tokens,
}

impl HttpDoor {
    pub(crate) fn new(gate: Gate, tokens: Tokens, envoy: Option<Arc<EnvoyDoor>>) -> Arc<Self> {
        Arc::new(Self { gate, held: Held::default(), envoy, tokens })
    }

    fn now_us(&self) -> u64 {
        SystemClock.now().get()
    }
}
