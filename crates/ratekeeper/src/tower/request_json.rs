//! A tower layer that reads the JSON body of requests before their limits are known.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use http_body::Body;
use pin_project_lite::pin_project;
use ratekeeper_policy::json_fields::{JsonFields, JsonScanner};
use tower_layer::Layer;
use tower_service::Service;

use super::layer::LayerConfig;
use super::replayed_body::{ReadBody, ReplayedBody};

/// Maximum size of a body that is read, unless it is set.
const BYTES_MAX: usize = 1 << 20;

/// How many of the largest bodies may be held at once.
const BODIES_MAX: usize = 256;

/// A tower layer that reads the fields of a request's JSON body that the limits of the request depend on:
/// `request_json` in the policy. It goes outside of its [`RatekeeperLayer`](super::RatekeeperLayer), which
/// makes it: [`RatekeeperLayer::with_request_json`](super::RatekeeperLayer::with_request_json).
///
/// The body of a request is read only if a limit depends on it, and is passed on unchanged. Fields of a body
/// that is not JSON, larger than 1 MiB ([`RequestJsonLayer::with_max_bytes`]), or that would bring what is held
/// of all bodies beyond 256 times that, are not known.
///
/// ```
/// use ratekeeper::RatekeeperLayer;
/// use ratekeeper::policy::NoSources;
/// use ratekeeper::{Policy, PolicyLimiter};
/// use tower::ServiceBuilder;
///
/// let policy = Policy::parse("policy.yaml", "
/// version: 1
/// identify: { model: { request_json: model } }
/// limits:
///   - { name: requests, per: model, rate: 100/minute }
/// ", &NoSources)?;
/// let limits = RatekeeperLayer::new(PolicyLimiter::new(policy)?);
/// let layers = ServiceBuilder::new()
///     .layer(limits.request_json().with_max_bytes(100_000))
///     .layer(limits);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RequestJsonLayer {
    config: Arc<LayerConfig>,
    max_bytes: usize,
    /// What is held of the bodies of all requests, in bytes.
    held: Arc<AtomicUsize>,
}

impl RequestJsonLayer {
    pub(super) fn new(config: Arc<LayerConfig>) -> Self {
        Self { config, max_bytes: BYTES_MAX, held: Arc::default() }
    }

    /// Sets the size of the largest body that is read.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }
}

impl std::fmt::Debug for RequestJsonLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestJsonLayer")
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RequestJsonLayer {
    type Service = RequestJson<S>;

    fn layer(&self, inner: S) -> RequestJson<S> {
        RequestJson { inner, layer: self.clone() }
    }
}

/// A service before which bodies are read, from [`RequestJsonLayer`].
///
/// ```
/// use ratekeeper::tower::{ReplayedBody, RequestJsonLayer};
/// use tower::{Layer, service_fn};
///
/// fn f(bodies: &RequestJsonLayer) {
///     let service = bodies.layer(service_fn(|_: http::Request<ReplayedBody<String>>| async {
///         Ok::<_, std::convert::Infallible>(http::Response::new(()))
///     }));
///     let inner = service.into_inner();
/// }
/// ```
#[derive(Clone)]
pub struct RequestJson<S> {
    inner: S,
    layer: RequestJsonLayer,
}

impl<S> RequestJson<S> {
    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes this and returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for RequestJson<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestJson").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// In the extensions of a request: the fields of its body, or `None` if they are not known.
#[derive(Clone, Debug)]
pub(super) struct BodyFields(pub(super) Option<Arc<JsonFields>>);

impl<S, Q> Service<Request<Q>> for RequestJson<S>
where
    S: Service<Request<ReplayedBody<Q>>> + Clone,
    Q: Body<Data = Bytes>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = RequestJsonFuture<S, Q, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let config = &self.layer.config;
        let active = config.active_policy(&parts);
        let paths = active.policy().request_json();
        if paths.is_empty() {
            let request = Request::from_parts(parts, ReplayedBody::unread(body));
            return RequestJsonFuture::calling(self.inner.call(request));
        }
        let is_needed = config.needs_request_json(&active, &parts);
        let scanner = JsonScanner::new(paths);
        // The limits are those of the policy by which the body is read.
        parts.extensions.insert(active);
        let is_too_large = body.size_hint().lower() > self.layer.max_bytes as u64;
        if !is_needed || is_too_large || body.is_end_stream() {
            parts.extensions.insert(BodyFields(None));
            let request = Request::from_parts(parts, ReplayedBody::unread(body));
            return RequestJsonFuture::calling(self.inner.call(request));
        }
        let bytes_max = self.layer.max_bytes;
        let body = ReadBody::new(body, self.layer.held.clone(), bytes_max, BODIES_MAX * bytes_max);
        let clone = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, clone);
        RequestJsonFuture::reading(Reading { service, parts, body, scanner })
    }
}

/// A request whose body is being read.
struct Reading<S, Q: Body> {
    service: S,
    parts: Parts,
    body: ReadBody<Q>,
    scanner: JsonScanner,
}

impl<S, Q: Body<Data = Bytes>> Reading<S, Q> {
    /// Reads until the body ends, or its fields cannot be known.
    fn poll_fields(&mut self, context: &mut Context<'_>) -> Poll<Option<JsonFields>> {
        loop {
            let Some(bytes) = ready!(self.body.poll_read(context)) else {
                let fields = if self.body.is_whole() { self.scanner.finish() } else { None };
                return Poll::Ready(fields.cloned());
            };
            self.scanner.feed(&bytes);
            if self.scanner.is_invalid() {
                return Poll::Ready(None);
            }
        }
    }
}

pin_project! {
    /// The response of a service `S` to a request with the body `Q`. `F` is the future of the service.
    pub struct RequestJsonFuture<S, Q, F>
    where
        Q: Body,
    {
        #[pin]
        state: ReadState<S, Q, F>,
    }
}

pin_project! {
    #[project = ReadStatePinned]
    enum ReadState<S, Q, F>
    where
        Q: Body,
    {
        Reading { reading: Option<Box<Reading<S, Q>>> },
        Calling { #[pin] response: F },
    }
}

impl<S, Q: Body, F> RequestJsonFuture<S, Q, F> {
    fn calling(response: F) -> Self {
        Self { state: ReadState::Calling { response } }
    }

    fn reading(reading: Reading<S, Q>) -> Self {
        Self { state: ReadState::Reading { reading: Some(Box::new(reading)) } }
    }
}

impl<S, Q, F, T, E> Future for RequestJsonFuture<S, Q, F>
where
    S: Service<Request<ReplayedBody<Q>>, Future = F>,
    F: Future<Output = Result<T, E>>,
    Q: Body<Data = Bytes>,
{
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                ReadStatePinned::Calling { response } => return response.poll(context),
                ReadStatePinned::Reading { reading } => {
                    let pending = reading.as_mut().expect("polled after it was ready");
                    let fields = ready!(pending.poll_fields(context));
                    let reading = reading.take().expect("it was polled just now");
                    let Reading { mut service, mut parts, body, .. } = *reading;
                    parts.extensions.insert(BodyFields(fields.map(Arc::new)));
                    let request = Request::from_parts(parts, ReplayedBody::read(body));
                    let response = service.call(request);
                    this.state.set(ReadState::Calling { response });
                }
            }
        }
    }
}
