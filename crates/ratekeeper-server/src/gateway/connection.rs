//! One client's connection, from its first byte: is it TLS, is it HTTP/2, and then hyper's.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

use super::client::{Client, Counted};
use super::client_io::ClientIo;
use super::error::chain;
use super::front;
use super::options::Bounds;
use super::shared::{Shared, Worker};
use super::watch::{Graceful, Watched};
use crate::drain::Stage;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FIRST_READ: usize = 8 * 1024;
const HTTP1_HEADERS: u16 = 100;
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
const PING_EVERY: Duration = Duration::from_secs(20);

/// How connections are served: one for each worker.
pub(super) struct Server {
    worker: Arc<Worker>,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

/// A stream that has said what it speaks.
struct Greeted<S> {
    stream: S,
    start: BytesMut,
    is_http1: bool,
}

impl Server {
    pub(super) fn new(worker: Arc<Worker>) -> Self {
        let bounds = &worker.shared.bounds;
        let (http1, http2) = (http1_builder(bounds), http2_builder(bounds));
        Self { worker, http1, http2 }
    }

    /// Serves a connection until its end. Its requests go to the service.
    pub(super) async fn serve<S, B>(
        &self,
        service: S,
        stream: TcpStream,
        peer: SocketAddr,
        counted: Counted,
    ) -> io::Result<()>
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        stream.set_nodelay(true)?;
        let shared = &self.worker.shared;
        let is_tls = shared.tls.is_some();
        let is_trusted = shared.trusts(peer.ip());
        let client = Client::new(peer, is_tls, is_trusted, shared.ticks, counted);
        match &shared.tls {
            None => self.run(service, greet(shared, sniff(stream)).await?, client).await,
            Some(tls) => {
                let stream = greet(shared, tls.accept(stream, &PROTOCOLS)).await?;
                let is_http1 = stream.get_ref().1.alpn_protocol() != Some(b"h2");
                let greeted = Greeted { stream, start: BytesMut::new(), is_http1 };
                self.run(service, greeted, client).await
            }
        }
    }

    async fn run<S, B, IO>(
        &self,
        service: S,
        greeted: Greeted<IO>,
        client: Arc<Client>,
    ) -> io::Result<()>
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Greeted { stream, start, is_http1 } = greeted;
        let io = TokioIo::new(ClientIo::new(stream, start, is_http1, Arc::clone(&client)));
        let service = service_fn({
            let (worker, client) = (Arc::clone(&self.worker), Arc::clone(&client));
            move |request| {
                front::answer(Arc::clone(&worker), Arc::clone(&client), service.clone(), request)
            }
        });
        if is_http1 {
            let connection = self.http1.serve_connection(io, service).with_upgrades();
            self.watch(connection, client).await
        } else {
            self.watch(self.http2.serve_connection(io, service), client).await
        }
    }

    async fn watch<C>(&self, connection: C, client: Arc<Client>) -> io::Result<()>
    where
        C: Graceful<Output = hyper::Result<()>>,
    {
        let watched = Watched::new(connection, client, Arc::clone(&self.worker.shared));
        match watched.await {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(io::Error::other(chain(&error))),
        }
    }
}

fn http1_builder(bounds: &Bounds) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // `Watched` does that, and tells apart a slow head from an idle connection.
    builder.header_read_timeout(None);
    builder.max_buf_size(bounds.max_header_size as usize);
    // hyper's own bound is the quickest.
    if bounds.max_headers != HTTP1_HEADERS {
        builder.max_headers(usize::from(bounds.max_headers));
    }
    builder
}

fn http2_builder(bounds: &Bounds) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds.max_streams)
        .max_header_list_size(bounds.max_header_size)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    builder
}

/// Waits for a client to begin: not longer than for a head, and not when the gateway ends.
async fn greet<T>(shared: &Shared, greeting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::select! {
        greeted = timeout(shared.timeouts.header, greeting) => greeted?,
        () = shared.drain.reached(Stage::CloseIdle) => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// Reads until it is clear whether this is HTTP/2 without TLS.
async fn sniff(mut stream: TcpStream) -> io::Result<Greeted<TcpStream>> {
    let mut start = BytesMut::with_capacity(FIRST_READ);
    loop {
        if stream.read_buf(&mut start).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length = start.len().min(PREFACE.len());
        let is_http1 = start[..length] != PREFACE[..length];
        if is_http1 || length == PREFACE.len() {
            return Ok(Greeted { stream, start, is_http1 });
        }
    }
}
