//! Connections of the HTTP door.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::CONNECTION;
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::HttpDoor;
use super::measured;
use super::reply::{Reply, ending, too_busy};
use crate::accept::{Door, Room};
use crate::drain::{Drain, Heeded, Stage, drive};
use crate::patient::{Patient, Pulse};
use crate::serve::meters::Outcome;

const HEADERS_MAX: usize = 64;
/// The largest head of a request.
const HEAD_MAX: usize = 16 << 10;

/// What the connections of one thread share.
pub(crate) struct Worker {
    door: Arc<HttpDoor>,
    http: http1::Builder,
    room: Room,
    drain: Drain,
}

impl Worker {
    pub(crate) fn new(door: Arc<HttpDoor>, room: Room, drain: Drain) -> Self {
        let mut http = http1::Builder::new();
        // `Patient` sees to that, and does not set a timer for each request.
        http.header_read_timeout(None).max_headers(HEADERS_MAX).max_buf_size(HEAD_MAX);
        Self { door, http, room, drain }
    }

    async fn answer(&self, request: Request<Incoming>, peer: IpAddr) -> Reply {
        let is_ending = self.drain.stage() > Stage::Serve;
        let mut reply = match self.room.enter() {
            // By this, whoever used envoyproxy/ratelimit knows when to send no more.
            Some(_) if is_ending && request.uri().path() == "/healthcheck" => ending(),
            Some(_place) => measured::answer(&self.door, request, peer).await,
            None => {
                self.door.meters.http.count(Outcome::Error);
                too_busy()
            }
        };
        if self.drain.stage() > Stage::Serve {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }
}

impl Door for Worker {
    const PROTOCOLS: &'static [&'static [u8]] = &[b"http/1.1"];

    async fn serve<S>(self: Arc<Self>, stream: S, peer: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let pulse = Pulse::new();
        let io = TokioIo::new(Patient::new(stream, Arc::clone(&pulse)));
        let worker = Arc::clone(&self);
        let service = service_fn(move |request| {
            let (worker, pulse) = (Arc::clone(&worker), Arc::clone(&pulse));
            async move {
                pulse.begin_answer();
                let reply = worker.answer(request, peer.ip()).await;
                pulse.end_answer();
                Ok::<_, Infallible>(reply)
            }
        });
        let connection = self.http.serve_connection(io, service);
        let ended = drive(connection, &self.drain, |stage, http| {
            // Only then: a client that has not been told may have sent its next request already.
            if stage == Stage::CloseIdle {
                http.graceful_shutdown();
            }
            Heeded::GoesOn
        });
        if let Some(Err(error)) = ended.await {
            tracing::debug!(%peer, %error, "connection failed");
        }
    }
}
