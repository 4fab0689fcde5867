//! Instead of a refusal, the answer of a while ago, where a limit says `serve_stale`.
//!
//! It stands before the limits and sees what they refuse; whatever passes them and may be kept, it
//! keeps a copy of while it goes by.

mod cache;
mod copied;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use http_body_util::{Either, Full};
use pin_project_lite::pin_project;
use ratekeeper::ActivePolicy;
use ratekeeper::policy::WhenLimited;
use ratekeeper::tower::{Limited, RATELIMIT_HEADERS};
use tower_layer::Layer;
use tower_service::Service;

use crate::listener::Ticks;
use cache::{Asked, Cache};
use copied::{Copied, Copy};

/// What the upstream sends, or what it has sent before.
type StaleBody<B> = Either<Copied<B>, Full<Bytes>>;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

#[derive(Clone)]
pub(super) struct StaleLayer {
    state: Arc<StaleState>,
}

struct StaleState {
    cache: Cache,
    ticks: Ticks,
}

impl StaleLayer {
    pub(super) fn new(ticks: Ticks) -> Self {
        Self { state: Arc::new(StaleState { cache: Cache::default(), ticks }) }
    }
}

impl<S> Layer<S> for StaleLayer {
    type Service = Stale<S>;

    fn layer(&self, inner: S) -> Stale<S> {
        Stale { inner, state: self.state.clone() }
    }
}

#[derive(Clone)]
pub(super) struct Stale<S> {
    inner: S,
    state: Arc<StaleState>,
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
        let policy = request.extensions().get::<Arc<ActivePolicy>>();
        let is_wanted = policy.is_some_and(|policy| policy.policy().serves_stale());
        let asked = if is_wanted { Asked::of(&request) } else { None };
        StaleFuture { answer: self.inner.call(request), asked, state: self.state.clone() }
    }
}

pin_project! {
    pub(super) struct StaleFuture<F> {
        #[pin]
        answer: F,
        asked: Option<Asked>,
        state: Arc<StaleState>,
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
            Some(asked) => this.state.answer(asked, response),
            None => response.map(|body| Either::Left(Copied::new(body, None))),
        })
    }
}

impl StaleState {
    fn answer<B>(self: &Arc<Self>, asked: Asked, response: Response<B>) -> Response<StaleBody<B>> {
        if let Some(stale) = self.stale(&asked, &response) {
            return stale;
        }
        let may_be_kept = asked.may_be_kept(response.status(), response.headers());
        let (parts, body) = response.into_parts();
        let state = self.clone();
        let copy = may_be_kept.then(|| Copy::begin(asked, parts.headers.clone(), state));
        Response::from_parts(parts, Either::Left(Copied::new(body, copy)))
    }

    /// What was answered before, if a limit that refused says that this is better.
    fn stale<B>(&self, asked: &Asked, refusal: &Response<B>) -> Option<Response<StaleBody<B>>> {
        let limited = refusal.extensions().get::<Limited>()?;
        let WhenLimited::ServeStale(age_max) = limited.when_limited else { return None };
        let (found, body) = self.cache.find(asked, age_max, self.ticks.now_us())?;
        let mut response = found.map(|()| Either::Right(Full::from(body)));
        let status = format!("ratekeeper; hit; detail=\"limited by {}\"", limited.limit);
        if let Ok(status) = HeaderValue::try_from(status) {
            response.headers_mut().insert(CACHE_STATUS, status);
        }
        // What was left was said to somebody else, a while ago.
        for name in RATELIMIT_HEADERS {
            match refusal.headers().get(&name) {
                Some(value) => response.headers_mut().insert(name, value.clone()),
                None => response.headers_mut().remove(name),
            };
        }
        response.extensions_mut().insert(limited.clone());
        Some(response)
    }
}
