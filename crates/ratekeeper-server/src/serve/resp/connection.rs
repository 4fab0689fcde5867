//! Serves one connection.
//!
//! Commands that have arrived together are executed in one go, and their replies leave in one write. If the
//! store is shared, commands are sent to it in their order, none waits for the reply to the one before, and
//! replies leave in order.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::unconstrained;

use super::RespDoor;
use super::codec::{Parsed, Protocol, ProtocolError, Reply, Spans, parse};
use super::commands::{Call, Flow, Step, begin};
use super::limits::Limits;
use super::pending::PendingReplies;
use super::session::Session;
use super::wire::{Read, Wire};
use crate::accept::Door;
use crate::drain::Drain;
use crate::serve::meters::{Outcome, Tally};

/// When so much is to be written, that comes first.
pub(super) const OUTPUT_MAX: usize = 64 << 10;

/// What the connections of one thread share.
pub(crate) struct Worker {
    pub(super) door: Arc<RespDoor>,
    drain: Drain,
    /// Only this thread takes it, and never across a wait.
    pub(super) desk: Mutex<Desk>,
}

/// What it takes to work off commands.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) limits: Limits,
    pub(super) spans: Spans,
}

/// Why working off commands has come to a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// There is no whole command left.
    Input,
    /// There is enough to write.
    Output,
    /// This was the last command.
    Close,
}

impl Door for Worker {
    const PROTOCOLS: &'static [&'static [u8]] = &[];

    async fn serve<S>(self: Arc<Self>, stream: S, _: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if let Err(error) = self.converse(stream).await {
            tracing::debug!(%error, "connection failed");
        }
    }

    fn refuse(stream: TcpStream) {
        if let Ok(mut stream) = stream.into_std() {
            let _ = stream.write(b"-ERR max number of clients reached\r\n");
        }
    }
}

impl Worker {
    pub(crate) fn new(door: Arc<RespDoor>, drain: Drain) -> Self {
        Self { door, drain, desk: Mutex::default() }
    }

    /// Serves a connection, with or without TLS, until the client goes or the end begins.
    pub(super) async fn converse<S>(&self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let mut session = Session::new(id, self.door.passwords.are_wanted());
        let mut wire = Wire::new(stream, self.door.bounds, &self.drain);
        if !session.is_trusted {
            wire.expect_password();
        }
        self.serve_commands(&mut wire, &mut session).await?;
        wire.close().await
    }

    async fn serve_commands<S>(&self, wire: &mut Wire<S>, session: &mut Session) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut pending = PendingReplies::default();
        let mut is_open = true;
        loop {
            let stop = match is_open {
                true => self.execute(wire, session, &mut pending),
                false => Stop::Input,
            };
            is_open &= stop != Stop::Close;
            if !wire.output.is_empty() {
                wire.flush().await?;
            }
            let wants_input = is_open && stop == Stop::Input;
            if pending.is_empty() {
                if !is_open || wants_input && wire.read().await? != Read::More {
                    return Ok(());
                }
                continue;
            }
            // Not constrained by the runtime's budget: it would defer commands that exceed it, and wake
            // them in reverse order.
            tokio::select! {
                Some(reply) = unconstrained(pending.next()) => {
                    wire.output.extend_from_slice(&reply);
                    while wire.output.len() < OUTPUT_MAX {
                        let Some(Some(reply)) = unconstrained(pending.next()).now_or_never() else { break };
                        wire.output.extend_from_slice(&reply);
                    }
                }
                read = wire.read(), if wants_input => is_open = read? == Read::More,
            }
        }
    }

    /// Executes the commands that have arrived. They arrived together, so it is the same time for all.
    fn execute<S>(
        &self,
        wire: &mut Wire<S>,
        session: &mut Session,
        pending: &mut PendingReplies,
    ) -> Stop
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        let Desk { limits, spans } = &mut *desk;
        let (now, door) = (self.door.gate.engine().now(), &*self.door);
        let (mut at, mut tally) = (0, Tally::default());
        let mut queued = Vec::new();
        let stop = loop {
            if wire.output.len() >= OUTPUT_MAX || pending.is_full() {
                break Stop::Output;
            }
            // A reply must not overtake those that are pending.
            let out = if pending.is_empty() { &mut wire.output } else { &mut queued };
            let len = match parse(&mut wire.input[at..], spans) {
                Ok(Parsed::Command(len)) => len,
                Ok(Parsed::Part) => break Stop::Input,
                Err(error) => {
                    complain(error, out);
                    pending.push_ready(&mut queued);
                    break Stop::Close;
                }
            };
            let args = spans.of(&wire.input[at..]);
            at += len;
            if args.len() == 0 {
                continue;
            }
            let before = out.len();
            let call = Call { args, door, session: &mut *session, out: &mut *out };
            match begin(call, limits) {
                Step::Rate(command) => match command.run(door.gate.engine(), now).try_now() {
                    Ok(finished) => {
                        let mut reply = Reply::new(out, session.protocol);
                        let outcome = finished.write(command.action, command.format, &mut reply);
                        door.note(command.limit, command.key, outcome, now);
                        door.trace(command.limit, outcome, finished.is_degraded(), now);
                        tally.add(outcome);
                    }
                    Err(running) => {
                        pending.push(&self.door, &command, running, session.protocol, now);
                    }
                },
                Step::Replied(flow) => {
                    tally.add(of_answer(&out[before..]));
                    if flow == Flow::Close {
                        pending.push_ready(&mut queued);
                        break Stop::Close;
                    }
                }
            }
            pending.push_ready(&mut queued);
        };
        wire.work_off(at);
        if session.is_trusted {
            wire.welcome();
        }
        // Their replies leave together, so it took as long for each of them.
        if !tally.is_empty() {
            door.meter.record(&tally, door.gate.engine().now().since(now));
        }
        stop
    }
}

/// What became of a command that asked nothing of the store.
pub(super) fn of_answer(answer: &[u8]) -> Outcome {
    if answer.starts_with(b"-") { Outcome::Error } else { Outcome::Other }
}

pub(super) fn complain(error: ProtocolError, output: &mut Vec<u8>) {
    Reply::new(output, Protocol::Two).error(&format!("ERR Protocol error: {error}"));
}
