//! Serves HTTP/1 connections of the listeners that respond to everything themselves: the HTTP API and
//! the admin listener.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::drain::Drain;
use super::drive::{GracefulShutdown, drive};
use super::stream::ClientStream;
use super::ticks::Ticks;
use super::timeouts::{ConnState, Timeouts};

const TIMEOUTS: Timeouts = Timeouts {
    idle: Some(Duration::from_secs(120)),
    header: Duration::from_secs(15),
    first_request: Duration::MAX,
    write: Duration::from_secs(30),
    unread_response: None,
};

/// Serves the requests of one connection, in order.
pub(crate) async fn serve_http1<S, F, B>(
    http: &http1::Builder,
    stream: S,
    peer: SocketAddr,
    ticks: Ticks,
    drain: &Drain,
    respond: impl Fn(Request<Incoming>) -> F + Send,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let conn = ConnState::new(peer, ticks);
    let stream = ClientStream::new(stream, Arc::clone(&conn)).tracking_headers();
    let of_service = Arc::clone(&conn);
    let service = service_fn(move |request| {
        let conn = Arc::clone(&of_service);
        conn.set_in_header(false);
        let in_flight = InFlight::begin(conn);
        let response = respond(request);
        async move {
            let response = response.await;
            Ok::<_, Infallible>(response.map(|body| CountedBody { body, _in_flight: in_flight }))
        }
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let shutdown = GracefulShutdown::http1(http1::Connection::graceful_shutdown);
    let driven = drive(connection, Some(shutdown), &conn, &TIMEOUTS, drain).await;
    if let Some(Err(error)) = driven {
        tracing::debug!(%peer, %error, "connection failed");
    }
}

/// A request that is served until this is dropped.
struct InFlight(Arc<ConnState>);

impl InFlight {
    fn begin(conn: Arc<ConnState>) -> Self {
        conn.begin_request();
        Self(conn)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.end_request();
    }
}

/// The body of a response, which ends a request when it has been sent: a stream of events may take hours.
struct CountedBody<B> {
    body: B,
    _in_flight: InFlight,
}

impl<B: Body + Unpin> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the HTTP/1 response to a connection beyond the limit.
pub(crate) fn too_many_connections(server: &str) -> Vec<u8> {
    let message = format!("{server} has too many connections");
    let body = format!("{{\"code\":\"TOO_MANY_CONNECTIONS\",\"message\":\"{message}\"}}\n");
    let length = body.len();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    response.into_bytes()
}
