//! Serves gRPC connections: authentication, then the rate limit service of Envoy or Kuadrant, health checks or
//! reflection.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Status, async_trait};
use tower_service::Service;

use super::health::{AuxiliaryServices, HEALTH, end_at_drain};
use super::rls::proto::{
    self, Code, CommitRequest, CommitResponse, KuadrantServiceServer, RateLimitRequest,
    RateLimitResponse, RateLimitServiceServer, ReserveRequest, ReserveResponse,
};
use super::rls::{KuadrantError, RateLimitService};
use crate::body::{BodyError, BodyLimits, read_body};
use crate::listener::{
    Accepted, ClientStream, ConnState, ConnectionHandler, Drain, GracefulShutdown, InFlightLimit,
    Ticks, Timeouts, drive,
};
use crate::serve::request_metrics::{Outcome, ProtocolMetrics, Tally};
use crate::tokens::Tokens;
use crate::trace::Parent;

/// The largest message, which is more than any proxy sends.
const MESSAGE_MAX: usize = 256 * 1024;
/// The largest header list of a request, in bytes.
const HEADERS_MAX: u32 = 16 << 10;
/// The bytes before a message: the compression flag and the length.
const MESSAGE_PREFIX: usize = 5;
/// The most concurrent requests of a connection.
const STREAMS_MAX: u32 = 256;
/// The most concurrent health checks of a worker.
const HEALTH_CHECKS_MAX: usize = 64;

const TIMEOUTS: Timeouts = Timeouts {
    // A proxy keeps its connections open, and sends requests when it has some.
    idle: None,
    header: Duration::from_secs(15),
    first_request: Duration::from_secs(60),
    write: Duration::from_secs(30),
    unread_response: None,
};

/// The rate limit services of one worker, with a limit of its own on requests in flight.
struct WorkerService {
    service: Arc<RateLimitService>,
    in_flight: InFlightLimit,
}

#[async_trait]
impl proto::RateLimitService for WorkerService {
    /// Decides a request. An invalid one gets an error, so that Envoy applies its failure mode: a response
    /// with an unknown code would pass. A request counts as in flight once all of it has been received.
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let Some(_permit) = self.in_flight.try_acquire() else {
            self.service.metrics.grpc.count(Outcome::Error);
            return Err(Status::unavailable("too many requests in flight; retry later"));
        };
        let parent = Parent::of(request.metadata().as_ref());
        let decided = self.service.decide_measured(request.get_ref(), parent).await;
        let response = decided.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(tonic::Response::new(response))
    }
}

#[async_trait]
impl proto::KuadrantService for WorkerService {
    async fn check_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let looked = self.service.look(request.into_inner());
        self.measured(looked, |response| Some(response.overall_code() != Code::OverLimit)).await
    }

    async fn report(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        self.measured(self.service.report(request.into_inner()), |_| None).await
    }

    async fn reserve(
        &self,
        request: tonic::Request<ReserveRequest>,
    ) -> Result<tonic::Response<ReserveResponse>, Status> {
        let reserved = self.service.reserve(request.into_inner());
        self.measured(reserved, |response| Some(response.code() != Code::OverLimit)).await
    }

    async fn commit(
        &self,
        request: tonic::Request<CommitRequest>,
    ) -> Result<tonic::Response<CommitResponse>, Status> {
        self.measured(self.service.commit(request.into_inner()), |_| None).await
    }
}

impl WorkerService {
    /// Handles a request of Kuadrant, and counts its outcome.
    async fn measured<T>(
        &self,
        handle: impl Future<Output = Result<T, KuadrantError>>,
        is_allowed: impl FnOnce(&T) -> Option<bool>,
    ) -> Result<tonic::Response<T>, Status> {
        let metrics = &self.service.metrics.grpc;
        let Some(_permit) = self.in_flight.try_acquire() else {
            metrics.count(Outcome::Error);
            return Err(Status::unavailable("too many requests in flight; retry later"));
        };
        let began = self.service.now();
        let handled = handle.await;
        let outcome = match &handled {
            Ok(response) => is_allowed(response).map_or(Outcome::Other, Outcome::of),
            Err(_) => Outcome::Error,
        };
        metrics.record(&Tally::one(outcome), self.service.now().since(began));
        Ok(tonic::Response::new(handled?))
    }
}

type RateLimitServer = RateLimitServiceServer<WorkerService>;
type KuadrantServer = KuadrantServiceServer<WorkerService>;

/// The services whose health is reported.
const SERVICES: &[&str] = &[RateLimitServer::NAME, KuadrantServer::NAME];

/// Serves the connections of one worker.
pub(crate) struct GrpcHandler {
    rate_limits: RateLimitServer,
    kuadrant: KuadrantServer,
    auxiliary: AuxiliaryServices,
    /// Accepted by all services except health checks, which need none.
    tokens: Arc<Tokens>,
    http: http2::Builder<TokioExecutor>,
    health_checks: InFlightLimit,
    drain: Drain,
    ticks: Ticks,
    metrics: Arc<ProtocolMetrics>,
}

impl GrpcHandler {
    /// Creates the handler. Must be called in the worker's runtime.
    pub(crate) async fn new(
        service: Arc<RateLimitService>,
        tokens: Arc<Tokens>,
        in_flight: InFlightLimit,
        drain: Drain,
    ) -> io::Result<Self> {
        let auxiliary = AuxiliaryServices::new(SERVICES, &drain, service.watch_ready()).await?;
        let metrics = Arc::clone(&service.metrics.grpc);
        let worker = Arc::new(WorkerService { service, in_flight });
        let rate_limits =
            RateLimitServer::from_arc(Arc::clone(&worker)).max_decoding_message_size(MESSAGE_MAX);
        let kuadrant = KuadrantServer::from_arc(worker).max_decoding_message_size(MESSAGE_MAX);
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEADERS_MAX);
        Ok(Self {
            rate_limits,
            kuadrant,
            auxiliary,
            tokens,
            http,
            health_checks: InFlightLimit::new(HEALTH_CHECKS_MAX),
            drain,
            ticks: Ticks::start(),
            metrics,
        })
    }

    async fn handle(&self, request: Request<Incoming>, conn: &ConnState) -> Response<Body> {
        let name = request.uri().path().split('/').nth(1).unwrap_or_default();
        if name == HEALTH {
            return self.check_health(request).await;
        }
        if !self.tokens.allow(request.headers()) {
            self.metrics.count(Outcome::Error);
            return Status::unauthenticated("a valid bearer token is required").into_http();
        }
        if name == RateLimitServer::NAME {
            let service = self.rate_limits.clone();
            return with_full_body(request, |request| limit(service, request, conn)).await;
        }
        if name == KuadrantServer::NAME {
            let service = self.kuadrant.clone();
            return with_full_body(request, |request| limit(service, request, conn)).await;
        }
        let Some(service) = self.auxiliary.get(name) else {
            return Status::unimplemented("unknown service").into_http();
        };
        conn.confirm();
        let response = service(request.map(Body::new)).await;
        end_at_drain(response, &self.drain)
    }

    /// Health checks need no token, so they have an in-flight limit of their own.
    async fn check_health(&self, request: Request<Incoming>) -> Response<Body> {
        let Some(service) = self.auxiliary.get(HEALTH) else {
            return Status::unimplemented("unknown service").into_http();
        };
        let Some(_permit) = self.health_checks.try_acquire() else {
            return Status::unavailable("too many health checks in flight").into_http();
        };
        let response = with_full_body(request, |request| service(request.map(Body::new))).await;
        end_at_drain(response, &self.drain)
    }
}

/// Calls a rate limit service.
async fn limit<S>(mut service: S, request: Request<Full<Bytes>>, conn: &ConnState) -> Response<Body>
where
    S: Service<Request<Full<Bytes>>, Response = Response<Body>, Error = Infallible>,
{
    // From now on the connection may be idle.
    conn.confirm();
    let Ok(response) = service.call(request).await;
    response
}

/// Receives the message of a request, and then calls the service.
async fn with_full_body<B, F>(
    request: Request<B>,
    call: impl FnOnce(Request<Full<Bytes>>) -> F,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    F: Future<Output = Response<Body>>,
{
    let (head, body) = request.into_parts();
    match read_body(body, BodyLimits::of_message(MESSAGE_MAX + MESSAGE_PREFIX)).await {
        Ok(body) => call(Request::from_parts(head, Full::new(body))).await,
        Err(error) => body_error_status(&error).into_http(),
    }
}

fn body_error_status(error: &BodyError) -> Status {
    match error {
        BodyError::TooLarge => {
            Status::resource_exhausted(format!("the message is larger than {MESSAGE_MAX} bytes"))
        }
        BodyError::TooSlow => Status::deadline_exceeded("the message was not received in time"),
        BodyError::Broken(_) => Status::invalid_argument("the message is incomplete"),
    }
}

impl ConnectionHandler for GrpcHandler {
    const ALPN: &'static [&'static [u8]] = &[b"h2"];

    async fn serve<S>(self: Arc<Self>, stream: S, accepted: Accepted)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let peer = accepted.peer;
        let conn = ConnState::http2(peer, self.ticks);
        conn.expect_first_request();
        let io = TokioIo::new(ClientStream::new(stream, Arc::clone(&conn)));
        let (handler, service_conn) = (Arc::clone(&self), Arc::clone(&conn));
        let service = service_fn(move |request| {
            let (handler, conn) = (Arc::clone(&handler), Arc::clone(&service_conn));
            async move { Ok::<_, Infallible>(handler.handle(request, &conn).await) }
        });
        let connection = self.http.serve_connection(io, service);
        let shutdown = GracefulShutdown::http2(http2::Connection::graceful_shutdown);
        let driven = drive(connection, Some(shutdown), &conn, &TIMEOUTS, &self.drain).await;
        if let Some(Err(error)) = driven {
            tracing::debug!(%peer, %error, "connection failed");
        }
        drop(accepted);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{self, StreamExt};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// A message of which a byte arrives every three seconds.
    fn slow_body() -> impl http_body::Body<Data = Bytes, Error = Infallible> {
        let bytes = stream::repeat(()).then(|()| async {
            sleep(Duration::from_secs(3)).await;
            Ok(Frame::data(Bytes::from_static(b"x")))
        });
        StreamBody::new(bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_message_times_out() {
        let started = Instant::now();
        let response =
            with_full_body(Request::new(slow_body()), |_| async { unreachable!() }).await;
        assert_eq!(response.headers()["grpc-status"], "4", "deadline exceeded");
        assert!(started.elapsed() < Duration::from_secs(11), "{:?}", started.elapsed());
    }
}
