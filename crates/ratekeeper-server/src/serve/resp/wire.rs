//! The bytes of a connection: read when there is space, written when there is something to reply.

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

/// As much as is read at once: a few hundred commands.
const READ: usize = 16 << 10;
/// A buffer that has grown beyond this is freed when it is empty.
const KEEP: usize = 64 << 10;
/// Once the server drains, so many bytes are still read: about ten thousand commands, so that a pipeline
/// that was sent before gets its replies. A client that sends more does not stop.
const DRAIN_MAX: usize = 512 << 10;
/// While the server drains, a connection on which nothing comes for this long has nothing more on its way.
/// What its client has sent may wait in the client's buffer until there is space here. When idle
/// connections are closed, a tenth of it is enough, so that a client that sends now and then does not
/// delay the shutdown.
const DRAIN_QUIET: Duration = Duration::from_millis(100);

pub(super) struct Wire<S> {
    stream: ClientStream<S>,
    /// What has come and was not executed.
    pub(super) input: BytesMut,
    /// What is to be written next.
    pub(super) output: Vec<u8>,
    conn: Arc<ConnState>,
    /// Whether the timeout of a command runs.
    is_in_command: bool,
    drain: Drain,
    /// Set once the server drains.
    draining: Option<Draining>,
}

/// What is still to be read before the connection is closed.
struct Draining {
    bytes_left: usize,
    quiet: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// There is more input.
    More,
    /// The client has closed the connection.
    Closed,
    /// The server drains, and everything that was on its way was read.
    Last,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Its task has to be woken when the drain changes its stage.
    pub(super) fn new(stream: S, conn: &Arc<ConnState>, drain: &Drain) -> Self {
        Self {
            stream: ClientStream::new(stream, Arc::clone(conn)),
            input: BytesMut::with_capacity(READ),
            output: Vec::new(),
            conn: Arc::clone(conn),
            is_in_command: false,
            drain: drain.clone(),
            draining: None,
        }
    }

    /// The client has authenticated.
    pub(super) fn confirm(&self) {
        self.conn.confirm();
    }

    /// Removes commands of this length, which were executed.
    pub(super) fn consume(&mut self, len: usize) {
        self.input.advance(len);
        if len > 0 && self.is_in_command {
            self.is_in_command = false;
            self.conn.set_in_header(false);
        }
    }

    /// Reads more. Cancel-safe.
    pub(super) async fn read(&mut self) -> io::Result<Read> {
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

    /// Returns `None` when the server drains.
    async fn read_until_drain(&mut self) -> io::Result<Option<Read>> {
        self.reserve();
        if !self.input.is_empty() && !self.is_in_command {
            self.is_in_command = true;
            self.conn.set_in_header(true);
        }
        let Self { stream, input, conn, drain, .. } = self;
        poll_fn(|context| {
            if let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(context) {
                conn.note_activity();
                return Poll::Ready(read.map(|len| Some(read_of(len))));
            }
            match drain.is_draining() {
                true => Poll::Ready(Ok(None)),
                false => Poll::Pending,
            }
        })
        .await
    }

    /// Reads what is on its way.
    async fn read_last(&mut self) -> io::Result<Read> {
        self.reserve();
        let Self { stream, input, draining, drain, .. } = self;
        let Some(Draining { bytes_left, quiet }) = draining else { return Ok(Read::Last) };
        if *bytes_left == 0 {
            return Ok(Read::Last);
        }
        poll_fn(|context| {
            if let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(context) {
                *bytes_left = bytes_left.saturating_sub(*read.as_ref().unwrap_or(&0));
                let wait = match drain.stage() {
                    Stage::CloseIdle => DRAIN_QUIET / 10,
                    _ => DRAIN_QUIET,
                };
                quiet.as_mut().reset(Instant::now() + wait);
                return Poll::Ready(read.map(read_of));
            }
            quiet.as_mut().poll(context).map(|()| Ok(Read::Last))
        })
        .await
    }

    fn reserve(&mut self) {
        if self.input.is_empty() && self.input.capacity() > KEEP {
            self.input = BytesMut::new();
        }
        // An empty buffer starts at its beginning again, which is still in the processor's cache.
        if self.input.is_empty() || self.input.capacity() - self.input.len() < READ / 4 {
            self.input.reserve(READ);
        }
    }

    /// Writes all of the output.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output).await?;
        // Over TLS, what was written may still wait to be sent.
        self.stream.flush().await?;
        self.conn.note_activity();
        self.output.clear();
        self.output.shrink_to(KEEP);
        Ok(())
    }

    /// Closes the connection so that the client gets what was written.
    pub(super) async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

fn read_of(len: usize) -> Read {
    if len == 0 { Read::Closed } else { Read::More }
}
