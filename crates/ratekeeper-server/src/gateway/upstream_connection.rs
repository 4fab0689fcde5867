//! A connection to an upstream, driven by the request that uses it.
//!
//! hyper expects a connection to be a task of its own; then each request wakes two tasks in turn. Here
//! the request that uses a connection also drives it, and after that the response's body does. An idle
//! connection is not driven: what happened to it meanwhile is noticed when it is used again.

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
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::error::ProxyError;
use super::request_body::{ForwardedBody, exchange_error};
use super::state::Upstream;
use super::stream::{UpstreamIo, UpstreamStream};
use crate::listener::{KEEP_ALIVE, OwnedInFlightPermit};

/// What is read ahead of a response, and how large its header may be.
const BUFFER_MAX: usize = 64 * 1024;

pub(super) struct UpstreamConnection {
    sender: SendRequest<ForwardedBody>,
    connection: Connection<TokioIo<UpstreamIo>, ForwardedBody>,
    /// One timer for all requests: resetting it is cheaper than creating another.
    deadline: Pin<Box<Sleep>>,
    is_done: bool,
    permits: UpstreamPermits,
}

/// What a connection uses of the limits, until this is dropped.
pub(super) struct UpstreamPermits {
    /// `None` while it is idle in the pool.
    in_use: Option<OwnedInFlightPermit>,
    _descriptor: OwnedInFlightPermit,
}

/// Why a request got no response.
pub(super) enum SendError {
    /// Nothing of the request was sent; this is the request.
    Unsent(Box<Request<ForwardedBody>>),
    Failed(ProxyError),
}

impl UpstreamConnection {
    pub(super) async fn open(
        upstream: &Upstream,
        connect_timeout: Duration,
        descriptor: OwnedInFlightPermit,
    ) -> io::Result<Box<Self>> {
        let stream = timeout(connect_timeout, connect(upstream)).await??;
        let handshake = Builder::new()
            .max_buf_size(BUFFER_MAX)
            .handshake(TokioIo::new(UpstreamIo::new(stream)))
            .await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        let deadline = Box::pin(sleep_until(Instant::now()));
        let permits = UpstreamPermits { in_use: None, _descriptor: descriptor };
        Ok(Box::new(Self { sender, connection, deadline, is_done: false, permits }))
    }

    /// Sets whether it counts as in use.
    pub(super) fn set_in_use(&mut self, permit: Option<OwnedInFlightPermit>) {
        self.permits.in_use = permit;
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

    /// Sends a request and waits for the header of its response: for so long after the last part of the
    /// request's body was sent.
    pub(super) async fn send(
        &mut self,
        request: Request<ForwardedBody>,
        response_timeout: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        let progress = request.body().get_ref().progress();
        let Self { sender, connection, deadline, is_done, .. } = self;
        deadline.as_mut().reset(Instant::now() + response_timeout);
        let mut response = pin!(sender.try_send_request(request));
        poll_fn(|cx| {
            if !*is_done {
                *is_done = connection.poll_without_shutdown(cx).is_ready();
            }
            if let Poll::Ready(response) = response.as_mut().poll(cx) {
                return Poll::Ready(response.map_err(|mut error| match error.take_message() {
                    Some(request) => SendError::Unsent(Box::new(request)),
                    None => SendError::Failed(exchange_error(error.error())),
                }));
            }
            while deadline.as_mut().poll(cx).is_ready() {
                let later = progress.as_ref().map(|progress| progress.last() + response_timeout);
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

    /// Returns what is left when the upstream has switched protocols: the stream, what was read of it, and
    /// its permits.
    pub(super) async fn into_stream(
        mut self,
    ) -> hyper::Result<(UpstreamStream, Bytes, UpstreamPermits)> {
        if !self.is_done {
            poll_fn(|cx| self.connection.poll_without_shutdown(cx)).await?;
        }
        let parts = self.connection.into_parts();
        Ok((parts.io.into_inner().into_inner(), parts.read_buf, self.permits))
    }
}

pub(super) async fn connect(upstream: &Upstream) -> io::Result<UpstreamStream> {
    let address = &upstream.address;
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&KEEP_ALIVE)?;
    match &upstream.tls {
        None => Ok(UpstreamStream::Plain(stream)),
        Some((connector, name)) => {
            let stream = connector.connect(name.clone(), stream).await?;
            Ok(UpstreamStream::Tls(Box::new(stream)))
        }
    }
}
