//! Executes commands: each writes its reply, or is in flight to a shared store.

use std::mem;
use std::sync::Arc;

use futures_util::FutureExt;
use ratekeeper::{Micros, StoreError};

use super::RespServer;
use super::codec::{Args, ReplyWriter, RespVersion};
use super::command_limits::DatabaseLimits;
use super::commands::{Call, Flow, Step, dispatch};
use super::hold_command::HoldCommand;
use super::in_flight::InFlight;
use super::key_command::OwnedKeyCommand;
use super::session::Session;
use super::transaction::Transaction;
use crate::serve::request_metrics::{Outcome, Tally};

/// Executes commands that have arrived together, so the time is read once for all.
pub(super) struct Executor<'e> {
    pub(super) server: &'e Arc<RespServer>,
    pub(super) limits: &'e mut DatabaseLimits,
    pub(super) now: Micros,
    /// The outcomes of commands that are not in flight.
    pub(super) tally: Tally,
}

/// What became of a command.
pub(super) enum Executed {
    /// The reply is written.
    Replied(Flow),
    InFlight(InFlight),
}

impl Executor<'_> {
    /// Executes a command, which has at least a name, and appends its reply to `out` unless it is in flight.
    #[inline]
    pub(super) fn execute(
        &mut self,
        args: Args<'_>,
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> Executed {
        let (server, now, start) = (self.server, self.now, out.len());
        let call = Call { args, server, session: &mut *session, out: &mut *out };
        match dispatch(call, self.limits) {
            Step::Rate(command) => match command.run(server.limiter.engine(), now).try_now() {
                Ok(finished) => {
                    let mut reply = ReplyWriter::new(out, session.protocol);
                    let outcome = command.reply(&finished, server, now, &mut reply);
                    server.trace(command.limit, outcome, finished.is_degraded(), now);
                    self.tally.add(outcome);
                    Executed::Replied(Flow::Continue)
                }
                Err(running) => {
                    let protocol = session.protocol;
                    Executed::InFlight(InFlight::rate(server, &command, running, protocol, now))
                }
            },
            Step::Replied(flow) => {
                self.tally.add(reply_outcome(&out[start..]));
                Executed::Replied(flow)
            }
            Step::Hold(command) => self.execute_hold(command, session.protocol, out),
            Step::Keys(command) => {
                let command = OwnedKeyCommand::from(command);
                self.execute_on_keys(command, session.protocol, out)
            }
            Step::Transaction(transaction) => self.execute_together(*transaction, session, out),
        }
    }

    fn execute_hold(
        &mut self,
        command: HoldCommand,
        protocol: RespVersion,
        out: &mut Vec<u8>,
    ) -> Executed {
        let server = self.server;
        if !server.limiter.engine().is_memory() {
            return Executed::InFlight(InFlight::hold(server, command, protocol, self.now));
        }
        // In memory nothing has to be waited for.
        let mut reply = ReplyWriter::new(out, protocol);
        if let Some(outcome) = command.run(server, &mut reply).now_or_never() {
            self.tally.add(outcome);
        }
        Executed::Replied(Flow::Continue)
    }

    fn execute_on_keys(
        &mut self,
        command: OwnedKeyCommand,
        protocol: RespVersion,
        out: &mut Vec<u8>,
    ) -> Executed {
        let server = self.server;
        if !server.limiter.engine().is_memory() {
            return Executed::InFlight(InFlight::keys(server, command, protocol, self.now));
        }
        // In memory nothing has to be waited for.
        if let Some(result) = command.run(server.limiter.engine()).now_or_never() {
            self.tally.add(write_integer(&result, &mut ReplyWriter::new(out, protocol)));
        }
        Executed::Replied(Flow::Continue)
    }

    /// Executes the commands of a transaction. The reply is an array of theirs.
    #[cold]
    fn execute_together(
        &mut self,
        transaction: Transaction,
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> Executed {
        let (mut replies, mut in_flight) = (Vec::new(), Vec::new());
        ReplyWriter::new(&mut replies, session.protocol).array(transaction.len());
        transaction.for_each(|args| {
            if let Executed::InFlight(reply) = self.execute(args, session, &mut replies) {
                in_flight.push((mem::take(&mut replies), reply));
            }
        });
        self.tally.add(Outcome::Other);
        if in_flight.is_empty() {
            out.append(&mut replies);
            return Executed::Replied(Flow::Continue);
        }
        Executed::InFlight(InFlight::transaction(in_flight, replies))
    }
}

/// Writes the reply of a command on keys.
pub(super) fn write_integer(
    result: &Result<i64, StoreError>,
    reply: &mut ReplyWriter<'_>,
) -> Outcome {
    match result {
        Ok(value) => {
            reply.integer(*value);
            Outcome::Other
        }
        Err(error) => {
            reply.error(&format!("ERR {error}"));
            Outcome::Error
        }
    }
}

/// Returns the outcome of a command that does not need the store.
fn reply_outcome(reply: &[u8]) -> Outcome {
    if reply.starts_with(b"-") { Outcome::Error } else { Outcome::Other }
}
