//! A request's body on its way to an upstream: not too large, and not forever.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};

use super::error::ProxyError;
use super::ticks::Ticks;

pub(super) struct RequestBody {
    incoming: Incoming,
    /// `None` for a request without a body, so that it costs nothing.
    watch: Option<Box<Watch>>,
}

struct Watch {
    left: u64,
    patience: Duration,
    /// Runs while the client lets us wait.
    timer: Option<Pin<Box<Sleep>>>,
    progress: Progress,
}

/// When a body last moved, for the one who waits for the answer.
#[derive(Clone)]
pub(super) struct Progress {
    ticks: Ticks,
    last_us: Arc<AtomicU64>,
}

impl Progress {
    pub(super) fn last(&self) -> Instant {
        self.ticks.instant(self.last_us.load(Ordering::Relaxed))
    }

    fn note(&self) {
        self.last_us.store(self.ticks.now_us(), Ordering::Relaxed);
    }
}

/// Why a body could not be passed on.
#[derive(Debug)]
enum BodyError {
    TooLarge,
    Slow,
    Broken(hyper::Error),
}

impl RequestBody {
    pub(super) fn new(
        incoming: Incoming,
        bytes_max: u64,
        patience: Duration,
        ticks: Ticks,
    ) -> Result<Self, ProxyError> {
        if incoming.is_end_stream() {
            return Ok(Self { incoming, watch: None });
        }
        if incoming.size_hint().lower() > bytes_max {
            return Err(ProxyError::BodyTooLarge);
        }
        let progress = Progress { ticks, last_us: Arc::new(AtomicU64::new(ticks.now_us())) };
        let watch = Watch { left: bytes_max, patience, timer: None, progress };
        Ok(Self { incoming, watch: Some(Box::new(watch)) })
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        self.watch.as_ref().map(|watch| watch.progress.clone())
    }
}

impl Watch {
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let patience = self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(patience)));
        timer.as_mut().poll(cx).map(|()| BodyError::Slow)
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        self.timer = None;
        self.progress.note();
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        self.left = self.left.checked_sub(length).ok_or(BodyError::TooLarge)?;
        Ok(frame)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        let Some(watch) = &mut self.watch else {
            return polled.map_err(|error| BodyError::Broken(error).into());
        };
        match polled {
            Poll::Pending => watch.wait(cx).map(|slow| Some(Err(slow.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Ok(frame))) => {
                Poll::Ready(Some(watch.take(frame).map_err(Into::into)))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(BodyError::Broken(error).into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// What a failed exchange means to the client: its own body's fault, or the upstream's.
pub(super) fn blame(error: &hyper::Error) -> ProxyError {
    let mut cause = error.source();
    while let Some(error) = cause {
        match error.downcast_ref() {
            Some(BodyError::TooLarge) => return ProxyError::BodyTooLarge,
            Some(BodyError::Slow) => return ProxyError::SlowBody,
            Some(BodyError::Broken(_)) => return ProxyError::BrokenBody,
            None => cause = error.source(),
        }
    }
    ProxyError::Upstream(super::error::chain(error))
}

impl Display for BodyError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("the request's body is too large"),
            Self::Slow => f.write_str("the request's body stopped arriving"),
            Self::Broken(error) => write!(f, "the request's body broke: {error}"),
        }
    }
}

impl Error for BodyError {}
