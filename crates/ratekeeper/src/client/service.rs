//! A client behind the layer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use super::call::{AttemptToSend, Exchange};
use super::error::{BoxError, OutboundError};
use super::outbound::Outbound;
use super::replay::ReplayBody;
use super::request::{Attempt, OutboundRequest};
use crate::admission::Admitted;
use crate::policy_handle::ActivePolicy;
use crate::tower::{Held, ResponseBody, is_grpc, request_plain_response};

const RETRY_COUNT: HeaderName = HeaderName::from_static("x-retry-count");
const GRPC_PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");

/// A client behind an [`Outbound`] layer.
///
/// It is always ready. When a request may be sent, it waits until a clone of the client is ready.
///
/// ```
/// use ratekeeper::client::Outbound;
/// use tower::{Layer, service_fn};
///
/// let client = service_fn(|_: http::Request<String>| async {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// });
/// let client = Outbound::new("100/s per host")?.layer(client);
/// let inner = client.into_inner();
/// # Ok::<(), ratekeeper::PolicyErrors>(())
/// ```
#[derive(Clone, Debug)]
pub struct OutboundService<S> {
    inner: S,
    outbound: Arc<Outbound>,
}

impl<S> OutboundService<S> {
    pub(super) fn new(inner: S, outbound: Outbound) -> Self {
        Self { inner, outbound: Arc::new(outbound) }
    }

    /// Returns a reference to the client.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the client.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes this and returns the client.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// Returns the layer, to read its counters.
    pub fn outbound(&self) -> &Outbound {
        &self.outbound
    }
}

impl<S, Q, R> Service<Request<Q>> for OutboundService<S>
where
    S: Service<Request<Q>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    Q: ReplayBody + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = OutboundError<Self::Response>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        let (service, outbound) = (self.inner.clone(), Arc::clone(&self.outbound));
        let mut exchange = HttpExchange::<S, Q> { service, body: Some(body), kept: None };
        Box::pin(async move { outbound.run(&mut head, &mut exchange).await })
    }
}

/// Sends requests by a tower service.
struct HttpExchange<S, Q: ReplayBody> {
    service: S,
    /// Until it is sent.
    body: Option<Q>,
    kept: Option<Q::Kept>,
}

impl<S, Q: ReplayBody> HttpExchange<S, Q> {
    /// Returns the body to send, and keeps what is needed to send it again.
    fn body(&mut self, attempt: &AttemptToSend) -> Option<Q> {
        match (self.body.take(), &self.kept) {
            (Some(body), _) if attempt.is_kept => {
                let (body, kept) = body.keep();
                self.kept = Some(kept);
                Some(body)
            }
            (Some(body), _) => Some(body),
            (None, Some(kept)) => Q::replay(kept),
            (None, None) => None,
        }
    }
}

/// Returns the head to send.
fn head_of(head: &mut Parts, attempt: &AttemptToSend) -> Parts {
    let mut parts = match attempt.is_kept {
        true => head.clone(),
        false => std::mem::replace(head, Request::new(()).into_parts().0),
    };
    prepare(&mut parts.headers, attempt);
    if attempt.number > 1 {
        parts.extensions.insert(Attempt(attempt.number));
    }
    parts
}

/// Sets the headers of an attempt.
pub(super) fn prepare(headers: &mut HeaderMap, attempt: &AttemptToSend) {
    if attempt.is_metered {
        request_plain_response(headers);
    }
    // So that the server, and who reads its logs, can tell attempts apart.
    if attempt.number > 1 {
        let name = if is_grpc(headers) { GRPC_PREVIOUS_ATTEMPTS } else { RETRY_COUNT };
        headers.insert(name, HeaderValue::from(attempt.number - 1));
    }
}

impl<S, Q, R> Exchange for HttpExchange<S, Q>
where
    S: Service<Request<Q>, Response = Response<R>> + Send,
    S::Future: Send,
    S::Error: Into<BoxError>,
    Q: ReplayBody + Send,
    R: Body<Data = Bytes>,
{
    type Head = Parts;
    type Raw = Response<R>;
    type Response = Response<ResponseBody<R>>;

    fn view(head: &Parts) -> OutboundRequest<'_> {
        OutboundRequest::of_parts(head)
    }

    fn method(head: &Parts) -> &Method {
        &head.method
    }

    fn headers(head: &Parts) -> &HeaderMap {
        &head.headers
    }

    fn extensions(head: &Parts) -> &Extensions {
        &head.extensions
    }

    fn content(&self, _: &Parts) -> Option<Bytes> {
        self.body.as_ref().and_then(Q::content)
    }

    async fn send(
        &mut self,
        head: &mut Parts,
        attempt: &AttemptToSend,
    ) -> Result<Response<R>, BoxError> {
        std::future::poll_fn(|context| self.service.poll_ready(context))
            .await
            .map_err(Into::into)?;
        let body = self.body(attempt).ok_or("the body of the request cannot be sent again")?;
        self.service
            .call(Request::from_parts(head_of(head, attempt), body))
            .await
            .map_err(Into::into)
    }

    fn is_replayable(&self) -> bool {
        self.body.is_some() || self.kept.as_ref().is_some_and(|kept| Q::replay(kept).is_some())
    }

    fn head(response: &Response<R>) -> (StatusCode, &HeaderMap) {
        (response.status(), response.headers())
    }

    fn finish(
        response: Response<R>,
        admitted: Option<(Box<Admitted>, Arc<ActivePolicy>)>,
        attempt: u32,
    ) -> Self::Response {
        finish_response(response, admitted, attempt)
    }
}

/// Returns a response that keeps what is charged by its body or is in flight until that ends.
pub(super) fn finish_response<R: Body<Data = Bytes>>(
    response: Response<R>,
    admitted: Option<(Box<Admitted>, Arc<ActivePolicy>)>,
    attempt: u32,
) -> Response<ResponseBody<R>> {
    let (mut head, body) = response.into_parts();
    if attempt > 1 {
        head.extensions.insert(Attempt(attempt));
    }
    let held = match admitted {
        Some((admitted, policy)) => Held::new(admitted, policy, &head, body.is_end_stream()),
        None => Held::Nothing,
    };
    Response::from_parts(head, ResponseBody::of_service(body, held))
}
