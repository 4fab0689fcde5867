//! The gRPC side: the service itself, health and reflection.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Status, async_trait};
use tonic_health::server::health_reporter;
use tower_service::Service;

use super::EnvoyDoor;
use super::proto::{
    DESCRIPTORS, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer,
};
use crate::accept::{Door, Room};
use crate::drain::{Drain, Heeded, Stage, drive};
use crate::patient::{Patient, Pulse};
use crate::serve::meters::{DoorMeter, Outcome};
use crate::tokens::Tokens;
use crate::trace::Parent;

/// More than any proxy sends.
const MESSAGE_MAX: usize = 256 * 1024;
/// The headers of a request.
const HEADERS_MAX: u32 = 16 << 10;
/// Requests of a connection at a time.
const STREAMS_MAX: u32 = 1024;
/// What every client of HTTP/2 says first.
const PREFACE: u32 = 24;

#[async_trait]
impl RateLimitService for EnvoyDoor {
    /// What we cannot decide is an error: Envoy would let an unknown code pass, whatever it was told
    /// to do when nobody answers.
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let parent = Parent::of(request.metadata().as_ref());
        let decided = self.decide_measured(request.get_ref(), parent).await;
        decided.map(tonic::Response::new).map_err(|invalid| Status::invalid_argument(invalid.0))
    }
}

/// What the connections of one thread share.
pub(crate) struct Worker {
    limits: RateLimitServiceServer<EnvoyDoor>,
    /// Health and reflection, by name.
    others: Vec<(&'static str, Other)>,
    /// Who may ask, if not everybody.
    tokens: Arc<Tokens>,
    http: http2::Builder<TokioExecutor>,
    room: Room,
    drain: Drain,
    meter: Arc<DoorMeter>,
}

type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Other = Box<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

impl Worker {
    /// Must be called in the worker's runtime.
    pub(crate) async fn new(
        door: Arc<EnvoyDoor>,
        tokens: Arc<Tokens>,
        room: Room,
        drain: Drain,
    ) -> io::Result<Self> {
        let (health, health_service) = health_reporter();
        health.set_serving::<RateLimitServiceServer<EnvoyDoor>>().await;
        let drained = drain.clone();
        tokio::spawn(async move {
            drained.reached(Stage::LastAnswers).await;
            health.set_not_serving::<RateLimitServiceServer<EnvoyDoor>>().await;
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
        let limits = RateLimitServiceServer::from_arc(door).max_decoding_message_size(MESSAGE_MAX);
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEADERS_MAX);
        Ok(Self { limits, others, tokens, http, room, drain, meter })
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let service = request.uri().path().split('/').nth(1).unwrap_or_default();
        let is_limits = service == RateLimitServiceServer::<EnvoyDoor>::NAME;
        let other = || self.others.iter().find(|(name, _)| *name == service);
        if service != "grpc.health.v1.Health" && !self.tokens.allow(request.headers()) {
            self.meter.count(Outcome::Error);
            return Status::unauthenticated("a valid bearer token is needed").into_http();
        }
        let Some(_place) = self.room.enter() else {
            self.meter.count(Outcome::Error);
            return Status::unavailable("too many questions are under way").into_http();
        };
        if is_limits {
            return self.limits.clone().call(request).await.unwrap_or_else(|never| match never {});
        }
        match other() {
            Some((_, answer)) => answer(request).await,
            None => Status::unimplemented("there is no such service").into_http(),
        }
    }
}

/// A service that is not asked often.
fn other<S>(service: S) -> (&'static str, Other)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let answer: Other = Box::new(move |request| {
        let answering = service.clone().call(request);
        Box::pin(async { answering.await.unwrap_or_else(|never| match never {}) })
    });
    (S::NAME, answer)
}

impl Door for Worker {
    const PROTOCOLS: &'static [&'static [u8]] = &[b"h2"];

    async fn serve<S>(self: Arc<Self>, stream: S, peer: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let pulse = Pulse::lasting(PREFACE);
        let io = TokioIo::new(Patient::new(stream, Arc::clone(&pulse)));
        let worker = Arc::clone(&self);
        let service = service_fn(move |request| {
            let worker = Arc::clone(&worker);
            async move { Ok::<_, Infallible>(worker.answer(request).await) }
        });
        let connection = self.http.serve_connection(io, service);
        let ended = drive(connection, &self.drain, |stage, http| match stage {
            // HTTP/2 tells the client which requests will not be answered.
            Stage::Serve | Stage::LastAnswers => {
                http.graceful_shutdown();
                Heeded::GoesOn
            }
            Stage::CloseIdle if pulse.is_greeted() => Heeded::GoesOn,
            Stage::CloseIdle => Heeded::Cut,
        });
        if let Some(Err(error)) = ended.await {
            tracing::debug!(%peer, %error, "connection failed");
        }
    }
}
