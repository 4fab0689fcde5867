//! The body of a request on its way to an upstream.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use ratekeeper::tower::ReplayedBody;
use tokio::time::Instant;

use super::error::ProxyError;
use super::options::TimeoutOptions;
use crate::body::{BodyError, BodyLimits, BoundedBody};
use crate::listener::Ticks;

/// The body of a request, as the limits of the gateway see it. What they have read of it is sent first.
pub(super) type ForwardedBody = ReplayedBody<RequestBody>;

pub(super) enum RequestBody {
    Empty,
    Bounded(Box<ObservedBody>),
}

/// A body of which it is known when a part last came.
pub(super) struct ObservedBody {
    body: BoundedBody<Incoming>,
    progress: Progress,
}

/// When a part of a body last came, for the timeout of the response.
#[derive(Clone)]
pub(super) struct Progress {
    ticks: Ticks,
    last_us: Arc<AtomicU64>,
}

impl Progress {
    fn new(ticks: Ticks) -> Self {
        Self { ticks, last_us: Arc::new(AtomicU64::new(ticks.now_us())) }
    }

    pub(super) fn last(&self) -> Instant {
        self.ticks.instant(self.last_us.load(Ordering::Relaxed))
    }

    fn note(&self) {
        self.last_us.store(self.ticks.now_us(), Ordering::Relaxed);
    }
}

impl RequestBody {
    pub(super) fn new(
        incoming: Incoming,
        bytes_max: u64,
        timeouts: &TimeoutOptions,
        ticks: Ticks,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        let (pause_max, rate_min) = (timeouts.body, timeouts.min_body_rate);
        let body = BoundedBody::new(incoming, BodyLimits { bytes_max, pause_max, rate_min });
        let observed = ObservedBody { body, progress: Progress::new(ticks) };
        Self::Bounded(Box::new(observed))
    }

    /// Fails if the body says that it is too large.
    pub(super) fn check_size(&self) -> Result<(), ProxyError> {
        match self {
            Self::Empty => Ok(()),
            Self::Bounded(observed) => {
                observed.body.check_size().map_err(|error| proxy_error(&error))
            }
        }
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        match self {
            Self::Empty => None,
            Self::Bounded(observed) => Some(observed.progress.clone()),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self::Bounded(observed) = &mut *self else { return Poll::Ready(None) };
        let polled = Pin::new(&mut observed.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(_))) = &polled {
            observed.progress.note();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Bounded(observed) => observed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Bounded(observed) => observed.body.size_hint(),
        }
    }
}

/// Returns the error of a failed exchange: the client's body failed, or the upstream.
pub(super) fn exchange_error(error: &hyper::Error) -> ProxyError {
    let mut cause = error.source();
    while let Some(error) = cause {
        match error.downcast_ref() {
            Some(error) => return proxy_error(error),
            None => cause = error.source(),
        }
    }
    ProxyError::Upstream(super::error::chain(error))
}

fn proxy_error(error: &BodyError) -> ProxyError {
    match error {
        BodyError::TooLarge => ProxyError::BodyTooLarge,
        BodyError::TooSlow => ProxyError::SlowBody,
        BodyError::Broken(_) => ProxyError::BrokenBody,
    }
}
