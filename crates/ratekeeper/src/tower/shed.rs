//! Tower layers that shed load.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use ratekeeper_control::{Class, Shed};
use tower_layer::Layer;
use tower_service::Service;

use super::body::{Held, ResponseBody};
use super::layer::is_grpc;
use super::rejection::{ProtectError, Rejection};
use super::response::reject;
use crate::clock::Clock;
use crate::shedder::Shedder;

/// How a shedder decides about requests of which `T` is known.
struct ShedRules<T> {
    class: Arc<ClassOf<T>>,
    user: Arc<UserOf<T>>,
    admit: Arc<Admit>,
}

type ClassOf<T> = dyn Fn(&T) -> Class + Send + Sync;
type UserOf<T> = dyn Fn(&T) -> Option<Vec<u8>> + Send + Sync;
type Admit = dyn Fn(Class, Option<&[u8]>) -> Result<(), Shed> + Send + Sync;

impl<T> ShedRules<T> {
    /// All requests are of the highest class, and of unknown users.
    fn new<C: Clock + 'static>(shedder: Shedder<C>) -> Self {
        let admit = move |class, user: Option<&[u8]>| match user {
            Some(user) => shedder.admit(class, user),
            None => shedder.admit_anonymous(class),
        };
        let (class, user) = (Arc::new(|_: &T| Class::new(0)), Arc::new(|_: &T| None));
        Self { class, user, admit: Arc::new(admit) }
    }

    fn with_class(self, class: impl Fn(&T) -> Class + Send + Sync + 'static) -> Self {
        Self { class: Arc::new(class), ..self }
    }

    fn with_user<V: Into<Vec<u8>>>(
        self,
        user: impl Fn(&T) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        Self { user: Arc::new(move |request| user(request).map(Into::into)), ..self }
    }

    fn admit(&self, request: &T) -> Result<(), Shed> {
        (self.admit)((self.class)(request), (self.user)(request).as_deref())
    }
}

impl<T> Clone for ShedRules<T> {
    fn clone(&self) -> Self {
        let Self { class, user, admit } = self;
        Self { class: class.clone(), user: user.clone(), admit: admit.clone() }
    }
}

/// A tower layer that sheds requests under overload, for any type `Q` of request.
///
/// A request that is shed fails with [`ProtectError::Rejected`], without a call of the service. For HTTP, see
/// [`HttpShedLayer`].
///
/// ```
/// use ratekeeper::tower::ShedLayer;
/// use ratekeeper::{Class, Shedder, ShedderConfig};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// struct Job { customer: String, is_prefetch: bool }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = ShedLayer::new(Shedder::new(ShedderConfig::DEFAULT)?)
///     .class(|job: &Job| if job.is_prefetch { Class::SHEDDABLE } else { Class::CRITICAL })
///     .user(|job| Some(job.customer.clone()));
/// let service = layer.layer(service_fn(|_: Job| async { Ok::<_, std::io::Error>("done") }));
///
/// let job = Job { customer: "ann".into(), is_prefetch: true };
/// assert_eq!(service.oneshot(job).await?, "done");
/// # Ok(()) }
/// ```
pub struct ShedLayer<Q> {
    rules: ShedRules<Q>,
}

impl<Q> ShedLayer<Q> {
    /// Returns a layer by which all requests are of the highest class, and of unknown users.
    pub fn new<C: Clock + 'static>(shedder: Shedder<C>) -> Self {
        Self { rules: ShedRules::new(shedder) }
    }

    /// Sets how the class of a request is found.
    #[must_use]
    pub fn class(self, class: impl Fn(&Q) -> Class + Send + Sync + 'static) -> Self {
        Self { rules: self.rules.with_class(class) }
    }

    /// Sets how the user of a request is found, so that the same users are served for a while. `None` if it is not
    /// known.
    #[must_use]
    pub fn user<V: Into<Vec<u8>>>(
        self,
        user: impl Fn(&Q) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        Self { rules: self.rules.with_user(user) }
    }
}

impl<Q> Clone for ShedLayer<Q> {
    fn clone(&self) -> Self {
        Self { rules: self.rules.clone() }
    }
}

impl<Q> fmt::Debug for ShedLayer<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedLayer").finish_non_exhaustive()
    }
}

impl<S, Q> Layer<S> for ShedLayer<Q> {
    type Service = ShedService<S, Q>;

    fn layer(&self, inner: S) -> ShedService<S, Q> {
        ShedService { inner, rules: self.rules.clone() }
    }
}

/// A service before which requests of the type `Q` are shed, from [`ShedLayer`].
pub struct ShedService<S, Q> {
    inner: S,
    rules: ShedRules<Q>,
}

impl<S, Q> ShedService<S, Q> {
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

impl<S: Clone, Q> Clone for ShedService<S, Q> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rules: self.rules.clone() }
    }
}

impl<S: fmt::Debug, Q> fmt::Debug for ShedService<S, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: Service<Q>, Q> Service<Q> for ShedService<S, Q> {
    type Response = S::Response;
    type Error = ProtectError<S::Error>;
    type Future = ShedFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(ProtectError::Service)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        match self.rules.admit(&request) {
            Ok(()) => ShedFuture::calling(self.inner.call(request)),
            Err(shed) => ShedFuture::shed(shed),
        }
    }
}

pin_project! {
    /// The response of a service before which requests are shed. `F` is the future of the service.
    pub struct ShedFuture<F> {
        #[pin]
        state: CallState<F>,
    }
}

pin_project! {
    #[project = CallStatePinned]
    enum CallState<F> {
        Calling { #[pin] response: F },
        Shed { shed: Shed },
    }
}

impl<F> ShedFuture<F> {
    fn calling(response: F) -> Self {
        Self { state: CallState::Calling { response } }
    }

    fn shed(shed: Shed) -> Self {
        Self { state: CallState::Shed { shed } }
    }
}

impl<F, T, E> Future for ShedFuture<F>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, ProtectError<E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            CallStatePinned::Calling { response } => {
                response.poll(context).map_err(ProtectError::Service)
            }
            CallStatePinned::Shed { shed } => {
                Poll::Ready(Err(ProtectError::Rejected(Rejection::Shed(*shed))))
            }
        }
    }
}

/// A tower layer that sheds HTTP requests under overload.
///
/// A request that is shed gets 503 with `Retry-After`, as [`reject`](super::reject) makes it, without a call of the
/// service.
///
/// ```
/// use ratekeeper::tower::HttpShedLayer;
/// use ratekeeper::{Class, Shedder, ShedderConfig};
///
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, routing::get};
///
/// let layer = HttpShedLayer::new(Shedder::new(ShedderConfig::DEFAULT)?)
///     .class(|request| match request.uri.path() {
///         "/checkout" => Class::CRITICAL,
///         _ => Class::SHEDDABLE,
///     })
///     .user(|request| Some(request.headers.get("x-user")?.as_bytes().to_vec()));
/// let app: Router = Router::new().route("/checkout", get(|| async { "…" })).layer(layer);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct HttpShedLayer {
    rules: ShedRules<Parts>,
}

impl HttpShedLayer {
    /// Returns a layer by which all requests are of the highest class, and of unknown users.
    pub fn new<C: Clock + 'static>(shedder: Shedder<C>) -> Self {
        Self { rules: ShedRules::new(shedder) }
    }

    /// Sets how the class of a request is found.
    #[must_use]
    pub fn class(self, class: impl Fn(&Parts) -> Class + Send + Sync + 'static) -> Self {
        Self { rules: self.rules.with_class(class) }
    }

    /// Sets how the user of a request is found, so that the same users are served for a while. `None` if it is not
    /// known.
    #[must_use]
    pub fn user<V: Into<Vec<u8>>>(
        self,
        user: impl Fn(&Parts) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        Self { rules: self.rules.with_user(user) }
    }
}

impl fmt::Debug for HttpShedLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpShedLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for HttpShedLayer {
    type Service = HttpShedService<S>;

    fn layer(&self, inner: S) -> HttpShedService<S> {
        HttpShedService { inner, rules: self.rules.clone() }
    }
}

/// An HTTP service before which requests are shed, from [`HttpShedLayer`].
#[derive(Clone)]
pub struct HttpShedService<S> {
    inner: S,
    rules: ShedRules<Parts>,
}

impl<S> HttpShedService<S> {
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

impl<S: fmt::Debug> fmt::Debug for HttpShedService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpShedService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, Q, R> Service<Request<Q>> for HttpShedService<S>
where
    S: Service<Request<Q>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = HttpShedFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let is_grpc = is_grpc(request.headers());
        let (parts, body) = request.into_parts();
        let response = match self.rules.admit(&parts) {
            Ok(()) => ShedFuture::calling(self.inner.call(Request::from_parts(parts, body))),
            Err(shed) => ShedFuture::shed(shed),
        };
        HttpShedFuture { response, is_grpc }
    }
}

pin_project! {
    /// The response of an HTTP service before which requests are shed. `F` is the future of the service.
    pub struct HttpShedFuture<F> {
        #[pin]
        response: ShedFuture<F>,
        is_grpc: bool,
    }
}

impl<F, R, E> Future for HttpShedFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        Poll::Ready(match ready!(this.response.poll(context)) {
            Ok(response) => Ok(response.map(|body| ResponseBody::of_service(body, Held::Nothing))),
            Err(ProtectError::Service(error)) => Err(error),
            Err(ProtectError::Rejected(rejection)) => {
                Ok(reject(&rejection, *this.is_grpc).map(ResponseBody::own))
            }
        })
    }
}
