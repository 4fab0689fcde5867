//! An answer's body on its way to the client, and what becomes of the upstream's connection after.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::link::Link;
use super::shared::Worker;

/// The body of an answer: an upstream's, or the gateway's own.
pub(crate) enum AnswerBody {
    Own(Option<Bytes>),
    Upstream(UpstreamBody),
}

/// Drives the connection it comes from, and gives it back to the pool when it is over.
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    link: Option<Box<Link>>,
    /// How long the upstream will keep the connection, if it said so.
    allowed: Option<Duration>,
    upstream: usize,
    worker: Arc<Worker>,
}

impl UpstreamBody {
    pub(super) fn new(
        incoming: Incoming,
        link: Box<Link>,
        allowed: Option<Duration>,
        upstream: usize,
        worker: Arc<Worker>,
    ) -> Self {
        Self { incoming, link: Some(link), allowed, upstream, worker }
    }

    fn give_back(&mut self) {
        if let Some(link) = self.link.take() {
            self.worker.pools[self.upstream].give(link, self.allowed);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        if let Some(link) = &mut self.link {
            link.drive(cx);
        }
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) {
            self.give_back();
        }
        polled
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // What was not read to its end cannot be followed by another answer.
        if self.incoming.is_end_stream() {
            self.give_back();
        }
    }
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> Self {
        Self::Own(Some(bytes))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upstream(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Upstream(body) => body.incoming.size_hint(),
        }
    }
}
