//! A connection's bytes: read when there is room, written when there is something to say.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::Bounds;
use super::watch::Watch;
use crate::drain::{Drain, Stage, StageWatch};

/// As much as is read at once: a few hundred commands.
const READ: usize = 16 << 10;
/// A buffer that has grown beyond this is given back when it is empty.
const KEEP: usize = 64 << 10;
/// Once the server drains, so many bytes are still read: about ten thousand commands, so that a pipeline
/// that was sent before is answered. A client that sends more is one that does not stop.
const DRAIN_MAX: usize = 512 << 10;
/// While the server drains, a connection on which nothing comes for this long has nothing more on its way.
/// What its client has sent may wait in the client's buffer until there is room here. A tenth of it has to
/// do when idle connections are closed, so that one who asks now and then does not hold up the end.
const DRAIN_QUIET: Duration = Duration::from_millis(100);
/// A command that has begun has to be whole in this time.
const COMMAND_WITHIN: Duration = Duration::from_secs(15);
/// How long a client that has to give a password may take for it.
const PASSWORD_WITHIN: Duration = Duration::from_secs(15);
/// How long a client has to take its last answers before the connection is closed on it.
const LINGER: Duration = Duration::from_secs(1);

pub(super) struct Wire<S> {
    stream: S,
    /// What has come and is not answered yet.
    pub(super) input: BytesMut,
    /// What is to be written next.
    pub(super) output: Vec<u8>,
    watch: Watch,
    stuck: Duration,
    stage: StageWatch,
    /// Set once the server drains.
    draining: Option<Draining>,
    /// Set while a client has something to bring to its end: a command, or who it is.
    overdue: Option<Pin<Box<Sleep>>>,
    is_stranger: bool,
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
    /// The client has gone.
    Gone,
    /// The server drains, and everything that was on its way was read.
    Last,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(super) fn new(stream: S, bounds: Bounds, drain: &Drain) -> Self {
        Self {
            stream,
            input: BytesMut::with_capacity(READ),
            output: Vec::new(),
            watch: Watch::new(bounds.idle),
            stuck: bounds.stuck,
            stage: StageWatch::new(drain),
            draining: None,
            overdue: None,
            is_stranger: false,
        }
    }

    /// Gives a client so long to say who it is.
    pub(super) fn expect_password(&mut self) {
        self.is_stranger = true;
        self.overdue = Some(Box::pin(sleep(PASSWORD_WITHIN)));
    }

    /// It is known who the client is.
    pub(super) fn welcome(&mut self) {
        if self.is_stranger {
            self.is_stranger = false;
            self.overdue = None;
        }
    }

    /// Commands of this length have been worked off.
    pub(super) fn work_off(&mut self, len: usize) {
        self.input.advance(len);
        if len > 0 && !self.is_stranger {
            self.overdue = None;
        }
    }

    /// Reads more. To give up waiting for it loses nothing.
    pub(super) async fn read(&mut self) -> io::Result<Read> {
        if self.draining.is_none() {
            match self.read_or_ending().await? {
                Some(read) => return Ok(read),
                None => {
                    let quiet = Box::pin(sleep(DRAIN_QUIET));
                    self.draining = Some(Draining { bytes_left: DRAIN_MAX, quiet });
                }
            }
        }
        self.read_last().await
    }

    /// `None` when the end begins.
    async fn read_or_ending(&mut self) -> io::Result<Option<Read>> {
        self.make_room();
        if !self.input.is_empty() && self.overdue.is_none() {
            self.overdue = Some(Box::pin(sleep(COMMAND_WITHIN)));
        }
        let Self { stream, input, watch, stage, overdue, .. } = self;
        poll_fn(|context| {
            if let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(context) {
                watch.note();
                return Poll::Ready(read.map(|len| Some(read_of(len))));
            }
            if stage.poll_stage(context) > Stage::Serve {
                return Poll::Ready(Ok(None));
            }
            let overdue =
                overdue.as_mut().map_or(Poll::Pending, |timer| timer.as_mut().poll(context));
            if overdue.is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            watch.poll_quiet(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
        })
        .await
    }

    /// Reads what is on its way.
    async fn read_last(&mut self) -> io::Result<Read> {
        self.make_room();
        let Self { stream, input, draining, stage, .. } = self;
        let Some(Draining { bytes_left, quiet }) = draining else { return Ok(Read::Last) };
        if *bytes_left == 0 {
            return Ok(Read::Last);
        }
        poll_fn(|context| {
            if let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(context) {
                *bytes_left = bytes_left.saturating_sub(*read.as_ref().unwrap_or(&0));
                let wait = match stage.poll_stage(context) {
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

    fn make_room(&mut self) {
        if self.input.is_empty() && self.input.capacity() > KEEP {
            self.input = BytesMut::new();
        }
        // An empty buffer begins at its beginning again, which is still in the processor's cache.
        if self.input.is_empty() || self.input.capacity() - self.input.len() < READ / 4 {
            self.input.reserve(READ);
        }
    }

    /// Writes all of the output. A client that takes none of it for too long is cut off.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let Self { stream, output, stuck, .. } = self;
        let (mut written, mut timer): (_, Option<Pin<Box<Sleep>>>) = (0, None);
        poll_fn(|context| {
            while written < output.len() {
                match Pin::new(&mut *stream).poll_write(context, &output[written..]) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(len)) => {
                        written += len;
                        if let Some(timer) = &mut timer {
                            timer.as_mut().reset(Instant::now() + *stuck);
                        }
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        let timer = timer.get_or_insert_with(|| Box::pin(sleep(*stuck)));
                        return timer.as_mut().poll(context).map(|()| Err(stuck_client()));
                    }
                }
            }
            // Over TLS, what was written may still wait to be sent.
            match Pin::new(&mut *stream).poll_flush(context) {
                Poll::Ready(flushed) => Poll::Ready(flushed),
                Poll::Pending => {
                    let timer = timer.get_or_insert_with(|| Box::pin(sleep(*stuck)));
                    timer.as_mut().poll(context).map(|()| Err(stuck_client()))
                }
            }
        })
        .await?;
        self.watch.note();
        self.output.clear();
        self.output.shrink_to(KEEP);
        Ok(())
    }

    /// Closes the connection in such a way that the client gets what was written: to close before
    /// everything that came was read would reset the connection, and lose it.
    pub(super) async fn close(mut self) -> io::Result<()> {
        let mut scratch = [0; 1024];
        let until_gone = async {
            self.stream.shutdown().await?;
            while self.stream.read(&mut scratch).await? > 0 {}
            io::Result::Ok(())
        };
        timeout(LINGER, until_gone).await.unwrap_or(Ok(()))
    }
}

fn read_of(len: usize) -> Read {
    if len == 0 { Read::Gone } else { Read::More }
}

fn stuck_client() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answers")
}
