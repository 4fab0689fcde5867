//! The body of a request, bounded in size and time.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::mem;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep, sleep};

/// How large a body may be, and how slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    pub(crate) bytes_max: u64,
    pub(crate) pause_max: Duration,
    /// In bytes a second; 0 for none.
    pub(crate) rate_min: u64,
}

impl BodyLimits {
    /// Limits for a message to a listener, which is small.
    pub(crate) fn of_message(bytes_max: usize) -> Self {
        Self { bytes_max: bytes_max as u64, pause_max: Duration::from_secs(10), rate_min: 16 << 10 }
    }
}

/// Why a body could not be read.
#[derive(Debug)]
pub(crate) enum BodyError {
    TooLarge,
    TooSlow,
    /// It is incomplete, or the connection broke.
    Broken(Box<dyn Error + Send + Sync>),
}

impl Display for BodyError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("the request's body is too large"),
            Self::TooSlow => f.write_str("the request's body arrives too slowly"),
            Self::Broken(error) => write!(f, "the request's body broke: {error}"),
        }
    }
}

impl Error for BodyError {}

/// A body that ends with an error if it exceeds its limits.
pub(crate) struct BoundedBody<B> {
    body: B,
    bytes_left: u64,
    allowance: TimeAllowance,
    /// Since when a part is waited for, and until when.
    wait: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<B> BoundedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    pub(crate) fn new(body: B, limits: BodyLimits) -> Self {
        let allowance = TimeAllowance::new(limits);
        Self { body, bytes_left: limits.bytes_max, allowance, wait: None }
    }

    /// Fails if the body says that what is left of it is too large.
    pub(crate) fn check_size(&self) -> Result<(), BodyError> {
        match self.body.size_hint().lower() > self.bytes_left {
            true => Err(BodyError::TooLarge),
            false => Ok(()),
        }
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let left = self.allowance.left;
        let (_, timer) = self.wait.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        timer.as_mut().poll(cx).map(|()| BodyError::TooSlow)
    }

    fn count(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        let waited = self.wait.take().map_or(Duration::ZERO, |(since, _)| since.elapsed());
        self.allowance.note(length, waited);
        self.bytes_left = self.bytes_left.checked_sub(length).ok_or(BodyError::TooLarge)?;
        Ok(frame)
    }
}

impl<B> Body for BoundedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => Poll::Ready(Some(Err(ready!(self.wait(cx))))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(self.count(frame))),
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(BodyError::Broken(error.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How long a body may still be waited for. What the client sends earns it time, at the minimum rate, but
/// never more than a pause may last: otherwise a client could send much, and then a byte now and then for
/// days.
#[derive(Clone, Copy, Debug)]
struct TimeAllowance {
    pause_max: Duration,
    rate_min: u64,
    left: Duration,
}

impl TimeAllowance {
    fn new(BodyLimits { pause_max, rate_min, .. }: BodyLimits) -> Self {
        Self { pause_max, rate_min, left: pause_max }
    }

    /// Counts what has come, and how long it was waited for.
    fn note(&mut self, bytes: u64, waited: Duration) {
        let earned = bytes.saturating_mul(1_000_000).checked_div(self.rate_min);
        let earned = earned.map_or(self.pause_max, Duration::from_micros);
        self.left = (self.left.saturating_sub(waited) + earned).min(self.pause_max);
    }
}

/// Returns all of a body, if it keeps within the limits.
pub(crate) async fn read_body<B>(body: B, limits: BodyLimits) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let body = pin!(body);
    let mut body = BoundedBody::new(body, limits);
    body.check_size()?;
    // Most have one frame, which is not copied.
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame?.into_data() else { continue };
        if first.is_empty() && more.is_empty() {
            first = piece;
        } else {
            more.extend_from_slice(&mem::take(&mut first));
            more.extend_from_slice(&piece);
        }
    }
    Ok(if more.is_empty() { first } else { more.freeze() })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream::{self, StreamExt};
    use http_body_util::StreamBody;

    use super::*;

    const PAUSE: Duration = Duration::from_secs(30);

    fn limits(bytes_max: u64, rate_min: u64) -> BodyLimits {
        BodyLimits { bytes_max, pause_max: PAUSE, rate_min }
    }

    async fn read(pieces: Vec<&'static str>, bytes_max: u64) -> Result<Bytes, BodyError> {
        let frame = |piece: &'static str| Ok::<_, Infallible>(Frame::data(piece.into()));
        read_body(StreamBody::new(stream::iter(pieces).map(frame)), limits(bytes_max, 240)).await
    }

    #[tokio::test]
    async fn a_body_is_read_whole_or_rejected() {
        for (pieces, bytes_max, whole) in [
            (vec![], 0, Some("")),
            (vec!["abc"], 3, Some("abc")),
            (vec!["a", "", "b", "c"], 3, Some("abc")),
            (vec!["ab", "cd"], 3, None),
        ] {
            match (read(pieces, bytes_max).await, whole) {
                (Ok(body), Some(whole)) => assert_eq!(body, whole),
                (Err(BodyError::TooLarge), None) => {}
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_times_out() {
        let frames = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("a")))]);
        let body = StreamBody::new(frames.chain(stream::pending()));
        let begun = Instant::now();
        assert!(matches!(read_body(body, limits(10, 240)).await, Err(BodyError::TooSlow)));
        assert_eq!(begun.elapsed(), PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_times_out_although_it_never_pauses_for_long() {
        let drip = stream::unfold((), |()| async {
            sleep(PAUSE / 10).await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from("a"))), ()))
        });
        let begun = Instant::now();
        let read = read_body(StreamBody::new(Box::pin(drip)), limits(1_000, 240)).await;
        assert!(matches!(read, Err(BodyError::TooSlow)), "{read:?}");
        assert!(begun.elapsed() < PAUSE + PAUSE / 10, "{:?}", begun.elapsed());
    }

    /// How long a client can hold out that sends so many bytes at a time after so long.
    fn holds_out(rate_min: u64, bytes: u64, every: Duration) -> Option<Duration> {
        let mut allowance = TimeAllowance::new(limits(0, rate_min));
        allowance.note(1 << 30, Duration::ZERO);
        let mut since = Duration::ZERO;
        while since < Duration::from_secs(3_600) {
            if allowance.left < every {
                return Some(since + allowance.left);
            }
            since += every;
            allowance.note(bytes, every);
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
