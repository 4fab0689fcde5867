//! The gRPC side: the service itself, health and reflection.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Status, async_trait};
use tonic_health::ServingStatus;
use tonic_health::server::health_reporter;
use tower_service::Service;

use super::RateLimitService;
use super::proto::{
    self, DESCRIPTORS, RateLimitRequest, RateLimitResponse, RateLimitServiceServer,
};
use crate::body::{BodyReadError, read_body};
use crate::listener::{
    Accepted, ClientStream, ConnState, ConnectionHandler, Drain, GracefulShutdown, InFlightLimit,
    Stage, StageWatch, Ticks, Timeouts, drive,
};
use crate::serve::meters::{DoorMeter, Outcome};
use crate::tokens::Tokens;
use crate::trace::Parent;

/// More than any proxy sends.
const MESSAGE_MAX: usize = 256 * 1024;
/// The headers of a request.
const HEADERS_MAX: u32 = 16 << 10;
/// What comes before a message: whether it is compressed, and its length.
const MESSAGE_HEAD: usize = 5;
/// Requests of a connection at a time.
const STREAMS_MAX: u32 = 256;
/// Health checks at a time.
const HEALTH_CHECKS_MAX: usize = 64;
const HEALTH: &str = "grpc.health.v1.Health";

/// The questions of one thread.
struct Questions {
    door: Arc<RateLimitService>,
    in_flight: InFlightLimit,
}

#[async_trait]
impl proto::RateLimitService for Questions {
    /// What we cannot decide is an error: Envoy would let an unknown code pass, whatever it was told
    /// to do when nobody answers. A question takes its place once all of it has come.
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let Some(_permit) = self.in_flight.try_acquire() else {
            self.door.meters.grpc.count(Outcome::Error);
            return Err(Status::unavailable("too many questions are under way"));
        };
        let parent = Parent::of(request.metadata().as_ref());
        let decided = self.door.decide_measured(request.get_ref(), parent).await;
        decided.map(tonic::Response::new).map_err(|invalid| Status::invalid_argument(invalid.0))
    }
}

type Limits = RateLimitServiceServer<Questions>;

const TIMEOUTS: Timeouts = Timeouts {
    // A proxy keeps its connections, and sends requests when it has some.
    idle: None,
    header: Duration::from_secs(15),
    first_request: Duration::from_secs(60),
    write: Duration::from_secs(30),
    unread_response: None,
};

/// Serves the connections of one worker.
pub(crate) struct GrpcHandler {
    limits: Limits,
    /// Health and reflection, by name.
    others: Vec<(&'static str, Other)>,
    /// The tokens of which requests need one.
    tokens: Arc<Tokens>,
    http: http2::Builder<TokioExecutor>,
    /// For health checks, which need no token.
    health_checks: InFlightLimit,
    drain: Drain,
    ticks: Ticks,
    meter: Arc<DoorMeter>,
}

type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Other = Box<dyn Fn(Request<Body>) -> Answering + Send + Sync>;

impl GrpcHandler {
    /// Must be called in the worker's runtime.
    pub(crate) async fn new(
        door: Arc<RateLimitService>,
        tokens: Arc<Tokens>,
        in_flight: InFlightLimit,
        drain: Drain,
    ) -> io::Result<Self> {
        let (health, health_service) = health_reporter();
        health.set_serving::<Limits>().await;
        let drained = drain.clone();
        tokio::spawn(async move {
            drained.reached(Stage::LastResponses).await;
            health.set_not_serving::<Limits>().await;
            // And for those who ask about the server as a whole.
            health.set_service_status("", ServingStatus::NotServing).await;
        });
        let reflection = || {
            let of_ours = tonic_reflection::server::Builder::configure();
            of_ours.register_encoded_file_descriptor_set(DESCRIPTORS)
        };
        let others = vec![
            other(health_service),
            other(reflection().build_v1().map_err(io::Error::other)?),
            // Older tools ask for it by its first name.
            other(reflection().build_v1alpha().map_err(io::Error::other)?),
        ];
        let meter = Arc::clone(&door.meters.grpc);
        let limits =
            Limits::new(Questions { door, in_flight }).max_decoding_message_size(MESSAGE_MAX);
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEADERS_MAX);
        let health_checks = InFlightLimit::new(HEALTH_CHECKS_MAX);
        Ok(Self {
            limits,
            others,
            tokens,
            http,
            health_checks,
            drain,
            ticks: Ticks::start(),
            meter,
        })
    }

    async fn answer(&self, request: Request<Incoming>, conn: &ConnState) -> Response<Body> {
        let service = request.uri().path().split('/').nth(1).unwrap_or_default();
        let is_health = service == HEALTH;
        if !is_health && !self.tokens.allow(request.headers()) {
            self.meter.count(Outcome::Error);
            return Status::unauthenticated("a valid bearer token is needed").into_http();
        }
        if service == Limits::NAME {
            let answer = |request| {
                // From now on the connection may be idle.
                conn.confirm();
                self.limits.clone().call(request)
            };
            let answer = |request| answer(request).map(|answer| answer.unwrap_or_else(never));
            return with_whole(request, answer).await;
        }
        let Some((_, answer)) = self.others.iter().find(|(name, _)| *name == service) else {
            return Status::unimplemented("there is no such service").into_http();
        };
        let answer = match is_health {
            // Anybody may ask for it, so it has no part in the room for questions.
            true => match self.health_checks.try_acquire() {
                Some(_permit) => {
                    with_whole(request, |request| answer(request.map(Body::new))).await
                }
                None => return Status::unavailable("too many ask for health").into_http(),
            },
            false => {
                conn.confirm();
                answer(request.map(Body::new)).await
            }
        };
        answer.map(|body| Body::new(UntilEnd { body, stage: StageWatch::new(&self.drain) }))
    }
}

fn never<T>(never: Infallible) -> T {
    match never {}
}

/// Answers a request whose message has come, if it does in time.
async fn with_whole<B, F>(
    request: Request<B>,
    answer: impl FnOnce(Request<Full<Bytes>>) -> F,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes>,
    F: Future<Output = Response<Body>>,
{
    let (head, body) = request.into_parts();
    match read_body(body, MESSAGE_MAX + MESSAGE_HEAD).await {
        Ok(body) => answer(Request::from_parts(head, Full::new(body))).await,
        Err(BodyReadError::TooLarge) => {
            let message =
                format!("the message is too large or broke off; at most {MESSAGE_MAX} bytes");
            Status::resource_exhausted(message).into_http()
        }
        Err(BodyReadError::TooSlow) => {
            Status::deadline_exceeded("the message did not come in time").into_http()
        }
    }
}

pin_project! {
    /// An answer that does not hold up the end of the server.
    struct UntilEnd {
        #[pin]
        body: Body,
        stage: StageWatch,
    }
}

impl http_body::Body for UntilEnd {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.project();
        match this.stage.poll_stage(cx) {
            Stage::CloseIdle => Poll::Ready(None),
            Stage::Serving | Stage::LastResponses => this.body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A service that is not asked often.
fn other<S>(service: S) -> (&'static str, Other)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let answer: Other = Box::new(move |request| {
        let answering = service.clone().call(request);
        Box::pin(async { answering.await.unwrap_or_else(never) })
    });
    (S::NAME, answer)
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
        let (handler, of_service) = (Arc::clone(&self), Arc::clone(&conn));
        let service = service_fn(move |request| {
            let (handler, conn) = (Arc::clone(&handler), Arc::clone(&of_service));
            async move { Ok::<_, Infallible>(handler.answer(request, &conn).await) }
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
    use http_body_util::StreamBody;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// A message that comes a byte at a time, every three seconds.
    fn dripping() -> impl http_body::Body<Data = Bytes, Error = Infallible> {
        let bytes = stream::repeat(()).then(|()| async {
            sleep(Duration::from_secs(3)).await;
            Ok(Frame::data(Bytes::from_static(b"x")))
        });
        StreamBody::new(bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_comes_in_drops_is_given_up() {
        let begun = Instant::now();
        let answered = with_whole(Request::new(dripping()), |_| async { unreachable!() }).await;
        assert_eq!(answered.headers()["grpc-status"], "4", "deadline exceeded");
        assert!(begun.elapsed() <= Duration::from_secs(10));
    }
}
