//! Connections of the HTTP API.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::CONNECTION;
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use tokio::io::{AsyncRead, AsyncWrite};

use super::HttpApi;
use super::instrument;
use super::response::{ApiResponse, draining, not_ready, too_many_in_flight};
use crate::listener::{
    Accepted, ConnectionHandler, Drain, InFlightLimit, Ticks, serve_http1, too_many_connections,
};
use crate::serve::request_metrics::Outcome;

const HEADERS_MAX: usize = 64;
/// The largest request line and headers.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// Serves the connections of one worker.
pub(crate) struct HttpApiHandler {
    api: Arc<HttpApi>,
    http: http1::Builder,
    in_flight: InFlightLimit,
    drain: Drain,
    ticks: Ticks,
}

impl HttpApiHandler {
    pub(crate) fn new(api: Arc<HttpApi>, in_flight: InFlightLimit, drain: Drain) -> Self {
        let mut http = http1::Builder::new();
        // The listener has its own timeouts, which do not set a timer for each request.
        http.header_read_timeout(None).max_headers(HEADERS_MAX).max_buf_size(HEADER_BYTES_MAX);
        Self { api, http, in_flight, drain, ticks: Ticks::start() }
    }

    async fn respond(&self, request: Request<Incoming>, peer: IpAddr) -> ApiResponse {
        let is_draining = self.drain.is_draining();
        let mut response = match self.in_flight.try_acquire() {
            // From this, proxies set up for envoyproxy/ratelimit know to send no more requests.
            Some(_) if is_draining && request.uri().path() == "/healthcheck" => draining(),
            Some(_) if !self.api.is_ready() && request.uri().path() == "/healthcheck" => {
                not_ready()
            }
            Some(_permit) => instrument::handle(&self.api, request, peer).await,
            None => {
                self.api.metrics.http.count(Outcome::Error);
                too_many_in_flight()
            }
        };
        if self.drain.is_draining() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl ConnectionHandler for HttpApiHandler {
    const ALPN: &'static [&'static [u8]] = &[b"http/1.1"];

    async fn serve<S>(self: Arc<Self>, stream: S, accepted: Accepted)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (handler, peer) = (Arc::clone(&self), accepted.peer);
        let respond = move |request| {
            let handler = Arc::clone(&handler);
            async move { handler.respond(request, peer.ip()).await }
        };
        serve_http1(&self.http, stream, peer, self.ticks, &self.drain, respond).await;
        drop(accepted);
    }

    fn rejection() -> Vec<u8> {
        too_many_connections("the server")
    }
}
