//! One client's connection: detects HTTP/2, and runs hyper.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{interval, timeout};
use tower_service::Service;

use super::client::Client;
use super::client_io::ClientIo;
use super::error::chain;
use super::options::BoundOptions;
use super::request;
use super::request_body::RequestBody;
use super::state::WorkerState;
use crate::listener::{
    Accepted, ConnState, ConnectionHandler, GracefulShutdown, Stage, Timeouts, drive,
    too_many_connections,
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FIRST_READ: usize = 8 * 1024;
const HTTP1_HEADERS: u16 = 100;
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// How often idle connections to upstreams are checked.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Serves the connections of one worker. `service` limits and proxies requests.
pub(super) struct GatewayHandler<S> {
    worker: Arc<WorkerState>,
    service: S,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    timeouts: Timeouts,
}

/// A connection whose protocol is known.
struct Detected<S> {
    stream: S,
    /// What was read to detect it.
    start: BytesMut,
    is_http1: bool,
}

impl<S> GatewayHandler<S> {
    /// Must be called in the worker's runtime.
    pub(super) fn new(worker: Arc<WorkerState>, service: S) -> Self {
        tokio::spawn(sweep(Arc::clone(&worker)));
        let bounds = &worker.gateway.bounds;
        let (http1, http2) = (http1_builder(bounds), http2_builder(bounds));
        let timeouts = worker.gateway.timeouts.of_clients();
        Self { worker, service, http1, http2, timeouts }
    }

    /// Waits for the first bytes of a client: not longer than for a header, and not while the server
    /// closes idle connections.
    async fn detect<IO: AsyncRead + Unpin>(&self, stream: IO) -> io::Result<Detected<IO>> {
        let drain = &self.worker.gateway.drain;
        tokio::select! {
            detected = timeout(self.timeouts.header, detect_protocol(stream)) => detected?,
            () = drain.reached(Stage::CloseIdle) => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

impl<S, B> GatewayHandler<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn run<IO>(&self, stream: IO, accepted: Accepted) -> io::Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (gateway, peer) = (&self.worker.gateway, accepted.peer);
        let detected = match accepted.is_tls {
            true => {
                let (start, is_http1) = (BytesMut::new(), !accepted.is_http2);
                Detected { stream, start, is_http1 }
            }
            false => self.detect(stream).await?,
        };
        let Detected { stream, start, is_http1 } = detected;
        let new = if is_http1 { ConnState::new } else { ConnState::http2 };
        let conn = new(peer, gateway.ticks);
        let client = Client::new(accepted, gateway.trusts(peer.ip()), Arc::clone(&conn));
        let io = TokioIo::new(ClientIo::new(stream, start, is_http1, Arc::clone(&client)));
        let (worker, service) = (Arc::clone(&self.worker), self.service.clone());
        let service = service_fn(move |request| {
            request::handle(Arc::clone(&worker), Arc::clone(&client), service.clone(), request)
        });
        if is_http1 {
            let connection = self.http1.serve_connection(io, service).with_upgrades();
            let shutdown = http1::UpgradeableConnection::graceful_shutdown;
            self.drive(connection, GracefulShutdown::http1(shutdown), &conn).await
        } else {
            let connection = self.http2.serve_connection(io, service);
            let shutdown = http2::Connection::graceful_shutdown;
            self.drive(connection, GracefulShutdown::http2(shutdown), &conn).await
        }
    }

    async fn drive<C>(
        &self,
        connection: C,
        shutdown: GracefulShutdown<C>,
        conn: &ConnState,
    ) -> io::Result<()>
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let drain = &self.worker.gateway.drain;
        match drive(connection, Some(shutdown), conn, &self.timeouts, drain).await {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(io::Error::other(chain(&error))),
        }
    }
}

impl<S, B> ConnectionHandler for GatewayHandler<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    const ALPN: &'static [&'static [u8]] = &[b"h2", b"http/1.1"];

    async fn serve<IO>(self: Arc<Self>, stream: IO, accepted: Accepted)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let peer = accepted.peer;
        if let Err(error) = self.run(stream, accepted).await {
            tracing::debug!(%peer, %error, "connection failed");
        }
    }

    fn rejection() -> Vec<u8> {
        too_many_connections("the gateway")
    }
}

async fn sweep(worker: Arc<WorkerState>) {
    let mut sweeps = interval(SWEEP_INTERVAL);
    loop {
        sweeps.tick().await;
        worker.pools.iter().for_each(|pool| pool.sweep());
    }
}

fn http1_builder(bounds: &BoundOptions) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // `drive` does that, and distinguishes a slow header from an idle connection.
    builder.header_read_timeout(None);
    builder.max_buf_size(bounds.max_header_size as usize);
    // hyper's own bound is the fastest.
    if bounds.max_headers != HTTP1_HEADERS {
        builder.max_headers(usize::from(bounds.max_headers));
    }
    builder
}

fn http2_builder(bounds: &BoundOptions) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds.max_streams)
        .max_header_list_size(bounds.max_header_size)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    builder
}

/// Reads until it is clear whether this is HTTP/2 without TLS.
async fn detect_protocol<IO: AsyncRead + Unpin>(mut stream: IO) -> io::Result<Detected<IO>> {
    let mut start = BytesMut::with_capacity(FIRST_READ);
    loop {
        if stream.read_buf(&mut start).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length = start.len().min(PREFACE.len());
        let is_http1 = start[..length] != PREFACE[..length];
        if is_http1 || length == PREFACE.len() {
            return Ok(Detected { stream, start, is_http1 });
        }
    }
}
