//! A client's stream, as hyper sees it: looked at on its way, and closed so that answers arrive.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client::Client;
use super::framing::Framing;
use crate::patient::GREETING;

/// How much is read ahead of the answer to a request for another protocol.
const AHEAD_MAX: usize = 64 * 1024;

pub(super) struct ClientIo<S> {
    stream: S,
    /// What was read and not passed on: at the start to see which protocol it is, and later what follows
    /// a request for another protocol.
    ahead: BytesMut,
    /// `None` for HTTP/2, whose frames cannot be taken for another's.
    framing: Option<Framing>,
    /// What is left of HTTP/2's greeting.
    greeting_left: usize,
    client: Arc<Client>,
    is_in_head: bool,
    is_stalled: bool,
    is_lingering: bool,
}

impl<S> ClientIo<S> {
    pub(super) fn new(stream: S, start: BytesMut, is_http1: bool, client: Arc<Client>) -> Self {
        let framing = is_http1.then(Framing::default);
        let greeting_left = if is_http1 { 0 } else { GREETING };
        // Who does not even greet is as slow as one who does not finish a head.
        client.activity.set_head(!is_http1);
        let (is_in_head, is_stalled, is_lingering) = (false, false, false);
        Self {
            stream,
            ahead: start,
            framing,
            greeting_left,
            client,
            is_in_head,
            is_stalled,
            is_lingering,
        }
    }

    fn note_greeting(&mut self, length: usize) {
        if self.greeting_left > 0 {
            self.greeting_left = self.greeting_left.saturating_sub(length);
            if self.greeting_left == 0 {
                self.client.activity.set_head(false);
            }
        }
    }

    /// Looks at what came next. Returns how much of it may be passed on.
    fn look(&mut self, fresh: &mut [u8]) -> usize {
        let Some(framing) = &mut self.framing else {
            self.note_greeting(fresh.len());
            return fresh.len();
        };
        let followed = framing.follow(fresh);
        if framing.in_head() != self.is_in_head {
            self.is_in_head = framing.in_head();
            self.client.activity.set_head(self.is_in_head);
        }
        followed
    }

    /// Whether what follows may be of another protocol, which the answer will tell.
    fn awaits_answer(&mut self) -> bool {
        let Some(framing) = &mut self.framing else { return false };
        if self.client.activity.is_tunnel() {
            self.framing = None;
            return false;
        }
        let Some(messages) = framing.awaits_answer() else { return false };
        let is_answered = self.client.activity.answered() >= messages;
        if is_answered {
            framing.resume();
        }
        !is_answered
    }

    fn watch<T>(&mut self, written: Poll<T>) -> Poll<T> {
        if written.is_pending() != self.is_stalled {
            self.is_stalled = written.is_pending();
            self.client.activity.set_stalled(self.is_stalled);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> ClientIo<S> {
    /// Reads ahead while nothing may be passed on: not too much, and to see whether the client goes.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.ahead.len() < AHEAD_MAX {
            if ready!(poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.ahead))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }
}

fn poll_read_buf<S: AsyncRead>(
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    into: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    let mut scratch = [0; 4096];
    let mut buf = ReadBuf::new(&mut scratch);
    ready!(stream.poll_read(cx, &mut buf))?;
    into.extend_from_slice(buf.filled());
    Poll::Ready(Ok(buf.filled().len()))
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.awaits_answer() {
            return self.poll_ahead(cx);
        }
        let before = buf.filled().len();
        if self.ahead.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        } else {
            let length = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.split_to(length));
        }
        let fresh = &mut buf.filled_mut()[before..];
        let followed = self.look(fresh);
        if followed < fresh.len() {
            let left = fresh[followed..].to_vec();
            let later = self.ahead.split();
            self.ahead.extend_from_slice(&left);
            self.ahead.unsplit(later);
            buf.set_filled(before + followed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(flushed)
    }

    /// If the client is still sending, what it sends is read and dropped for a while: to close at
    /// once would reset the connection, and the reset could overtake the answer.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_lingering {
            let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
            ready!(self.watch(shut))?;
            if self.framing.as_ref().is_none_or(Framing::is_between_messages) {
                return Poll::Ready(Ok(()));
            }
            self.is_lingering = true;
            self.client.activity.linger();
        }
        let mut scratch = [0; 4096];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf))?;
            if buf.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
