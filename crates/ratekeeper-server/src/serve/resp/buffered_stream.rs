//! A connection with buffers for its input and its output.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep};

use crate::listener::{ClientStream, ConnState, Drain, Stage};

/// How many bytes are read at once: a few hundred commands.
const READ_SIZE: usize = 16 << 10;
/// A buffer that has grown beyond this is freed when it is empty.
const RETAINED_MAX: usize = 64 << 10;
/// While the server drains, this many bytes are still read: about ten thousand commands, so that a pipeline
/// that was sent before gets its replies. A client that sends more does not stop by itself.
const DRAIN_MAX: usize = 512 << 10;
/// While the server drains, a connection is closed if nothing is received for this long. What the client has
/// sent before may still be in its send buffer. When idle connections are closed, a tenth is enough, so that
/// a client that sends now and then does not delay the shutdown.
const DRAIN_QUIET: Duration = Duration::from_millis(100);

/// A connection with buffers for its input and its output.
pub(super) struct BufferedStream<S> {
    stream: ClientStream<S>,
    /// Input that is not executed yet.
    pub(super) input: BytesMut,
    /// Output that is not written yet.
    pub(super) output: Vec<u8>,
    conn: Arc<ConnState>,
    /// Whether the timeout of a partial command is running.
    is_in_command: bool,
    drain: Drain,
    /// Set once the server drains.
    draining: Option<Draining>,
}

/// How much is still read before the connection is closed.
struct Draining {
    bytes_left: usize,
    quiet: Pin<Box<Sleep>>,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// There is more input.
    More,
    /// The client has closed the connection.
    Closed,
    /// The server drains, and the last input has been read.
    Drained,
}

impl<S: AsyncRead + AsyncWrite + Unpin> BufferedStream<S> {
    /// The task that reads must be woken when the drain changes its stage.
    pub(super) fn new(stream: S, conn: &Arc<ConnState>, drain: &Drain) -> Self {
        Self {
            stream: ClientStream::new(stream, Arc::clone(conn)),
            input: BytesMut::with_capacity(READ_SIZE),
            output: Vec::new(),
            conn: Arc::clone(conn),
            is_in_command: false,
            drain: drain.clone(),
            draining: None,
        }
    }

    /// Ends the timeout of the authentication.
    pub(super) fn confirm(&self) {
        self.conn.confirm();
    }

    /// Removes executed commands of this length from the input.
    pub(super) fn consume(&mut self, len: usize) {
        self.input.advance(len);
        if len > 0 && self.is_in_command {
            self.is_in_command = false;
            self.conn.set_in_header(false);
        }
    }

    /// Reads more input. Cancel-safe.
    pub(super) async fn read(&mut self) -> io::Result<ReadOutcome> {
        if self.draining.is_none() {
            match self.read_until_drain().await? {
                Some(read) => return Ok(read),
                None => {
                    let quiet = Box::pin(sleep(DRAIN_QUIET));
                    self.draining = Some(Draining { bytes_left: DRAIN_MAX, quiet });
                }
            }
        }
        self.read_last().await
    }

    /// Reads more input, or returns `None` when the server drains.
    async fn read_until_drain(&mut self) -> io::Result<Option<ReadOutcome>> {
        self.reserve();
        if !self.input.is_empty() && !self.is_in_command {
            self.is_in_command = true;
            self.conn.set_in_header(true);
        }
        let Self { stream, input, conn, drain, .. } = self;
        poll_fn(|context| {
            if let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(context) {
                conn.note_activity();
                return Poll::Ready(read.map(|len| Some(outcome_of(len))));
            }
            match drain.is_draining() {
                true => Poll::Ready(Ok(None)),
                false => Poll::Pending,
            }
        })
        .await
    }

    /// Reads input that was sent before the drain.
    async fn read_last(&mut self) -> io::Result<ReadOutcome> {
        self.reserve();
        let Self { stream, input, draining, drain, .. } = self;
        let Some(Draining { bytes_left, quiet }) = draining else {
            return Ok(ReadOutcome::Drained);
        };
        if *bytes_left == 0 {
            return Ok(ReadOutcome::Drained);
        }
        poll_fn(|context| {
            if let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(context) {
                *bytes_left = bytes_left.saturating_sub(*read.as_ref().unwrap_or(&0));
                let wait = match drain.stage() {
                    Stage::CloseIdle => DRAIN_QUIET / 10,
                    _ => DRAIN_QUIET,
                };
                quiet.as_mut().reset(Instant::now() + wait);
                return Poll::Ready(read.map(outcome_of));
            }
            quiet.as_mut().poll(context).map(|()| Ok(ReadOutcome::Drained))
        })
        .await
    }

    fn reserve(&mut self) {
        if self.input.is_empty() && self.input.capacity() > RETAINED_MAX {
            self.input = BytesMut::new();
        }
        // An empty buffer is reused from its beginning, which is still in the CPU cache.
        if self.input.is_empty() || self.input.capacity() - self.input.len() < READ_SIZE / 4 {
            self.input.reserve(READ_SIZE);
        }
    }

    /// Writes all of the output.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output).await?;
        // TLS may still buffer it.
        self.stream.flush().await?;
        self.conn.note_activity();
        self.output.clear();
        self.output.shrink_to(RETAINED_MAX);
        Ok(())
    }

    /// Closes the connection after the output has been sent.
    pub(super) async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

fn outcome_of(len: usize) -> ReadOutcome {
    if len == 0 { ReadOutcome::Closed } else { ReadOutcome::More }
}
