//! Serves one connection.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ratekeeper_stores::MemoryStore;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::RespDoor;
use super::codec::{Parsed, Protocol, ProtocolError, Reply, Spans, parse};
use super::commands::{Call, Flow, Step, begin};
use super::limits::Limits;
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
        match self.door.gate.memory() {
            Some(store) => self.serve_from(store, &mut wire, &mut session).await?,
            None => self.serve_by_asking(&mut wire, &mut session).await?,
        }
        wire.close().await
    }

    async fn serve_from<S>(
        &self,
        store: &MemoryStore,
        wire: &mut Wire<S>,
        session: &mut Session,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        while wire.read().await? == Read::More {
            loop {
                let stop = self.answer(store, wire, session);
                wire.flush().await?;
                match stop {
                    Stop::Input => break,
                    Stop::Output => {}
                    Stop::Close => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Works off the commands that have come. They came together, so it is the same moment for all.
    fn answer<S>(&self, store: &MemoryStore, wire: &mut Wire<S>, session: &mut Session) -> Stop
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        let Desk { limits, spans } = &mut *desk;
        let (now, door) = (self.door.gate.now(), &*self.door);
        let (mut at, mut tally) = (0, Tally::default());
        let stop = loop {
            if wire.output.len() >= OUTPUT_MAX {
                break Stop::Output;
            }
            let len = match parse(&mut wire.input[at..], spans) {
                Ok(Parsed::Command(len)) => len,
                Ok(Parsed::Part) => break Stop::Input,
                Err(error) => {
                    complain(error, &mut wire.output);
                    break Stop::Close;
                }
            };
            let args = spans.of(&wire.input[at..]);
            at += len;
            if args.len() == 0 {
                continue;
            }
            let before = wire.output.len();
            let call = Call { args, door, session: &mut *session, out: &mut wire.output };
            match begin(call, limits) {
                Step::Asks(ask) => {
                    let reply = Reply::new(&mut wire.output, session.protocol);
                    let outcome = ask.settle((&door.gate, store), now, reply);
                    door.note(ask.limit, ask.key, outcome, now);
                    door.trace(ask.limit, outcome, false, now);
                    tally.add(outcome);
                }
                Step::Answered(flow) => {
                    tally.add(of_answer(&wire.output[before..]));
                    if flow == Flow::Close {
                        break Stop::Close;
                    }
                }
            }
        };
        wire.work_off(at);
        if session.is_trusted {
            wire.welcome();
        }
        // Their answers leave together, so it took as long for each of them.
        door.meter.record(&tally, door.gate.now().since(now));
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
