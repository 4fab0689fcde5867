//! The body of a request on its way to an upstream, bounded in size and time.

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
use super::options::TimeoutOptions;
use crate::listener::Ticks;

pub(super) struct RequestBody {
    incoming: Incoming,
    /// `None` for a request without a body, so that it costs nothing.
    watch: Option<Box<Watch>>,
}

struct Watch {
    left: u64,
    pace: Pace,
    /// Since when a part is waited for, and until when.
    wait: Option<(Instant, Pin<Box<Sleep>>)>,
    progress: Progress,
}

/// How long a client's body may still be waited for. What it sends earns it time, at the minimum rate, but
/// never more than a pause may last: otherwise a client could send much, and then a byte now and then for
/// days.
#[derive(Clone, Copy, Debug)]
struct Pace {
    pause_max: Duration,
    /// In bytes a second; 0 for none.
    rate_min: u64,
    credit: Duration,
}

impl Pace {
    fn new(timeouts: &TimeoutOptions) -> Self {
        let (pause_max, rate_min) = (timeouts.body, timeouts.min_body_rate);
        Self { pause_max, rate_min, credit: pause_max }
    }

    /// Counts what has come, and how long it was waited for.
    fn note(&mut self, bytes: u64, waited: Duration) {
        let earned = bytes.saturating_mul(1_000_000).checked_div(self.rate_min);
        let earned = earned.map_or(self.pause_max, Duration::from_micros);
        self.credit = (self.credit.saturating_sub(waited) + earned).min(self.pause_max);
    }
}

/// When a part of a body last came, for the timeout of the response.
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

/// Why a body could not be forwarded.
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
        timeouts: &TimeoutOptions,
        ticks: Ticks,
    ) -> Result<Self, ProxyError> {
        if incoming.is_end_stream() {
            return Ok(Self { incoming, watch: None });
        }
        if incoming.size_hint().lower() > bytes_max {
            return Err(ProxyError::BodyTooLarge);
        }
        let progress = Progress { ticks, last_us: Arc::new(AtomicU64::new(ticks.now_us())) };
        let watch = Watch { left: bytes_max, pace: Pace::new(timeouts), wait: None, progress };
        Ok(Self { incoming, watch: Some(Box::new(watch)) })
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        self.watch.as_ref().map(|watch| watch.progress.clone())
    }
}

impl Watch {
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let credit = self.pace.credit;
        let (_, timer) = self.wait.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(credit))));
        timer.as_mut().poll(cx).map(|()| BodyError::Slow)
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        let waited = self.wait.take().map_or(Duration::ZERO, |(since, _)| since.elapsed());
        self.pace.note(length, waited);
        self.progress.note();
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

/// Returns the error of a failed exchange: the client's body failed, or the upstream.
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
            Self::Slow => f.write_str("the request's body arrives too slowly"),
            Self::Broken(error) => write!(f, "the request's body broke: {error}"),
        }
    }
}

impl Error for BodyError {}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(30);

    /// How long a client can hold out that sends so many bytes at a time after so long.
    fn holds_out(rate_min: u64, bytes: u64, every: Duration) -> Option<Duration> {
        let mut pace = Pace { pause_max: PAUSE, rate_min, credit: PAUSE };
        pace.note(1 << 30, Duration::ZERO);
        let mut since = Duration::ZERO;
        while since < Duration::from_secs(3_600) {
            if pace.credit < every {
                return Some(since + pace.credit);
            }
            since += every;
            pace.note(bytes, every);
        }
        None
    }

    #[test]
    fn a_client_below_the_least_rate_is_cut_off_whatever_it_sent_before() {
        let cut = holds_out(240, 1, Duration::from_secs(3)).expect("it is too slow");
        assert!(cut >= PAUSE && cut < PAUSE + Duration::from_secs(1), "{cut:?}");
        assert!(holds_out(240, 200, Duration::from_secs(1)).is_some());
        assert_eq!(holds_out(240, 240, Duration::from_secs(1)), None);
        assert_eq!(holds_out(240, 7_200, PAUSE), None);
        assert_eq!(holds_out(240, 1 << 40, PAUSE + Duration::from_secs(1)), Some(PAUSE));
    }

    #[test]
    fn without_a_least_rate_only_a_pause_is_too_long() {
        assert_eq!(holds_out(0, 1, Duration::from_secs(3)), None);
        assert_eq!(holds_out(0, 1, PAUSE + Duration::from_secs(1)), Some(PAUSE));
    }
}
