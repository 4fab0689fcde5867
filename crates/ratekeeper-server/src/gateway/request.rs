//! One request of a client: its id, what it may not contain, its access log line, and its response.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use ratekeeper::DependencyRejected;
use ratekeeper::tower::{PeerAddr, RefusedBy, ShadowRefusedBy, X_REQUEST_ID};
use tower_service::Service;

use super::access_log::{Entry, Outcome};
use super::check::{CheckRules, check};
use super::client::Client;
use super::error::ProxyError;
use super::proxy::ServedBy;
use super::request_body::RequestBody;
use super::request_id;
use super::state::{Overload, WorkerState};
use crate::listener::OwnedInFlightPermit;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Responds to one request of a client, whatever happens.
pub(super) async fn handle<S, B>(
    worker: Arc<WorkerState>,
    client: Arc<Client>,
    service: S,
    mut request: Request<Incoming>,
) -> Result<Response<ClientBody<B>>, Infallible>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    let gateway = &worker.gateway;
    let in_flight = RequestGuard::new(&client, gateway.in_flight.try_acquire_owned());
    let name = &gateway.request_id_header;
    let id = match client.is_trusted {
        true => request_id::keep_or_generate(&worker.ids, request.headers(), name),
        false => request_id::generate(&worker.ids),
    };
    request.headers_mut().insert(name, id.clone());
    let is_http1 = request.version() <= Version::HTTP_11;
    let log =
        gateway.access_log.as_ref().map(|log| log.begin(&client, &request, &id, gateway.ticks));

    let policy = gateway.policy.limiter().policy().active();
    let rules = CheckRules {
        headers_max: usize::from(gateway.bounds.max_headers),
        request_id_header: name,
        policy: policy.policy(),
        default_host: &gateway.upstreams[0].host,
    };
    let checked = check(&mut request, &rules);
    // All layers see the same policy.
    request.extensions_mut().insert(policy);
    let result = match checked {
        Ok(()) if in_flight.permit.is_none() => {
            gateway.note_overload(Overload::InFlight);
            Err(ProxyError::Overloaded(Overload::InFlight))
        }
        Ok(()) => {
            let (bytes_max, ticks) = (gateway.bounds.max_body, gateway.ticks);
            let bounded = |body| RequestBody::new(body, bytes_max, &gateway.timeouts, ticks);
            call(service, client, request.map(bounded)).await
        }
        Err(error) => Err(error),
    };
    in_flight.client.note_response();
    let mut response = result.unwrap_or_else(|error| error.into_response(is_http1));
    if response.extensions().get::<RefusedBy>().is_some() {
        // It is in the header that the gateway is configured to use.
        response.headers_mut().remove(X_REQUEST_ID);
    }
    response.headers_mut().insert(name, id);
    if is_http1 && gateway.drain.is_draining() {
        response.headers_mut().entry(CONNECTION).or_insert(HeaderValue::from_static("close"));
    }
    let log = log.map(|mut entry| {
        let by = response.extensions_mut().remove::<ServedBy>();
        let extensions = response.extensions_mut();
        let limit = extensions.remove::<RefusedBy>().map(|limited| limited.limit);
        let dependency = extensions.remove::<DependencyRejected>().map(|one| one.dependency);
        let shadow = extensions.remove::<ShadowRefusedBy>().map(|shadow| shadow.limits);
        let outcome = Outcome {
            upstream: by.map(|ServedBy(name)| name),
            refused_by: limit.or(dependency),
            shadow: shadow.unwrap_or_default(),
        };
        entry.respond(response.status(), outcome);
        entry
    });
    Ok(response.map(|content| ClientBody { content, log, in_flight }))
}

async fn call<S, B>(
    mut service: S,
    client: Arc<Client>,
    mut request: Request<RequestBody>,
) -> Result<Response<Content<B>>, ProxyError>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    let failed = |error: S::Error| ProxyError::Internal(error.into().to_string());
    request.extensions_mut().insert(PeerAddr(client.peer));
    request.extensions_mut().insert(client);
    poll_fn(|cx| service.poll_ready(cx)).await.map_err(failed)?;
    let response = service.call(request).await.map_err(failed)?;
    Ok(response.map(|body| Content::Passed { body }))
}

/// Counts a request until its response is sent or given up.
struct RequestGuard {
    client: Arc<Client>,
    /// Whether a part of the response waits for the client to read it.
    is_unread: bool,
    /// `None` beyond the in-flight limit.
    permit: Option<OwnedInFlightPermit>,
}

impl RequestGuard {
    fn new(client: &Arc<Client>, permit: Option<OwnedInFlightPermit>) -> Self {
        client.conn.begin_request();
        Self { client: Arc::clone(client), is_unread: false, permit }
    }

    fn begin_unread(&mut self) {
        self.is_unread = true;
        self.client.conn.begin_unread();
    }

    fn end_unread(&mut self) {
        if std::mem::take(&mut self.is_unread) {
            self.client.conn.end_unread();
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.end_unread();
        self.client.conn.end_request();
    }
}

pin_project! {
    /// The body of a response on its way to the client.
    pub(super) struct ClientBody<B> {
        #[pin]
        content: Content<B>,
        log: Option<Box<Entry>>,
        in_flight: RequestGuard,
    }
}

pin_project! {
    #[project = ContentProjected]
    enum Content<B> {
        Own { bytes: Option<Bytes> },
        Passed { #[pin] body: B },
    }
}

impl<B> From<Bytes> for Content<B> {
    fn from(bytes: Bytes) -> Self {
        Self::Own { bytes: Some(bytes) }
    }
}

impl<B> Body for ClientBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        this.in_flight.end_unread();
        let polled = match this.content.project() {
            ContentProjected::Own { bytes } => {
                Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b))))
            }
            ContentProjected::Passed { body } => body.poll_frame(cx).map_err(Into::into),
        };
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            this.in_flight.begin_unread();
            if let Some(entry) = this.log {
                entry.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Own { bytes } => bytes.is_none(),
            Content::Passed { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Content::Passed { body } => body.size_hint(),
        }
    }
}
