//! Serves a connection.
//!
//! Commands that have arrived together are executed in one go, and their replies leave in one write. If the
//! store is shared, commands are sent to it in their order, none waits for the reply to the one before, and
//! replies leave in order.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::unconstrained;

use super::RespServer;
use super::codec::{Parsed, Protocol, ProtocolError, Reply, Spans, parse};
use super::commands::{Call, Flow, Step, begin};
use super::limits::Limits;
use super::pending::PendingReplies;
use super::session::Session;
use super::wire::{Read, Wire};
use crate::listener::{Accepted, ConnState, ConnectionHandler, Drain, Ticks, drive};
use crate::serve::request_metrics::{Outcome, Tally};

/// When so much is to be written, it is written before more commands are executed.
pub(super) const OUTPUT_MAX: usize = 64 << 10;

/// Serves the connections of one worker.
pub(crate) struct RespHandler {
    pub(super) door: Arc<RespServer>,
    drain: Drain,
    ticks: Ticks,
    /// Only used by the worker's thread, and never across an await.
    pub(super) buffers: Mutex<Buffers>,
}

/// Buffers for executing commands.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) limits: Limits,
    pub(super) spans: Spans,
}

/// Why no more commands are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// There is no complete command left.
    Input,
    /// There is enough to write.
    Output,
    /// This was the last command.
    Close,
}

impl ConnectionHandler for RespHandler {
    const ALPN: &'static [&'static [u8]] = &[];

    async fn serve<S>(self: Arc<Self>, stream: S, accepted: Accepted)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let peer = accepted.peer;
        if let Err(error) = self.run(stream, peer).await {
            tracing::debug!(%peer, %error, "connection failed");
        }
        drop(accepted);
    }

    fn rejection() -> Vec<u8> {
        b"-ERR max number of clients reached\r\n".to_vec()
    }
}

impl RespHandler {
    pub(crate) fn new(door: Arc<RespServer>, drain: Drain) -> Self {
        Self { door, drain, ticks: Ticks::start(), buffers: Mutex::default() }
    }

    /// Serves a connection, with or without TLS, until the client closes it or the server drains.
    pub(super) async fn run<S>(&self, stream: S, peer: SocketAddr) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let conn = ConnState::new(peer, self.ticks);
        let serve = self.serve_commands(stream, &conn);
        // Replies to what was sent before the drain are not lost: `Wire` reads it to its end.
        let served = drive(serve, None, &conn, &self.door.timeouts, &self.drain).await;
        match served {
            Some(served) => served,
            None if conn.is_lingering() => Ok(()),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    async fn serve_commands<S>(&self, stream: S, conn: &Arc<ConnState>) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let mut session = Session::new(id, self.door.passwords.are_needed());
        let mut wire = Wire::new(stream, conn, &self.drain);
        if !session.is_trusted {
            conn.expect_first_request();
        }
        self.run_commands(&mut wire, &mut session).await?;
        wire.close().await
    }

    async fn run_commands<S>(&self, wire: &mut Wire<S>, session: &mut Session) -> io::Result<()>
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
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let Buffers { limits, spans } = &mut *buffers;
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
        wire.consume(at);
        if session.is_trusted {
            wire.confirm();
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
