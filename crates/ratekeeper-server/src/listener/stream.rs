//! A client's stream, which records what the connection waits for and closes so that the last response
//! arrives.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::timeouts::ConnState;

pub(crate) struct ClientStream<S> {
    stream: S,
    conn: Arc<ConnState>,
    tracks_headers: bool,
    is_write_blocked: bool,
    is_lingering: bool,
}

impl<S> ClientStream<S> {
    pub(crate) fn new(stream: S, conn: Arc<ConnState>) -> Self {
        let (tracks_headers, is_write_blocked, is_lingering) = (false, false, false);
        Self { stream, conn, tracks_headers, is_write_blocked, is_lingering }
    }

    /// Takes bytes that come between requests for a header that starts.
    pub(crate) fn tracking_headers(self) -> Self {
        Self { tracks_headers: true, ..self }
    }

    /// Counts bytes that were read before this was made.
    pub(crate) fn note_read(&mut self, length: usize) {
        self.conn.note_preface(length);
    }

    fn note_write<T>(&mut self, written: Poll<T>) -> Poll<T> {
        if written.is_pending() != self.is_write_blocked {
            self.is_write_blocked = written.is_pending();
            self.conn.set_write_blocked(self.is_write_blocked);
        }
        written
    }
}

impl<S: AsyncWrite + Unpin> ClientStream<S> {
    /// Closes the writing half without waiting for the client.
    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.note_write(closed)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (this, before) = (&mut *self, buf.filled().len());
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        match (read.is_ready(), this.tracks_headers) {
            (true, true) => this.conn.note_header_bytes(),
            (false, true) => this.conn.note_header_pending(),
            (_, false) => this.conn.note_preface(buf.filled().len() - before),
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.note_write(flushed)
    }

    /// Reads and drops what the client still sends until it has closed its half, or until the connection
    /// is cut off: closing at once could reset the connection, and the reset overtake the response.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_lingering {
            ready!(self.poll_close(cx))?;
            self.is_lingering = true;
            self.conn.linger();
        }
        let mut scratch = [0; 4096];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {}
                // The client is gone, with or without an error.
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}
