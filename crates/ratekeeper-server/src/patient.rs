//! A client's stream as hyper sees it: one that is too slow is cut off, and one that is closed is closed
//! so that the last answer arrives.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How often a connection is looked at. Whatever is too slow is found out within that.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// So many looks a client has for the head of a request, or to begin at all.
const HEAD_LOOKS: u32 = 3;
/// And so many it may be idle.
const IDLE_LOOKS: u32 = 24;
/// And so many a connection that may stay has for its first question.
const STRANGER_LOOKS: u32 = 12;
/// How long a client may take none of its answers.
const STUCK: Duration = Duration::from_secs(30);
/// How long a client has to take its last answer before the connection is closed on it.
const LINGER: Duration = Duration::from_secs(1);

/// What every client of HTTP/2 says first: the preface, and the head of a SETTINGS frame.
pub(crate) const GREETING: usize = 24 + 9;

/// What a connection is doing: told by those who answer, looked at by the stream.
pub(crate) struct Pulse {
    state: AtomicU8,
    /// Looks since something happened.
    looks: AtomicU32,
    /// Bytes that have to come before the connection may stay.
    greeting_left: AtomicU32,
}

const BETWEEN: u8 = 0;
const IN_HEAD: u8 = 1;
const ANSWERING: u8 = 2;
/// It has said what it has to say first, and has not asked yet.
const STRANGER: u8 = 3;

impl Pulse {
    /// Of a connection that is closed when it has been idle for long.
    pub(crate) fn new() -> Arc<Self> {
        Self::with(BETWEEN, 0)
    }

    /// Of a connection that stays once it has greeted as HTTP/2 has it, and then asked something.
    pub(crate) fn lasting() -> Arc<Self> {
        Self::with(IN_HEAD, GREETING as u32)
    }

    fn with(state: u8, greeting: u32) -> Arc<Self> {
        let (state, looks) = (AtomicU8::new(state), AtomicU32::new(0));
        Arc::new(Self { state, looks, greeting_left: AtomicU32::new(greeting) })
    }

    /// A request's head has come.
    pub(crate) fn begin_answer(&self) {
        self.state.store(ANSWERING, Ordering::Relaxed);
    }

    /// It is answered.
    pub(crate) fn end_answer(&self) {
        self.looks.store(0, Ordering::Relaxed);
        self.state.store(BETWEEN, Ordering::Relaxed);
    }

    /// Has the client said what it has to say first?
    pub(crate) fn is_greeted(&self) -> bool {
        self.greeting_left.load(Ordering::Relaxed) == 0
    }

    fn note_bytes(&self, len: usize) {
        let greeting = self.greeting_left.load(Ordering::Relaxed);
        if greeting > 0 {
            let left = greeting.saturating_sub(u32::try_from(len).unwrap_or(u32::MAX));
            self.greeting_left.store(left, Ordering::Relaxed);
            if left == 0 {
                self.looks.store(0, Ordering::Relaxed);
                self.state.store(STRANGER, Ordering::Relaxed);
            }
        } else if self.state.load(Ordering::Relaxed) == BETWEEN {
            self.looks.store(0, Ordering::Relaxed);
            self.state.store(IN_HEAD, Ordering::Relaxed);
        }
    }

    /// Looks once more. Is the client too slow?
    fn look(&self) -> bool {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        match self.state.load(Ordering::Relaxed) {
            BETWEEN => looks > IDLE_LOOKS,
            IN_HEAD => looks > HEAD_LOOKS,
            STRANGER => looks > STRANGER_LOOKS,
            _ => false,
        }
    }
}

pub(crate) struct Patient<S> {
    stream: S,
    pulse: Arc<Pulse>,
    /// The one timer of a connection that is well.
    look: Pin<Box<Sleep>>,
    /// Set while the client takes nothing.
    stuck: Option<Pin<Box<Sleep>>>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, pulse: Arc<Pulse>) -> Self {
        let look = Box::pin(sleep(LOOK_EVERY));
        Self { stream, pulse, look, stuck: None, linger: None }
    }

    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.look.as_mut().poll(cx));
            if self.pulse.look() {
                return Poll::Ready(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client is too slow",
                ));
            }
            self.look.as_mut().reset(Instant::now() + LOOK_EVERY);
        }
    }

    /// Gives up a write that has not moved for too long.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(STUCK)));
        ready!(stuck.as_mut().poll(cx));
        let why = "the client does not take its answers";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (this, before) = (&mut *self, buf.filled().len());
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Ready(read) => {
                this.pulse.note_bytes(buf.filled().len() - before);
                Poll::Ready(read)
            }
            Poll::Pending => this.poll_too_slow(cx).map(Err),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    /// What the client still sends is read and dropped until it has seen the end, or for a while: to
    /// close at once could reset the connection, and the reset overtake the answer.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            let shut = Pin::new(&mut this.stream).poll_shutdown(cx);
            ready!(this.watch(cx, shut))?;
        }
        let linger = this.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if linger.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut scratch = [0; 4096];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {}
                // Gone, one way or another.
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn connect(pulse: &Arc<Pulse>) -> (DuplexStream, Patient<DuplexStream>) {
        let (client, server) = duplex(64);
        (client, Patient::new(server, Arc::clone(pulse)))
    }

    /// How long it waits for a client that sends this once a second.
    async fn patience(pulse: &Arc<Pulse>, drip: Option<&'static [u8]>) -> Duration {
        let (mut client, mut stream) = connect(pulse);
        let begun = Instant::now();
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                if let Some(drip) = drip {
                    // When the stream is gone, so is this.
                    client.write_all(drip).await.unwrap();
                }
            }
        });
        let mut byte = [0];
        while stream.read_exact(&mut byte).await.is_ok() {
            if begun.elapsed() > Duration::from_secs(3_600) {
                break;
            }
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_comes_in_drops_is_cut_off() {
        let waited = patience(&Pulse::new(), Some(b"x")).await;
        assert!(waited >= LOOK_EVERY * HEAD_LOOKS && waited <= LOOK_EVERY * (HEAD_LOOKS + 2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed() {
        let waited = patience(&Pulse::new(), None).await;
        assert!(waited > Duration::from_secs(60) && waited <= LOOK_EVERY * (IDLE_LOOKS + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_connection_stays_once_it_has_asked() {
        assert!(patience(&Pulse::lasting(), Some(b"x")).await < Duration::from_secs(30));
        let waited = patience(&Pulse::lasting(), Some(b"much of a greeting")).await;
        assert!(waited > Duration::from_secs(60) && waited < Duration::from_secs(90), "{waited:?}");
        let known = Pulse::lasting();
        known.note_bytes(GREETING);
        known.begin_answer();
        assert!(patience(&known, Some(b"x")).await > Duration::from_secs(3_600));
    }

    #[tokio::test(start_paused = true)]
    async fn a_preface_without_more_is_cut_off() {
        let pulse = Pulse::lasting();
        pulse.note_bytes(24);
        assert!(patience(&pulse, None).await < Duration::from_secs(30));
        let greeted = Pulse::lasting();
        greeted.note_bytes(GREETING);
        assert!(patience(&greeted, None).await > Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_its_time() {
        let pulse = Pulse::new();
        pulse.begin_answer();
        let (_client, mut stream) = connect(&pulse);
        let an_hour = tokio::time::timeout(Duration::from_secs(3_600), stream.read_u8()).await;
        assert!(an_hour.is_err(), "it still waits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_cut_off() {
        let (_client, mut stream) = connect(&Pulse::new());
        let begun = Instant::now();
        let error = stream.write_all(&[0; 1_000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed(), STUCK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_waits_for_the_client_but_not_for_long() {
        let (mut client, mut stream) = connect(&Pulse::new());
        client.write_all(b"more").await.unwrap();
        let begun = Instant::now();
        stream.shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), LINGER);
        let (client, mut stream) = connect(&Pulse::new());
        drop(client);
        let begun = Instant::now();
        stream.shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
