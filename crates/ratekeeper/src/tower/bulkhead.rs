//! Tower layers with a bulkhead.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::body::{Held, ResponseBody};
use super::layer::is_grpc;
use super::rejection::{ProtectError, Rejection};
use super::response::reject;
use crate::bulkhead::Bulkhead;
use crate::concurrency::Permit;

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// A tower layer that limits how many requests to a service are in flight, for any type of request.
///
/// A request that gets no permit fails with [`ProtectError::Rejected`]. A permit is held until the future of the
/// response ends or is dropped. For HTTP servers and clients, whose responses go on after that, see
/// [`HttpBulkheadLayer`].
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::Bulkhead;
/// use ratekeeper::tower::BulkheadLayer;
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let database = service_fn(|query: &'static str| async move { Ok::<_, std::io::Error>(query.len()) });
/// let bulkhead = Bulkhead::new(40)?.with_queue(100, Duration::from_millis(500));
/// let database = BulkheadLayer::new(bulkhead).layer(database);
/// assert_eq!(database.oneshot("select 1").await?, 8);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct BulkheadLayer {
    bulkhead: Bulkhead,
}

impl BulkheadLayer {
    /// Returns a layer. All services that it makes share the bulkhead.
    pub fn new(bulkhead: Bulkhead) -> Self {
        Self { bulkhead }
    }
}

impl<S> Layer<S> for BulkheadLayer {
    type Service = BulkheadService<S>;

    fn layer(&self, inner: S) -> BulkheadService<S> {
        BulkheadService { inner, bulkhead: self.bulkhead.clone() }
    }
}

/// A service behind a bulkhead, from [`BulkheadLayer`].
///
/// It is always ready. The future of a response waits for a permit, and then until a clone of the service is ready.
/// So requests wait in one queue, which is fair, bounded and known to metrics. A request joins it when its future is
/// first polled.
#[derive(Clone, Debug)]
pub struct BulkheadService<S> {
    inner: S,
    bulkhead: Bulkhead,
}

impl<S> BulkheadService<S> {
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

impl<S, Q> Service<Q> for BulkheadService<S>
where
    S: Service<Q> + Clone + Send + 'static,
    S::Future: Send,
    Q: Send + 'static,
{
    type Response = S::Response;
    type Error = ProtectError<S::Error>;
    type Future = BoxFuture<S::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let calling = call(self.bulkhead.clone(), self.inner.clone(), request);
        Box::pin(async move { calling.await.map(|(response, _permit)| response) })
    }
}

/// Calls the service with a permit, and returns that together with the response.
async fn call<S: Service<Q>, Q>(
    bulkhead: Bulkhead,
    mut service: S,
    request: Q,
) -> Result<(S::Response, Permit), ProtectError<S::Error>> {
    let permit = bulkhead.acquire().await;
    let permit = permit.map_err(|error| ProtectError::Rejected(Rejection::Bulkhead(error)))?;
    let ready = std::future::poll_fn(|context| service.poll_ready(context)).await;
    ready.map_err(ProtectError::Service)?;
    let response = service.call(request).await.map_err(ProtectError::Service)?;
    Ok((response, permit))
}

/// A tower layer that limits how many HTTP requests to a service are in flight.
///
/// A request that gets no permit gets 503 with `Retry-After`, as [`reject`](super::reject) makes it. A permit is held
/// until the body of the response has been read to its end or dropped.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::Bulkhead;
/// use ratekeeper::tower::HttpBulkheadLayer;
///
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, routing::get};
///
/// let bulkhead = Bulkhead::new(40)?.with_queue(100, Duration::from_millis(500));
/// let app: Router = Router::new()
///     .route("/report", get(|| async { "…" }))
///     .layer(HttpBulkheadLayer::new(bulkhead));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct HttpBulkheadLayer {
    bulkhead: Bulkhead,
}

impl HttpBulkheadLayer {
    /// Returns a layer. All services that it makes share the bulkhead.
    pub fn new(bulkhead: Bulkhead) -> Self {
        Self { bulkhead }
    }
}

impl<S> Layer<S> for HttpBulkheadLayer {
    type Service = HttpBulkheadService<S>;

    fn layer(&self, inner: S) -> HttpBulkheadService<S> {
        HttpBulkheadService { inner, bulkhead: self.bulkhead.clone() }
    }
}

/// An HTTP service behind a bulkhead, from [`HttpBulkheadLayer`]. It waits as [`BulkheadService`] does.
#[derive(Clone, Debug)]
pub struct HttpBulkheadService<S> {
    inner: S,
    bulkhead: Bulkhead,
}

impl<S> HttpBulkheadService<S> {
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

impl<S, Q, R> Service<Request<Q>> for HttpBulkheadService<S>
where
    S: Service<Request<Q>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    Q: Send + 'static,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let is_grpc = is_grpc(request.headers());
        let calling = call(self.bulkhead.clone(), self.inner.clone(), request);
        Box::pin(async move {
            match calling.await {
                Ok((response, permit)) => Ok(hold(response, permit)),
                Err(ProtectError::Rejected(rejection)) => {
                    Ok(reject(&rejection, is_grpc).map(ResponseBody::own))
                }
                Err(ProtectError::Service(error)) => Err(error),
            }
        })
    }
}

/// Returns a response that keeps the permit until its body ends.
fn hold<R: Body<Data = Bytes>>(response: Response<R>, permit: Permit) -> Response<ResponseBody<R>> {
    response.map(|body| {
        let held = match body.is_end_stream() {
            true => Held::Nothing,
            false => Held::Permit { _permit: permit },
        };
        ResponseBody::of_service(body, held)
    })
}
