//! Instead of a refusal, the answer of a while ago, where a limit says `serve_stale`.
//!
//! It stands before the limits and sees what they refuse; whatever passes them and may be kept, it
//! keeps a copy of while it goes by.

mod cache;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate::Gate;
use tollgate::http::Limited;
use tollgate::policy::WhenLimited;
use tower_layer::Layer;
use tower_service::Service;

use super::ticks::Ticks;
use cache::{ANSWER_MAX, Asked, Cache};

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

#[derive(Clone)]
pub(super) struct StaleLayer {
    shared: Arc<Shared>,
}

struct Shared {
    cache: Cache,
    gate: Gate,
    ticks: Ticks,
}

impl StaleLayer {
    pub(super) fn new(gate: Gate, ticks: Ticks) -> Self {
        Self { shared: Arc::new(Shared { cache: Cache::default(), gate, ticks }) }
    }
}

impl<S> Layer<S> for StaleLayer {
    type Service = Stale<S>;

    fn layer(&self, inner: S) -> Stale<S> {
        Stale { inner, shared: self.shared.clone() }
    }
}

#[derive(Clone)]
pub(super) struct Stale<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S, Q, B> Service<Request<Q>> for Stale<S>
where
    S: Service<Request<Q>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    type Response = Response<StaleBody<B>>;
    type Error = S::Error;
    type Future = StaleFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let is_wanted = self.shared.gate.live().policy().serves_stale();
        let asked = if is_wanted { Asked::of(&request) } else { None };
        StaleFuture { answer: self.inner.call(request), asked, shared: self.shared.clone() }
    }
}

pin_project! {
    pub(super) struct StaleFuture<F> {
        #[pin]
        answer: F,
        asked: Option<Asked>,
        shared: Arc<Shared>,
    }
}

impl<F, B, E> Future for StaleFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<StaleBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.answer.poll(context).map_ok(|response| match this.asked.take() {
            Some(asked) => this.shared.answer(asked, response),
            None => response.map(StaleBody::passed),
        })
    }
}

impl Shared {
    fn answer<B>(self: &Arc<Self>, asked: Asked, response: Response<B>) -> Response<StaleBody<B>> {
        if let Some(stale) = self.stale(&asked, &response) {
            return stale;
        }
        let may_be_kept = asked.may_be_kept(response.status(), response.headers());
        let (parts, body) = response.into_parts();
        let copy = may_be_kept.then(|| Copy {
            asked,
            headers: parts.headers.clone(),
            so_far: BytesMut::new(),
            shared: self.clone(),
        });
        Response::from_parts(parts, StaleBody { body: Either::Passed { body }, copy })
    }

    /// What was answered before, if a limit that refused says that this is better.
    fn stale<B>(&self, asked: &Asked, refusal: &Response<B>) -> Option<Response<StaleBody<B>>> {
        let limited = refusal.extensions().get::<Limited>()?;
        let WhenLimited::ServeStale(age_max) = limited.when_limited else { return None };
        let (found, body) = self.cache.find(asked, age_max, self.ticks.now_us())?;
        let mut response =
            found.map(|()| StaleBody { body: Either::Kept { bytes: Some(body) }, copy: None });
        let status = format!("tollgate; hit; detail=\"limited by {}\"", limited.limit);
        if let Ok(status) = HeaderValue::try_from(status) {
            response.headers_mut().insert(CACHE_STATUS, status);
        }
        response.extensions_mut().insert(limited.clone());
        Some(response)
    }
}

pin_project! {
    /// An answer on its way, of which a copy may be made.
    pub(super) struct StaleBody<B> {
        #[pin]
        body: Either<B>,
        copy: Option<Copy>,
    }
}

pin_project! {
    #[project = EitherPinned]
    enum Either<B> {
        Passed { #[pin] body: B },
        Kept { bytes: Option<Bytes> },
    }
}

struct Copy {
    asked: Asked,
    headers: HeaderMap,
    so_far: BytesMut,
    shared: Arc<Shared>,
}

impl Copy {
    fn keep(self) {
        let Self { asked, headers, so_far, shared } = self;
        shared.cache.keep(asked, headers, so_far.freeze(), shared.ticks.now_us());
    }
}

impl<B> StaleBody<B> {
    fn passed(body: B) -> Self {
        Self { body: Either::Passed { body }, copy: None }
    }
}

impl<B: Body<Data = Bytes>> Body for StaleBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let body = match this.body.project() {
            EitherPinned::Kept { bytes } => {
                return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))));
            }
            EitherPinned::Passed { body } => body,
        };
        let Some(copy) = this.copy else { return body.poll_frame(context) };
        let mut body = body;
        let polled = body.as_mut().poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let data =
                    frame.data_ref().filter(|data| data.len() + copy.so_far.len() <= ANSWER_MAX);
                match data {
                    Some(data) => copy.so_far.extend_from_slice(data),
                    // Too long, or with trailers.
                    None => *this.copy = None,
                }
            }
            Poll::Ready(Some(Err(_))) => *this.copy = None,
            Poll::Ready(None) | Poll::Pending => {}
        }
        // Whoever knows the length does not ask again after the last byte.
        if !polled.is_pending()
            && (matches!(polled, Poll::Ready(None)) || body.is_end_stream())
            && let Some(copy) = this.copy.take()
        {
            copy.keep();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Either::Passed { body } => body.is_end_stream(),
            Either::Kept { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Either::Passed { body } => body.size_hint(),
            Either::Kept { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
        }
    }
}
