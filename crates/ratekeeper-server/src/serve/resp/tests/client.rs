//! A client of a server with its store in memory.

use std::sync::Arc;

use ratekeeper::ManualClock;

use super::reply_text::read_all;
use super::server;
use crate::serve::request_metrics::Tally;
use crate::serve::resp::RespServer;
use crate::serve::resp::codec::{Parsed, Spans, parse};
use crate::serve::resp::command_limits::DatabaseLimits;
use crate::serve::resp::commands::Flow;
use crate::serve::resp::executor::{Executed, Executor};
use crate::serve::resp::session::Session;

/// A client of a server.
pub(super) struct TestClient {
    pub(super) server: Arc<RespServer>,
    pub(super) clock: ManualClock,
    session: Session,
    limits: DatabaseLimits,
}

impl TestClient {
    pub(super) fn new(passwords: &[&str]) -> Self {
        let (server, clock) = server(passwords);
        let session = Session::new(7, !passwords.is_empty());
        Self { server, clock, session, limits: DatabaseLimits::default() }
    }

    pub(super) fn send(&mut self, line: &str) -> (String, Flow) {
        let mut input = format!("{line}\n").into_bytes();
        let (mut spans, mut out) = (Spans::default(), Vec::new());
        assert_eq!(parse(&mut input, &mut spans), Ok(Parsed::Command(input.len())));
        let (server, now) = (&self.server, self.server.limiter.engine().now());
        let (limits, tally) = (&mut self.limits, Tally::default());
        let mut executor = Executor { server, limits, now, tally };
        let executed = executor.execute(spans.of(&input), &mut self.session, &mut out);
        let Executed::Replied(flow) = executed else { unreachable!("the store is in memory") };
        (read_all(&out).join("\n"), flow)
    }

    /// Sends commands and compares the replies; `+3s` moves the clock instead.
    pub(super) fn check(&mut self, script: &[(&str, &str)]) {
        for (line, reply) in script {
            match line.strip_prefix('+') {
                Some(span) => self.clock.advance(ratekeeper_core::parse_duration(span).unwrap()),
                None => assert_eq!(without_id(&self.send(line).0), *reply, "{line}"),
            }
        }
    }
}

/// Sends commands as a new client, without passwords.
pub(super) fn check(script: &[(&str, &str)]) {
    TestClient::new(&[]).check(script);
}

/// Removes the random id of a refused request from a reply.
fn without_id(reply: &str) -> String {
    match reply.split_once(" request_id ") {
        Some((before, after)) => before.to_string() + &after[32..],
        None => reply.to_string(),
    }
}
