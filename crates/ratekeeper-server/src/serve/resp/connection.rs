//! Serves a connection.
//!
//! Commands that arrive together (pipelining) are executed together, and their replies are sent in one
//! write. If the store is shared, commands are sent to it in order, without waiting for the replies to those
//! before, and replies are sent in order.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::unconstrained;

use super::RespServer;
use super::buffered_stream::{BufferedStream, ReadOutcome};
use super::codec::{Parsed, ProtocolError, ReplyWriter, RespVersion, Spans, parse};
use super::command_limits::CommandLimits;
use super::commands::{Call, Flow, Step, dispatch};
use super::pending::PendingReplies;
use super::session::Session;
use crate::listener::{Accepted, ConnState, ConnectionHandler, Drain, Ticks, drive};
use crate::serve::request_metrics::{Outcome, Tally};

/// The output is written before more commands are executed if it has this many bytes.
pub(super) const OUTPUT_MAX: usize = 64 << 10;

/// Serves the connections of one worker.
pub(crate) struct RespHandler {
    server: Arc<RespServer>,
    drain: Drain,
    ticks: Ticks,
    /// Only used by the worker's thread, and never across an await.
    buffers: Mutex<Buffers>,
}

/// Buffers for executing commands.
#[derive(Default)]
struct Buffers {
    limits: CommandLimits,
    spans: Spans,
}

/// Why no more commands are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// The input has no complete command left.
    Input,
    /// The output is full.
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
    pub(crate) fn new(server: Arc<RespServer>, drain: Drain) -> Self {
        Self { server, drain, ticks: Ticks::start(), buffers: Mutex::default() }
    }

    /// Serves a connection, with or without TLS, until the client closes it or the server drains.
    pub(super) async fn run<S>(&self, stream: S, peer: SocketAddr) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let conn = ConnState::new(peer, self.ticks);
        let serve = self.serve_commands(stream, &conn);
        // Replies to what was sent before the drain are not lost: the stream is read to its end.
        let served = drive(serve, None, &conn, &self.server.timeouts, &self.drain).await;
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
        let mut session = Session::new(id, self.server.passwords.is_required());
        let mut stream = BufferedStream::new(stream, conn, &self.drain);
        if !session.is_authenticated {
            conn.expect_first_request();
        }
        self.run_commands(&mut stream, &mut session).await?;
        stream.close().await
    }

    async fn run_commands<S>(
        &self,
        stream: &mut BufferedStream<S>,
        session: &mut Session,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut pending = PendingReplies::default();
        let mut is_open = true;
        loop {
            let stop = match is_open {
                true => self.execute(stream, session, &mut pending),
                false => StopReason::Input,
            };
            is_open &= stop != StopReason::Close;
            if !stream.output.is_empty() {
                stream.flush().await?;
            }
            let wants_input = is_open && stop == StopReason::Input;
            if pending.is_empty() {
                if !is_open || wants_input && stream.read().await? != ReadOutcome::More {
                    return Ok(());
                }
                continue;
            }
            // Not constrained by the runtime's budget: it would defer commands that exceed it, and wake
            // them in reverse order.
            tokio::select! {
                Some(reply) = unconstrained(pending.next()) => {
                    stream.output.extend_from_slice(&reply);
                    while stream.output.len() < OUTPUT_MAX {
                        let Some(Some(reply)) = unconstrained(pending.next()).now_or_never() else { break };
                        stream.output.extend_from_slice(&reply);
                    }
                }
                read = stream.read(), if wants_input => is_open = read? == ReadOutcome::More,
            }
        }
    }

    /// Executes the commands in the input. They have arrived together, so the time is read once for all.
    fn execute<S>(
        &self,
        stream: &mut BufferedStream<S>,
        session: &mut Session,
        pending: &mut PendingReplies,
    ) -> StopReason
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let Buffers { limits, spans } = &mut *buffers;
        let (now, server) = (self.server.limiter.engine().now(), &*self.server);
        let (mut at, mut tally) = (0, Tally::default());
        let mut queued = Vec::new();
        let stop = loop {
            if stream.output.len() >= OUTPUT_MAX || pending.is_full() {
                break StopReason::Output;
            }
            // A reply must not overtake those that are pending.
            let out = if pending.is_empty() { &mut stream.output } else { &mut queued };
            let len = match parse(&mut stream.input[at..], spans) {
                Ok(Parsed::Command(len)) => len,
                Ok(Parsed::Incomplete) => break StopReason::Input,
                Err(error) => {
                    write_protocol_error(error, out);
                    pending.push_ready(&mut queued);
                    break StopReason::Close;
                }
            };
            let args = spans.of(&stream.input[at..]);
            at += len;
            if args.len() == 0 {
                continue;
            }
            let reply_start = out.len();
            let call = Call { args, server, session: &mut *session, out: &mut *out };
            match dispatch(call, limits) {
                Step::Rate(command) => match command.run(server.limiter.engine(), now).try_now() {
                    Ok(finished) => {
                        let mut reply = ReplyWriter::new(out, session.protocol);
                        let outcome = finished.write(command.action, command.format, &mut reply);
                        server.count_key(command.limit, command.key, outcome, now);
                        server.trace(command.limit, outcome, finished.is_degraded(), now);
                        tally.add(outcome);
                    }
                    Err(running) => {
                        pending.push(&self.server, &command, running, session.protocol, now);
                    }
                },
                Step::Hold(command) => {
                    pending.push_hold(&self.server, command, session.protocol, now);
                }
                Step::Replied(flow) => {
                    tally.add(reply_outcome(&out[reply_start..]));
                    if flow == Flow::Close {
                        pending.push_ready(&mut queued);
                        break StopReason::Close;
                    }
                }
            }
            pending.push_ready(&mut queued);
        };
        stream.consume(at);
        if session.is_authenticated {
            stream.confirm();
        }
        // Their replies are sent together, so all have the same duration.
        if !tally.is_empty() {
            server.metrics.record(&tally, server.limiter.engine().now().since(now));
        }
        stop
    }
}

/// Returns the outcome of a command that does not need the store.
fn reply_outcome(reply: &[u8]) -> Outcome {
    if reply.starts_with(b"-") { Outcome::Error } else { Outcome::Other }
}

fn write_protocol_error(error: ProtocolError, output: &mut Vec<u8>) {
    ReplyWriter::new(output, RespVersion::Resp2).error(&format!("ERR Protocol error: {error}"));
}
