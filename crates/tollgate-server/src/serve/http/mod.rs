//! The HTTP door: questions and answers in JSON, and forward-auth for proxies.

mod ask;
mod auth;
mod connection;
mod held;
mod reply;
mod routes;

use std::sync::Arc;

use tollgate::{Clock, Gate, SystemClock};

use super::tokens::Tokens;
use held::Held;

pub(crate) use connection::{Limits, serve};

/// What the HTTP door needs to answer.
pub(crate) struct HttpDoor {
    gate: Gate,
    /// Reservations and permits that callers hold.
    held: Held,
    /// Who may ask, if not everybody.
    tokens: Tokens,
}

impl HttpDoor {
    pub(crate) fn new(gate: Gate, tokens: Tokens) -> Arc<Self> {
        Arc::new(Self { gate, held: Held::default(), tokens })
    }

    fn now_us(&self) -> u64 {
        SystemClock.now().get()
    }
}
