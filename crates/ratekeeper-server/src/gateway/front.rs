//! What stands before everything else: it knows the client, refuses what cannot be passed on, and
//! sees every answer off.

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
use ratekeeper::tower::{Limited, PeerAddr};
use tower_service::Service;

use super::access_log::Entry;
use super::check::{Rules, check};
use super::client::Client;
use super::error::ProxyError;
use super::proxy::AnsweredBy;
use super::shared::{Overload, Worker};
use crate::accept::OwnedPlace;
use crate::drain::Stage;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Answers one request of a client, whatever happens.
pub(super) async fn answer<S, B>(
    worker: Arc<Worker>,
    client: Arc<Client>,
    service: S,
    mut request: Request<Incoming>,
) -> Result<Response<FrontBody<B>>, Infallible>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    let shared = &worker.shared;
    let in_flight = InFlight::begin(&client, shared.in_flight.enter_owned());
    let name = &shared.request_id_header;
    let id = match client.is_trusted {
        true => worker.ids.take_over(request.headers(), name),
        false => worker.ids.make(),
    };
    request.headers_mut().insert(name, id.clone());
    let is_http1 = request.version() <= Version::HTTP_11;
    let log = shared.access_log.as_ref().map(|log| log.begin(&client, &request, &id, shared.ticks));

    let live = shared.policy.gate().policy().active();
    let rules = Rules {
        headers_max: usize::from(shared.bounds.max_headers),
        request_id_header: name,
        policy: live.policy(),
        default_host: &shared.upstreams[0].host,
    };
    let checked = check(&mut request, &rules);
    drop(live);
    let answered = match checked {
        Ok(()) if in_flight.place.is_none() => {
            shared.note_overload(Overload::InFlight);
            Err(ProxyError::Overloaded(Overload::InFlight))
        }
        Ok(()) => call(service, client, request).await,
        Err(error) => Err(error),
    };
    in_flight.client.activity.note_answer();
    let mut response = answered.unwrap_or_else(|error| error.into_response(is_http1));
    response.headers_mut().insert(name, id);
    if is_http1 && shared.drain.stage() > Stage::Serve {
        response.headers_mut().entry(CONNECTION).or_insert(HeaderValue::from_static("close"));
    }
    let log = log.map(|mut entry| {
        let by = response.extensions_mut().remove::<AnsweredBy>();
        let limit = response.extensions_mut().remove::<Limited>().map(|limited| limited.limit);
        entry.answered(response.status(), by.map(|AnsweredBy(name)| name), limit);
        entry
    });
    Ok(response.map(|what| FrontBody { what, log, in_flight }))
}

async fn call<S, B>(
    mut service: S,
    client: Arc<Client>,
    mut request: Request<Incoming>,
) -> Result<Response<What<B>>, ProxyError>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    let failed = |error: S::Error| ProxyError::Internal(error.into().to_string());
    request.extensions_mut().insert(PeerAddr(client.peer));
    request.extensions_mut().insert(client);
    poll_fn(|cx| service.poll_ready(cx)).await.map_err(failed)?;
    let response = service.call(request).await.map_err(failed)?;
    Ok(response.map(|body| What::Passed { body }))
}

/// Counts a request until its answer is sent or given up.
struct InFlight {
    client: Arc<Client>,
    /// Whether a part of the answer waits for the client.
    is_owed: bool,
    /// `None` for one too many.
    place: Option<OwnedPlace>,
}

impl InFlight {
    fn begin(client: &Arc<Client>, place: Option<OwnedPlace>) -> Self {
        client.activity.begin_request();
        Self { client: Arc::clone(client), is_owed: false, place }
    }

    fn owe(&mut self) {
        self.is_owed = true;
        self.client.activity.owe();
    }

    fn settle(&mut self) {
        if std::mem::take(&mut self.is_owed) {
            self.client.activity.settle();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.settle();
        self.client.activity.end_request();
    }
}

pin_project! {
    /// An answer's body, on its last step.
    pub(super) struct FrontBody<B> {
        #[pin]
        what: What<B>,
        log: Option<Box<Entry>>,
        in_flight: InFlight,
    }
}

pin_project! {
    #[project = WhatProjected]
    enum What<B> {
        Own { bytes: Option<Bytes> },
        Passed { #[pin] body: B },
    }
}

impl<B> From<Bytes> for What<B> {
    fn from(bytes: Bytes) -> Self {
        Self::Own { bytes: Some(bytes) }
    }
}

impl<B> Body for FrontBody<B>
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
        this.in_flight.settle();
        let polled = match this.what.project() {
            WhatProjected::Own { bytes } => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            WhatProjected::Passed { body } => body.poll_frame(cx).map_err(Into::into),
        };
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            this.in_flight.owe();
            if let Some(entry) = this.log {
                entry.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.what {
            What::Own { bytes } => bytes.is_none(),
            What::Passed { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.what {
            What::Own { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            What::Passed { body } => body.size_hint(),
        }
    }
}
