//! The Redis protocol (RESP): `CL.THROTTLE` for clients of redis-cell, and commands of our own for every
//! algorithm.
//!
//! `connection` serves a connection: `buffered_stream` reads the input, `codec` parses the commands, and
//! `executor` executes them. `commands` has one file for each group of commands; `rate_command`,
//! `hold_command` and `key_command` apply those that need the store. What waits for a shared store is `in_flight`, and its
//! replies are `pending`.

mod buffered_stream;
mod codec;
mod command_limits;
mod commands;
mod connection;
mod database;
mod executor;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hold_command;
mod in_flight;
mod key_command;
mod passwords;
mod pending;
mod rate_command;
mod session;
mod transaction;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use ratekeeper::PolicyLimiter;
use ratekeeper_core::{Limit, Micros};

use super::request_metrics::{Outcome, ProtocolMetrics, RequestMetrics};
use crate::listener::{ConnectionLimit, Timeouts};
use crate::serve::recorded::outcome_of;
use crate::top::Top;
use crate::trace::{self, DecisionInfo, DecisionSpan};

pub(crate) use connection::RespHandler;
pub(crate) use passwords::Passwords;

/// How long a client may take to send a command, and to authenticate.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);

/// Returns the timeouts of connections.
pub(crate) fn timeouts(idle: Duration, write: Duration) -> Timeouts {
    let (header, first_request) = (COMMAND_TIMEOUT, COMMAND_TIMEOUT);
    Timeouts { idle: Some(idle), header, first_request, write, unread_response: None }
}

/// What all connections share.
pub(crate) struct RespServer {
    limiter: PolicyLimiter,
    passwords: Passwords,
    timeouts: Timeouts,
    began: Micros,
    connections: Arc<ConnectionLimit>,
    metrics: Arc<ProtocolMetrics>,
    top: Arc<Top>,
}

impl RespServer {
    pub(crate) fn new(
        limiter: PolicyLimiter,
        passwords: Passwords,
        timeouts: Timeouts,
        connections: Arc<ConnectionLimit>,
    ) -> Self {
        let began = limiter.engine().now();
        let (metrics, top) = (Arc::default(), Arc::default());
        Self { limiter, passwords, timeouts, began, connections, metrics, top }
    }

    /// Returns the server with these request metrics.
    pub(crate) fn with_metrics(self, metrics: &RequestMetrics) -> Self {
        Self { metrics: Arc::clone(&metrics.resp), top: Arc::clone(&metrics.top), ..self }
    }

    /// Records a span of a decision, if tracing is on.
    #[inline]
    fn trace(&self, limit: &Limit, outcome: Outcome, is_degraded: bool, began: Micros) {
        if trace::is_on() {
            let info = &DecisionInfo { limit: Some(limit.name().to_string()), is_degraded };
            let (protocol, outcome, ended) = ("resp", outcome.name(), self.limiter.engine().now());
            trace::record(&DecisionSpan { protocol, info, outcome, began, ended, parent: None });
        }
    }

    /// Counts a decision for the list of top keys.
    #[inline]
    fn count_name(&self, limit_name: &str, key: &[u8], outcome: Outcome, now: Micros) {
        if let Outcome::Allowed | Outcome::Denied = outcome {
            self.top.count(limit_name, key, outcome_of(outcome == Outcome::Allowed), now);
        }
    }

    /// Returns the number of commands executed so far.
    pub(crate) fn commands(&self) -> u64 {
        self.metrics.total()
    }
}
