//! The body of an upstream's response, which drives the connection that it comes from.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use ratekeeper::DependencyPermit;

use super::state::WorkerState;
use super::upstream_connection::UpstreamConnection;

/// The body of a response: an upstream's, or the gateway's own.
pub(crate) enum ResponseBody {
    Own(Option<Bytes>),
    Upstream(UpstreamBody),
}

/// Drives the connection it comes from, and returns that to the pool at its end.
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    connection: Option<Box<UpstreamConnection>>,
    /// The permits of the dependencies that protect the upstream, until the end of the body.
    calls: Vec<DependencyPermit>,
    /// How long the upstream keeps the connection open, if it said so.
    keep_alive: Option<Duration>,
    upstream: usize,
    worker: Arc<WorkerState>,
}

impl UpstreamBody {
    pub(super) fn new(
        incoming: Incoming,
        connection: Box<UpstreamConnection>,
        calls: Vec<DependencyPermit>,
        keep_alive: Option<Duration>,
        upstream: usize,
        worker: Arc<WorkerState>,
    ) -> Self {
        Self { incoming, connection: Some(connection), calls, keep_alive, upstream, worker }
    }

    fn release_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.worker.pools[self.upstream].put(connection, self.keep_alive);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        if let Some(connection) = &mut self.connection {
            connection.drive(cx);
        }
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) {
            self.calls.clear();
            self.release_connection();
        }
        polled
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // After a body that was not read to its end, the connection cannot be used again.
        if self.incoming.is_end_stream() {
            self.release_connection();
        }
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Own(Some(bytes))
    }
}

impl Body for ResponseBody {
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
