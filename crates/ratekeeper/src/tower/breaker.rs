//! A tower layer with a circuit breaker.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderName, Response};
use pin_project_lite::pin_project;
use ratekeeper_control::Outcome;
use tower_layer::Layer;
use tower_service::Service;

use crate::breaker::{CircuitBreaker, CircuitOpen, OwnedCall};
use crate::clock::{Clock, SystemClock};

/// A tower layer that calls a service through a [`CircuitBreaker`].
///
/// Responses of HTTP are classified by their status: see [`ClassifyStatus`]. For other services, or other rules, there
/// is [`CircuitBreakerLayer::classify`]. All services of a layer share its breaker, so use one layer for each dependency.
/// The time of a call ends with the head of the response.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use ratekeeper::tower::{CircuitBreakerError, CircuitBreakerLayer};
/// use ratekeeper::{BreakerConfig, CircuitBreaker};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let breaker = CircuitBreaker::new(BreakerConfig::DEFAULT.with_consecutive_failures(3))?;
/// let client = service_fn(|_: Request<()>| async {
///     let mut response = Response::new(());
///     *response.status_mut() = StatusCode::BAD_GATEWAY;
///     Ok::<_, std::convert::Infallible>(response)
/// });
/// let client = CircuitBreakerLayer::new(breaker).layer(client);
///
/// for _ in 0..3 {
///     assert_eq!(client.clone().oneshot(Request::new(())).await?.status(), 502);
/// }
/// match client.oneshot(Request::new(())).await {
///     Err(CircuitBreakerError::Open(open)) => assert!(open.retry_after.is_some()),
///     _ => unreachable!("it is open"),
/// }
/// # Ok(()) }
/// ```
pub struct CircuitBreakerLayer<K = ClassifyStatus, C = SystemClock> {
    breaker: CircuitBreaker<C>,
    classify: K,
}

impl<C: Clock> CircuitBreakerLayer<ClassifyStatus, C> {
    /// Returns a layer for HTTP.
    pub fn new(breaker: CircuitBreaker<C>) -> Self {
        Self { breaker, classify: ClassifyStatus }
    }
}

impl<K, C: Clock> CircuitBreakerLayer<K, C> {
    /// Classifies results by this function.
    ///
    /// ```
    /// use ratekeeper::tower::CircuitBreakerLayer;
    /// use ratekeeper::{CircuitBreaker, Outcome};
    ///
    /// let layer = CircuitBreakerLayer::new(CircuitBreaker::default()).classify(
    ///     |result: &Result<u64, std::io::Error>| match result {
    ///         Ok(_) => Outcome::Success,
    ///         Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Outcome::Ignored,
    ///         Err(_) => Outcome::Failure,
    ///     },
    /// );
    /// ```
    pub fn classify<T, E, F>(self, classify: F) -> CircuitBreakerLayer<F, C>
    where
        F: Fn(&Result<T, E>) -> Outcome,
    {
        CircuitBreakerLayer { breaker: self.breaker, classify }
    }

    /// Returns the breaker, to read its state and counters.
    pub fn breaker(&self) -> &CircuitBreaker<C> {
        &self.breaker
    }
}

impl<K: Clone, C> Clone for CircuitBreakerLayer<K, C> {
    fn clone(&self) -> Self {
        Self { breaker: self.breaker.clone(), classify: self.classify.clone() }
    }
}

impl<K, C> fmt::Debug for CircuitBreakerLayer<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let breaker = &self.breaker;
        f.debug_struct("CircuitBreakerLayer").field("breaker", breaker).finish_non_exhaustive()
    }
}

impl<S, K: Clone, C> Layer<S> for CircuitBreakerLayer<K, C> {
    type Service = CircuitBreakerService<S, K, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let (breaker, classify) = (self.breaker.clone(), self.classify.clone());
        CircuitBreakerService { inner, breaker, classify, is_inner_ready: false }
    }
}

/// Says whether the result of a call is a failure of the dependency.
///
/// Functions that take a reference to the result implement it. For an adaptive limit, it says what the result shows about
/// the load of the service.
///
/// ```
/// use ratekeeper::Outcome;
/// use ratekeeper::tower::{Classify, ClassifyStatus};
///
/// let mut response = http::Response::new(());
/// *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
/// let result = Ok::<_, std::io::Error>(response);
/// assert_eq!(ClassifyStatus.classify(&result), Outcome::Success);
/// ```
pub trait Classify<T, E, O = Outcome> {
    /// Returns what a result says about the dependency.
    fn classify(&self, result: &Result<T, E>) -> O;
}

impl<T, E, O, F: Fn(&Result<T, E>) -> O> Classify<T, E, O> for F {
    fn classify(&self, result: &Result<T, E>) -> O {
        self(result)
    }
}

/// Classifies results by the status of HTTP or gRPC.
///
/// An error of the service is a failure, and so is a status of 5xx. Every other status is a success, also 429: the
/// dependency works, and says that it was called too often. A gRPC response whose headers have a status is a failure if
/// it is UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE or DATA_LOSS; a status in its trailers is not seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassifyStatus;

/// Returns the status of gRPC, if it is in the headers.
pub(super) fn grpc_status<B>(response: &Response<B>) -> Option<&[u8]> {
    const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
    response.headers().get(GRPC_STATUS).map(|status| status.as_bytes())
}

impl<B, E> Classify<Response<B>, E> for ClassifyStatus {
    fn classify(&self, result: &Result<Response<B>, E>) -> Outcome {
        match result {
            Ok(response) if !is_failed(response) => Outcome::Success,
            _ => Outcome::Failure,
        }
    }
}

/// Returns whether a response is a failure of the service.
pub(super) fn is_failed<B>(response: &Response<B>) -> bool {
    match grpc_status(response) {
        Some(b"2" | b"4" | b"13" | b"14" | b"15") => true,
        _ => response.status().is_server_error(),
    }
}

/// A service behind a circuit breaker, from [`CircuitBreakerLayer`].
///
/// While the breaker is open the service is ready, so that a request is rejected and does not wait for the dependency.
/// An error by which the inner service says that it will never be ready counts as a failed call.
///
/// ```
/// use ratekeeper::CircuitBreaker;
/// use ratekeeper::tower::CircuitBreakerLayer;
/// use tower::{Layer, service_fn};
///
/// let layer = CircuitBreakerLayer::new(CircuitBreaker::default());
/// let service = layer.layer(service_fn(|_: http::Request<()>| async {
///     Ok::<_, std::convert::Infallible>(http::Response::new(()))
/// }));
/// let inner = service.into_inner();
/// ```
pub struct CircuitBreakerService<S, K = ClassifyStatus, C = SystemClock> {
    inner: S,
    breaker: CircuitBreaker<C>,
    classify: K,
    /// Whether the inner service was found to be ready since the last call.
    is_inner_ready: bool,
}

impl<S, K, C> CircuitBreakerService<S, K, C> {
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

/// A clone has to become ready itself.
impl<S: Clone, K: Clone, C> Clone for CircuitBreakerService<S, K, C> {
    fn clone(&self) -> Self {
        let (inner, classify) = (self.inner.clone(), self.classify.clone());
        Self { inner, breaker: self.breaker.clone(), classify, is_inner_ready: false }
    }
}

impl<S: fmt::Debug, K, C> fmt::Debug for CircuitBreakerService<S, K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CircuitBreakerService");
        debug.field("inner", &self.inner).field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

impl<S, Q, K, C> Service<Q> for CircuitBreakerService<S, K, C>
where
    S: Service<Q>,
    K: Classify<S::Response, S::Error> + Clone,
    C: Clock,
{
    type Response = S::Response;
    type Error = CircuitBreakerError<S::Error>;
    type Future = CircuitBreakerFuture<S::Future, K, C>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.breaker.peek().is_err() {
            return Poll::Ready(Ok(()));
        }
        let Err(error) = ready!(self.inner.poll_ready(context)) else {
            self.is_inner_ready = true;
            return Poll::Ready(Ok(()));
        };
        let result = Err(error);
        if let Ok(call) = self.breaker.try_call() {
            call.record(self.classify.classify(&result));
        }
        Poll::Ready(result.map(|_: S::Response| ()).map_err(CircuitBreakerError::Inner))
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let call = match self.is_inner_ready {
            true => self.breaker.try_call_owned(),
            false => Err(self.breaker.reject()),
        };
        let state = match call {
            Ok(call) => {
                self.is_inner_ready = false;
                let classify = self.classify.clone();
                CallState::Calling { result: self.inner.call(request), call: Some(call), classify }
            }
            Err(open) => CallState::Rejected { open },
        };
        CircuitBreakerFuture { state }
    }
}

pin_project! {
    /// The future of a call through a circuit breaker, from [`CircuitBreakerService`]. `F` is that of the inner service.
    ///
    /// If it is dropped before the response, the call is ignored, unless it was slow: see [`Call`](crate::Call).
    pub struct CircuitBreakerFuture<F, K, C: Clock> {
        #[pin]
        state: CallState<F, K, C>,
    }
}

pin_project! {
    #[project = CallStatePinned]
    enum CallState<F, K, C: Clock> {
        Calling { #[pin] result: F, call: Option<OwnedCall<C>>, classify: K },
        Rejected { open: CircuitOpen },
    }
}

impl<F, K, C, T, E> Future for CircuitBreakerFuture<F, K, C>
where
    F: Future<Output = Result<T, E>>,
    K: Classify<T, E>,
    C: Clock,
{
    type Output = Result<T, CircuitBreakerError<E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            CallStatePinned::Rejected { open } => {
                Poll::Ready(Err(CircuitBreakerError::Open(*open)))
            }
            CallStatePinned::Calling { result, call, classify } => {
                let result = ready!(result.poll(context));
                if let Some(call) = call.take() {
                    call.record(classify.classify(&result));
                }
                Poll::Ready(result.map_err(CircuitBreakerError::Inner))
            }
        }
    }
}

/// Why a call through a [`CircuitBreakerLayer`] has no response.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::tower::CircuitBreakerError;
///
/// fn retry_after<E>(error: &CircuitBreakerError<E>) -> Option<Duration> {
///     match error {
///         CircuitBreakerError::Open(open) => open.retry_after,
///         CircuitBreakerError::Inner(_) => None,
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CircuitBreakerError<E> {
    /// The breaker rejected it; the inner service was not called.
    #[error(transparent)]
    Open(CircuitOpen),
    /// The inner service failed.
    #[error("the call failed")]
    Inner(#[source] E),
}
