//! Serves an earlier response instead of a denial, where a limit has `serve_stale`.
//!
//! This layer is outside of the limits: it sees what they deny, and copies responses that may be cached.

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
use ratekeeper::policy::LimitAction;
use ratekeeper::tower::{RATELIMIT_HEADERS, RefusedBy};
use tower_layer::Layer;
use tower_service::Service;

use crate::listener::Ticks;
use cache::{Cache, CacheableRequest};
use copied::{BodyCopy, CopiedBody};

/// The upstream's response, or one from the cache.
type StaleBody<B> = Either<CopiedBody<B>, Full<Bytes>>;

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
        let cacheable = if is_wanted { CacheableRequest::of(&request) } else { None };
        StaleFuture { response: self.inner.call(request), cacheable, state: self.state.clone() }
    }
}

pin_project! {
    pub(super) struct StaleFuture<F> {
        #[pin]
        response: F,
        cacheable: Option<CacheableRequest>,
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
        this.response.poll(context).map_ok(|response| match this.cacheable.take() {
            Some(request) => this.state.respond(request, response),
            None => response.map(|body| Either::Left(CopiedBody::new(body, None))),
        })
    }
}

impl StaleState {
    fn respond<B>(
        self: &Arc<Self>,
        request: CacheableRequest,
        response: Response<B>,
    ) -> Response<StaleBody<B>> {
        if let Some(stale) = self.stale(&request, &response) {
            return stale;
        }
        let may_be_cached = request.may_be_cached(response.status(), response.headers());
        let (parts, body) = response.into_parts();
        let state = self.clone();
        let copy = may_be_cached.then(|| BodyCopy::begin(request, parts.headers.clone(), state));
        Response::from_parts(parts, Either::Left(CopiedBody::new(body, copy)))
    }

    /// Returns a response from the cache, if the limit that denied the request has `serve_stale`.
    fn stale<B>(
        &self,
        request: &CacheableRequest,
        denial: &Response<B>,
    ) -> Option<Response<StaleBody<B>>> {
        let limited = denial.extensions().get::<RefusedBy>()?;
        let LimitAction::ServeStale(age_max) = limited.when_limited else { return None };
        let (found, body) = self.cache.find(request, age_max, self.ticks.now_us())?;
        let mut response = found.map(|()| Either::Right(Full::from(body)));
        let status = format!("ratekeeper; hit; detail=\"limited by {}\"", limited.limit);
        if let Ok(status) = HeaderValue::try_from(status) {
            response.headers_mut().insert(CACHE_STATUS, status);
        }
        // The cached ones are of another client, and old.
        for name in RATELIMIT_HEADERS {
            match denial.headers().get(&name) {
                Some(value) => response.headers_mut().insert(name, value.clone()),
                None => response.headers_mut().remove(name),
            };
        }
        response.extensions_mut().insert(limited.clone());
        Some(response)
    }
}
