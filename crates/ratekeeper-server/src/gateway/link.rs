//! A connection to an upstream, driven by whoever uses it.
//!
//! hyper wants a connection to be a task of its own; then each request wakes two tasks in turn. Here
//! the request that uses a connection also drives it, and after that the answer's body does. Nobody
//! drives one that is idle: what happened to it meanwhile is seen when it is taken up again.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::error::ProxyError;
use super::request_body::{RequestBody, blame};
use super::shared::Upstream;
use super::stream::{Listening, UpstreamStream};
use crate::accept::OwnedPlace;

/// What is read ahead of an answer, and how large its head may be.
const BUFFER_MAX: usize = 64 * 1024;

/// An upstream that has gone without a word is noticed after a few of these.
const PROBE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));

pub(super) struct Link {
    sender: SendRequest<RequestBody>,
    connection: Connection<TokioIo<Listening>, RequestBody>,
    /// One timer for all requests: to move it on is cheaper than to make another.
    deadline: Pin<Box<Sleep>>,
    is_done: bool,
    places: Places,
}

/// What a connection takes of the bounds, until this is dropped.
pub(super) struct Places {
    /// `None` while it waits in the pool.
    in_use: Option<OwnedPlace>,
    _descriptor: OwnedPlace,
}

/// Why a request was not answered.
pub(super) enum SendError {
    /// Nothing of the request was sent: here it is again.
    Unsent(Box<Request<RequestBody>>),
    Failed(ProxyError),
}

impl Link {
    pub(super) async fn open(
        upstream: &Upstream,
        patience: Duration,
        descriptor: OwnedPlace,
    ) -> io::Result<Box<Self>> {
        let stream = timeout(patience, connect(upstream)).await??;
        let handshake = Builder::new()
            .max_buf_size(BUFFER_MAX)
            .handshake(TokioIo::new(Listening::new(stream)))
            .await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        let deadline = Box::pin(sleep_until(Instant::now()));
        let places = Places { in_use: None, _descriptor: descriptor };
        Ok(Box::new(Self { sender, connection, deadline, is_done: false, places }))
    }

    /// Counts it as one that is in use, or no longer.
    pub(super) fn set_in_use(&mut self, place: Option<OwnedPlace>) {
        self.places.in_use = place;
    }

    /// Lets the connection do what it can. The context's task is woken when it can do more.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.is_done {
            self.is_done = self.connection.poll_without_shutdown(cx).is_ready();
        }
    }

    /// Whether the last exchange is over and another may follow.
    pub(super) fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        !self.is_done && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its answer: for so long after the request's body
    /// last moved.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
        patience: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        let progress = request.body().progress();
        let Self { sender, connection, deadline, is_done, .. } = self;
        deadline.as_mut().reset(Instant::now() + patience);
        let mut answer = pin!(sender.try_send_request(request));
        poll_fn(|cx| {
            if !*is_done {
                *is_done = connection.poll_without_shutdown(cx).is_ready();
            }
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer.map_err(|mut error| match error.take_message() {
                    Some(request) => SendError::Unsent(Box::new(request)),
                    None => SendError::Failed(blame(error.error())),
                }));
            }
            while deadline.as_mut().poll(cx).is_ready() {
                let later = progress.as_ref().map(|progress| progress.last() + patience);
                match later.filter(|later| *later > deadline.deadline()) {
                    Some(later) => deadline.as_mut().reset(later),
                    None => {
                        return Poll::Ready(Err(SendError::Failed(ProxyError::UpstreamTimeout)));
                    }
                }
            }
            Poll::Pending
        })
        .await
    }

    /// What is left when the upstream has switched protocols: the stream, what was read of it, and what
    /// it takes of the bounds.
    pub(super) async fn into_stream(mut self) -> hyper::Result<(UpstreamStream, Bytes, Places)> {
        if !self.is_done {
            poll_fn(|cx| self.connection.poll_without_shutdown(cx)).await?;
        }
        let parts = self.connection.into_parts();
        Ok((parts.io.into_inner().into_inner(), parts.read_buf, self.places))
    }
}

pub(super) async fn connect(upstream: &Upstream) -> io::Result<UpstreamStream> {
    let address = &upstream.address;
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&PROBE)?;
    match &upstream.tls {
        None => Ok(UpstreamStream::Plain(stream)),
        Some((connector, name)) => {
            let stream = connector.connect(name.clone(), stream).await?;
            Ok(UpstreamStream::Tls(Box::new(stream)))
        }
    }
}
