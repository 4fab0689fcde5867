//! The stream of a client as hyper reads it: checked by [`Framing`] before hyper sees it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client::Client;
use super::framing::Framing;
use crate::listener::ClientStream;

/// How much is read ahead of the response to a request for another protocol.
const AHEAD_MAX: usize = 64 * 1024;

pub(super) struct ClientIo<S> {
    stream: ClientStream<S>,
    /// What was read and not forwarded: at the start to detect the protocol, and later what follows a
    /// request for another protocol.
    ahead: BytesMut,
    /// `None` for HTTP/2, whose frames cannot be read in different ways.
    framing: Option<Framing>,
    client: Arc<Client>,
    is_in_header: bool,
}

impl<S> ClientIo<S> {
    pub(super) fn new(stream: S, start: BytesMut, is_http1: bool, client: Arc<Client>) -> Self {
        let mut stream = ClientStream::new(stream, Arc::clone(&client.conn));
        stream.note_read(start.len());
        let framing = is_http1.then(Framing::default);
        Self { stream, ahead: start, framing, client, is_in_header: false }
    }

    /// Checks what has come. Returns how much of it may be forwarded.
    fn check(&mut self, fresh: &mut [u8]) -> usize {
        let Some(framing) = &mut self.framing else { return fresh.len() };
        let followed = framing.follow(fresh);
        if framing.in_head() != self.is_in_header {
            self.is_in_header = framing.in_head();
            self.client.conn.set_in_header(self.is_in_header);
        }
        followed
    }

    /// Whether what follows may be of another protocol, which depends on a response that is not known.
    fn awaits_response(&mut self) -> bool {
        let Some(framing) = &mut self.framing else { return false };
        if self.client.is_tunnel() {
            self.framing = None;
            return false;
        }
        let Some(messages) = framing.awaits_response() else { return false };
        let is_known = self.client.responses() >= messages;
        if is_known {
            framing.resume();
        }
        !is_known
    }
}

impl<S: AsyncRead + Unpin> ClientIo<S> {
    /// Reads ahead while nothing may be forwarded, up to a bound, to notice a client that closes.
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
        if self.awaits_response() {
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
        let followed = self.check(fresh);
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
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Only a client that is still sending has to be waited for.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.framing.as_ref().is_none_or(Framing::is_between_messages) {
            true => self.stream.poll_close(cx),
            false => Pin::new(&mut self.stream).poll_shutdown(cx),
        }
    }
}
