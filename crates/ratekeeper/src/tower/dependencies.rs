//! A tower layer with the dependencies of a policy.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use ratekeeper_control::adaptive::SampleOutcome;
use tower_layer::Layer;
use tower_service::Service;

use super::body::{Held, ResponseBody};
use super::breaker::{grpc_status, is_failed};
use super::layer::{LayerConfig, is_grpc};
use super::rejection::Rejection;
use super::response::reject_call;
use crate::adaptive_limit::load_of;
use crate::dependency::{CallOutcome, Dependency, DependencyPermit, DependencyRejected};

/// A mark in the extensions of a response whose request reached no dependency: it counts neither as success nor as
/// failure of one. The responses of [`reject`](super::reject) and [`reject_call`] need no mark.
///
/// ```
/// use http::Response;
/// use ratekeeper::tower::NotCalled;
///
/// let mut response = Response::new("busy");
/// response.extensions_mut().insert(NotCalled);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotCalled;

/// A tower layer that protects the dependencies of a policy that have a `match`, from
/// [`RatekeeperLayer::dependencies`](super::RatekeeperLayer::dependencies).
///
/// A request takes a permit of each dependency whose `match` fits, in the order of the policy, and holds it until the
/// body of the response has been read to its end or dropped. One that gets no permit is rejected, as
/// [`reject_call`] does. A response 503 or 504 counts as overload of the dependencies, another one of 5xx as failure,
/// and 429 as neither.
///
/// ```no_run
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, routing::get};
/// use ratekeeper::RatekeeperLayer;
///
/// let limits = RatekeeperLayer::open("policy.yaml")?;
/// let app: Router = Router::new()
///     .route("/stock/{id}", get(|| async { "…" }))
///     // Inside of the limits: what they refuse is no call.
///     .layer(limits.dependencies())
///     .layer(limits);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DependencyLayer {
    config: Arc<LayerConfig>,
}

impl DependencyLayer {
    pub(super) fn new(config: Arc<LayerConfig>) -> Self {
        Self { config }
    }
}

impl std::fmt::Debug for DependencyLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DependencyLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for DependencyLayer {
    type Service = DependencyService<S>;

    fn layer(&self, inner: S) -> DependencyService<S> {
        DependencyService { inner, config: Arc::clone(&self.config) }
    }
}

/// A service whose dependencies are protected, from [`DependencyLayer`].
#[derive(Clone)]
pub struct DependencyService<S> {
    inner: S,
    config: Arc<LayerConfig>,
}

impl<S> DependencyService<S> {
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

impl<S: std::fmt::Debug> std::fmt::Debug for DependencyService<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DependencyService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, Q, R> Service<Request<Q>> for DependencyService<S>
where
    S: Service<Request<Q>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    Q: Send + 'static,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = DependencyFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let dependencies = self.config.dependencies_of(&parts);
        let is_grpc = is_grpc(&parts.headers);
        let request = Request::from_parts(parts, body);
        if dependencies.is_empty() {
            return DependencyFuture {
                state: State::Direct { response: self.inner.call(request) },
            };
        }
        // The service that `poll_ready` found ready, and leaves a clone.
        let clone = self.inner.clone();
        let mut service = std::mem::replace(&mut self.inner, clone);
        let protected = Box::pin(async move {
            let mut permits = match acquire_all(&dependencies).await {
                Ok(permits) => permits,
                Err(rejected) => return Ok(reject_call(&rejected, is_grpc).map(ResponseBody::own)),
            };
            let response = service.call(request).await.inspect_err(|_| {
                permits.iter_mut().for_each(|permit| permit.report(CallOutcome::Failure));
            })?;
            Ok(report_and_hold(response, permits))
        });
        DependencyFuture { state: State::Protected { response: protected } }
    }
}

/// Takes a permit of each. Those that were taken before one rejects are released without an outcome.
async fn acquire_all(
    dependencies: &[Dependency],
) -> Result<Vec<DependencyPermit>, DependencyRejected> {
    let mut permits = Vec::with_capacity(dependencies.len());
    for dependency in dependencies {
        permits.push(dependency.acquire().await?);
    }
    Ok(permits)
}

/// Reports what a response says about the dependencies, and keeps the permits until its body ends.
fn report_and_hold<R: Body<Data = Bytes>>(
    response: Response<R>,
    mut permits: Vec<DependencyPermit>,
) -> Response<ResponseBody<R>> {
    let outcome = outcome_of(&response);
    permits.iter_mut().for_each(|permit| permit.report(outcome));
    response.map(|body| {
        let held = match body.is_end_stream() {
            true => Held::Nothing,
            false => Held::Calls { _permits: permits },
        };
        ResponseBody::of_service(body, held)
    })
}

/// Returns what a response says about the dependency that made it: overload for 503 and 504, failure for others of 5xx,
/// and for the corresponding statuses of gRPC; nothing for 429, and for a response with [`NotCalled`] or a rejection.
///
/// ```
/// use http::Response;
/// use ratekeeper::CallOutcome;
/// use ratekeeper::tower::{NotCalled, outcome_of};
///
/// let mut response = Response::builder().status(503).body(()).unwrap();
/// assert_eq!(outcome_of(&response), CallOutcome::Overloaded);
/// response.extensions_mut().insert(NotCalled);
/// assert_eq!(outcome_of(&response), CallOutcome::Ignored);
/// ```
pub fn outcome_of<B>(response: &Response<B>) -> CallOutcome {
    if was_not_called(response.extensions()) {
        return CallOutcome::Ignored;
    }
    match load_of(response.status().as_u16(), grpc_status(response)) {
        SampleOutcome::Overload => CallOutcome::Overloaded,
        SampleOutcome::Success => CallOutcome::Success,
        SampleOutcome::Ignored if is_failed(response) => CallOutcome::Failure,
        SampleOutcome::Ignored => CallOutcome::Ignored,
    }
}

/// Returns whether the service behind a response was not called.
pub(super) fn was_not_called(extensions: &Extensions) -> bool {
    extensions.get::<NotCalled>().is_some()
        || extensions.get::<DependencyRejected>().is_some()
        || extensions.get::<Rejection>().is_some()
}

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

pin_project! {
    /// The response of a [`DependencyService`].
    pub struct DependencyFuture<F, R, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = StatePinned]
    enum State<F, R, E> {
        /// The request needs no dependency.
        Direct { #[pin] response: F },
        Protected { response: BoxFuture<Response<ResponseBody<R>>, E> },
    }
}

impl<F, R, E> Future for DependencyFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StatePinned::Direct { response } => {
                let response = ready!(response.poll(context))?;
                Poll::Ready(Ok(response.map(|body| ResponseBody::of_service(body, Held::Nothing))))
            }
            StatePinned::Protected { response } => response.as_mut().poll(context),
        }
    }
}

impl<F, R, E> std::fmt::Debug for DependencyFuture<F, R, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DependencyFuture").finish_non_exhaustive()
    }
}
