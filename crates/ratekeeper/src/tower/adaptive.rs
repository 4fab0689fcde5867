//! Tower layers with an adaptive concurrency limit.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use ratekeeper_control::adaptive::SampleOutcome;
use tower_layer::Layer;
use tower_service::Service;

use super::body::{Held, ResponseBody};
use super::breaker::{Classify, grpc_status};
use super::dependencies::was_not_called;
use super::layer::is_grpc;
use super::rejection::{ProtectError, Rejection};
use super::response::reject;
use crate::adaptive_limit::{AdaptiveLimit, AdaptivePermit, load_of};
use crate::clock::{Clock, SystemClock};

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Says what the result of an HTTP request shows about the load of the service.
///
/// A status of 503 or 504 is overload, and so is UNAVAILABLE or DEADLINE_EXCEEDED of gRPC. Ignored are 429, other statuses
/// of 5xx, and errors of the service, because a request that failed at once says nothing about how long requests take. An
/// error that took long counts as overload, as a request does whose caller gave up: see
/// [`AdaptivePermit`](crate::AdaptivePermit). All else is a success.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassifyLoad;

impl<B, E> Classify<Response<B>, E, SampleOutcome> for ClassifyLoad {
    fn classify(&self, result: &Result<Response<B>, E>) -> SampleOutcome {
        let Ok(response) = result else { return SampleOutcome::Ignored };
        if was_not_called(response.extensions()) {
            return SampleOutcome::Ignored;
        }
        load_of(response.status().as_u16(), grpc_status(response))
    }
}

/// A tower layer that limits how many requests to a service are in flight, to a number that it learns, for any type of
/// request.
///
/// A function says what each result shows about the load of the service. A request that gets no permit fails with
/// [`ProtectError::Rejected`]. A permit is held until the future of the response ends or is dropped. For HTTP, see
/// [`HttpAdaptiveLimitLayer`].
///
/// ```
/// use ratekeeper::tower::AdaptiveLimitLayer;
/// use ratekeeper::{AdaptiveLimit, SampleOutcome};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let database = service_fn(|query: &'static str| async move { Ok::<_, std::io::Error>(query.len()) });
/// let layer = AdaptiveLimitLayer::new(AdaptiveLimit::default(), |result: &Result<_, std::io::Error>| match result {
///     Ok(_) => SampleOutcome::Success,
///     Err(error) if error.kind() == std::io::ErrorKind::TimedOut => SampleOutcome::Overload,
///     Err(_) => SampleOutcome::Ignored,
/// });
/// assert_eq!(layer.layer(database).oneshot("select 1").await?, 8);
/// # Ok(()) }
/// ```
pub struct AdaptiveLimitLayer<K, C = SystemClock> {
    limit: AdaptiveLimit<C>,
    classify: K,
}

impl<K, C: Clock> AdaptiveLimitLayer<K, C> {
    /// Returns a layer. All services that it makes share the limit.
    pub fn new<T, E>(limit: AdaptiveLimit<C>, classify: K) -> Self
    where
        K: Fn(&Result<T, E>) -> SampleOutcome,
    {
        Self { limit, classify }
    }
}

/// A tower layer that limits how many HTTP requests to a service are in flight, to a number that it learns.
///
/// A request that gets no permit gets 503 with `Retry-After`, as [`reject`](super::reject) makes it. The latency of a
/// request is the time to the head of its response, so that long streams do not look slow; the permit is held until the
/// body has been read to its end or dropped. [`ClassifyLoad`] says what a response shows.
///
/// ```
/// use ratekeeper::AdaptiveLimit;
/// use ratekeeper::tower::HttpAdaptiveLimitLayer;
///
/// use axum::{Router, routing::get};
///
/// let app: Router = Router::new()
///     .route("/search", get(|| async { "…" }))
///     .layer(HttpAdaptiveLimitLayer::new(AdaptiveLimit::default()));
/// ```
pub struct HttpAdaptiveLimitLayer<K = ClassifyLoad, C = SystemClock> {
    limit: AdaptiveLimit<C>,
    classify: K,
}

impl<C: Clock> HttpAdaptiveLimitLayer<ClassifyLoad, C> {
    /// Returns a layer. All services that it makes share the limit.
    pub fn new(limit: AdaptiveLimit<C>) -> Self {
        Self { limit, classify: ClassifyLoad }
    }
}

impl<K, C: Clock> HttpAdaptiveLimitLayer<K, C> {
    /// Says by this function what a result shows about the load of the service.
    pub fn classify<T, E, F>(self, classify: F) -> HttpAdaptiveLimitLayer<F, C>
    where
        F: Fn(&Result<T, E>) -> SampleOutcome,
    {
        HttpAdaptiveLimitLayer { limit: self.limit, classify }
    }
}

/// A service behind an adaptive limit, from [`AdaptiveLimitLayer`].
///
/// It is always ready. The future of a response waits for a permit, and then until a clone of the service is ready: see
/// [`BulkheadService`](super::BulkheadService).
pub struct AdaptiveLimitService<S, K, C = SystemClock> {
    inner: S,
    limit: AdaptiveLimit<C>,
    classify: K,
}

/// An HTTP service behind an adaptive limit, from [`HttpAdaptiveLimitLayer`]. It waits as [`AdaptiveLimitService`] does.
pub struct HttpAdaptiveLimitService<S, K = ClassifyLoad, C = SystemClock> {
    inner: S,
    limit: AdaptiveLimit<C>,
    classify: K,
}

/// What both pairs of a layer and its service have in common.
macro_rules! layer_and_service {
    ($layer:ident, $service:ident) => {
        impl<K: Clone, C> Clone for $layer<K, C> {
            fn clone(&self) -> Self {
                Self { limit: self.limit.clone(), classify: self.classify.clone() }
            }
        }

        impl<K, C> fmt::Debug for $layer<K, C> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let limit = &self.limit;
                f.debug_struct(stringify!($layer)).field("limit", limit).finish_non_exhaustive()
            }
        }

        impl<S, K: Clone, C> Layer<S> for $layer<K, C> {
            type Service = $service<S, K, C>;

            fn layer(&self, inner: S) -> Self::Service {
                $service { inner, limit: self.limit.clone(), classify: self.classify.clone() }
            }
        }

        impl<S, K, C> $service<S, K, C> {
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

        impl<S: Clone, K: Clone, C> Clone for $service<S, K, C> {
            fn clone(&self) -> Self {
                let (inner, limit) = (self.inner.clone(), self.limit.clone());
                Self { inner, limit, classify: self.classify.clone() }
            }
        }

        impl<S: fmt::Debug, K, C> fmt::Debug for $service<S, K, C> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut debug = f.debug_struct(stringify!($service));
                debug.field("inner", &self.inner).field("limit", &self.limit);
                debug.finish_non_exhaustive()
            }
        }
    };
}

layer_and_service!(AdaptiveLimitLayer, AdaptiveLimitService);
layer_and_service!(HttpAdaptiveLimitLayer, HttpAdaptiveLimitService);

impl<S, Q, K, C> Service<Q> for AdaptiveLimitService<S, K, C>
where
    S: Service<Q> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    Q: Send + 'static,
    K: Classify<S::Response, S::Error, SampleOutcome> + Clone + Send + 'static,
    C: Clock + 'static,
{
    type Response = S::Response;
    type Error = ProtectError<S::Error>;
    type Future = BoxFuture<S::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let (service, classify) = (self.inner.clone(), self.classify.clone());
        let calling = call(self.limit.clone(), service, classify, request);
        Box::pin(async move { calling.await.map(|(response, _permit)| response) })
    }
}

impl<S, Q, R, K, C> Service<Request<Q>> for HttpAdaptiveLimitService<S, K, C>
where
    S: Service<Request<Q>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Q: Send + 'static,
    R: Body<Data = Bytes> + Send,
    K: Classify<Response<R>, S::Error, SampleOutcome> + Clone + Send + 'static,
    C: Clock + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let is_grpc = is_grpc(request.headers());
        let (service, classify) = (self.inner.clone(), self.classify.clone());
        let calling = call(self.limit.clone(), service, classify, request);
        Box::pin(async move {
            match calling.await {
                Ok((response, permit)) => Ok(response.map(|body| {
                    let held = match body.is_end_stream() {
                        true => Held::Nothing,
                        false => Held::AdaptivePermit { _permit: Box::new(permit) },
                    };
                    ResponseBody::of_service(body, held)
                })),
                Err(ProtectError::Rejected(rejection)) => {
                    Ok(reject(&rejection, is_grpc).map(ResponseBody::own))
                }
                Err(ProtectError::Service(error)) => Err(error),
            }
        })
    }
}

/// Calls the service with a permit, reports the result to it, and returns it together with the response.
async fn call<S, Q, K, C>(
    limit: AdaptiveLimit<C>,
    mut service: S,
    classify: K,
    request: Q,
) -> Result<(S::Response, AdaptivePermit<'static, C>), ProtectError<S::Error>>
where
    S: Service<Q>,
    K: Classify<S::Response, S::Error, SampleOutcome>,
    C: Clock + 'static,
{
    let permit = limit.acquire().await;
    let permit = permit.map_err(|error| ProtectError::Rejected(Rejection::ConcurrencyLimit(error)));
    let mut permit = permit?.into_owned();
    let ready = std::future::poll_fn(|context| service.poll_ready(context)).await;
    ready.map_err(ProtectError::Service)?;
    let result = service.call(request).await;
    match classify.classify(&result) {
        // As one that is dropped: it is overload if it took long.
        SampleOutcome::Ignored if result.is_err() => {}
        outcome => permit.sample(outcome),
    }
    Ok((result.map_err(ProtectError::Service)?, permit))
}
