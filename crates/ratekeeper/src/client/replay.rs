//! Bodies of requests that can be sent again.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{Empty, Full};

/// The longest body that is recorded while it is sent.
const RECORDED_MAX: usize = 64 * 1024;

/// The most frames of a body that are read before it is sent.
const FRAMES_AHEAD_MAX: usize = 64;

/// A body of requests that may be sent again.
///
/// It is implemented for bodies that can be cloned ([`Full`], [`Empty`], `String`) and for boxed bodies ([`BoxBody`],
/// [`UnsyncBoxBody`], tonic's and axum's), of which up to 64 KiB are recorded. What such a body has at hand is
/// recorded before it is sent, the rest while it is sent. A request whose body is longer, or was not read to its
/// end, is not retried. For a body of another type, use [`OnceBody`].
pub trait ReplayBody: Sized {
    /// What is kept while the body is sent.
    type Kept: Send + 'static;

    /// Splits a body into the one to send and what is kept to send it again.
    fn keep(self) -> (Self, Self::Kept);

    /// Returns the body to send again; `None` if that is not possible.
    fn replay(kept: &Self::Kept) -> Option<Self>;

    /// Returns the whole content, if it is at hand.
    fn content(&self) -> Option<Bytes> {
        None
    }
}

macro_rules! replay_by_clone {
    () => {
        type Kept = Self;

        fn keep(self) -> (Self, Self) {
            (self.clone(), self)
        }

        fn replay(kept: &Self) -> Option<Self> {
            Some(kept.clone())
        }

        fn content(&self) -> Option<Bytes> {
            read_now(self.clone())
        }
    };
}

impl<D: Buf + Clone + Send + 'static> ReplayBody for Full<D> {
    replay_by_clone!();
}

impl<D: Buf + Send + 'static> ReplayBody for Empty<D> {
    replay_by_clone!();
}

impl ReplayBody for String {
    replay_by_clone!();
}

macro_rules! replay_by_recording {
    ($error:ty) => {
        type Kept = Recording;

        fn keep(self) -> (Self, Recording) {
            let (body, recording) = Recorded::new(self);
            (Self::new(body), recording)
        }

        fn replay(kept: &Recording) -> Option<Self> {
            Some(Self::new(without_error::<$error>(kept.body()?)))
        }
    };
}

impl<E: Send + 'static> ReplayBody for BoxBody<Bytes, E> {
    replay_by_recording!(E);
}

impl<E: Send + 'static> ReplayBody for UnsyncBoxBody<Bytes, E> {
    replay_by_recording!(E);
}

#[cfg(feature = "tonic")]
impl ReplayBody for tonic::body::Body {
    replay_by_recording!(tonic::Status);
}

#[cfg(feature = "axum")]
impl ReplayBody for axum::body::Body {
    replay_by_recording!(axum::Error);
}

/// A body that is sent only once, such as one that streams by. A request with it is not retried, unless it was
/// never sent.
///
/// ```
/// use http_body_util::Full;
/// use ratekeeper::client::{OnceBody, ReplayBody};
///
/// let (_sent, kept) = OnceBody(Full::new(bytes::Bytes::from("a, b"))).keep();
/// assert!(<OnceBody<Full<bytes::Bytes>> as ReplayBody>::replay(&kept).is_none());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OnceBody<B>(pub B);

impl<B> ReplayBody for OnceBody<B> {
    type Kept = ();

    fn keep(self) -> (Self, ()) {
        (self, ())
    }

    fn replay(_: &()) -> Option<Self> {
        None
    }
}

impl<B: Body + Unpin> Body for OnceBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// What was sent of a body.
#[derive(Clone, Debug, Default)]
pub struct Recording(Arc<Mutex<Recorder>>);

#[derive(Debug, Default)]
struct Recorder {
    bytes: BytesMut,
    /// Whether all of the body was recorded.
    is_whole: bool,
    /// Whether it cannot be: it is too long, or has trailers.
    is_given_up: bool,
}

impl Recording {
    fn record(&self, frame: &Frame<Bytes>) {
        let mut recorder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match frame.data_ref() {
            Some(data) if recorder.bytes.len() + data.len() <= RECORDED_MAX => {
                recorder.bytes.extend_from_slice(data);
            }
            _ => {
                recorder.is_given_up = true;
                recorder.bytes = BytesMut::new();
            }
        }
    }

    /// Returns whether nothing is left to record.
    fn is_done(&self) -> bool {
        let recorder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recorder.is_whole || recorder.is_given_up
    }

    fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_whole = true;
    }

    /// Returns what was recorded, if that is the whole body.
    fn body(&self) -> Option<Full<Bytes>> {
        let recorder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = recorder.is_whole && !recorder.is_given_up;
        is_known.then(|| Full::new(Bytes::copy_from_slice(&recorder.bytes)))
    }
}

/// A body that is recorded while it is sent.
struct Recorded<B: Body<Data = Bytes>> {
    body: B,
    /// What was read before it is sent.
    ahead: VecDeque<Frame<Bytes>>,
    /// The error that came after it. Boxed bodies have to be `Sync` and `Unpin`, which not every error is.
    error_ahead: Option<Box<Mutex<B::Error>>>,
    has_ended: bool,
    recording: Recording,
}

impl<B: Body<Data = Bytes> + Unpin> Recorded<B> {
    fn new(body: B) -> (Self, Recording) {
        let recording = Recording::default();
        let mut recorded = Self {
            body,
            ahead: VecDeque::new(),
            error_ahead: None,
            has_ended: false,
            recording: recording.clone(),
        };
        recorded.read_ahead();
        (recorded, recording)
    }

    /// Reads what the body has at hand. A server can respond before it has read the request, and then the rest of
    /// the body is never sent.
    fn read_ahead(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while self.ahead.len() < FRAMES_AHEAD_MAX && !self.recording.is_done() {
            match self.poll_body(&mut context) {
                Poll::Ready(Some(Ok(frame))) => self.ahead.push_back(frame),
                Poll::Ready(Some(Err(error))) => {
                    self.error_ahead = Some(Box::new(Mutex::new(error)));
                    return;
                }
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }

    fn poll_body(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = match self.has_ended {
            true => Poll::Ready(None),
            false => Pin::new(&mut self.body).poll_frame(context),
        };
        match &polled {
            Poll::Ready(Some(Ok(frame))) => self.recording.record(frame),
            Poll::Ready(None) => self.has_ended = true,
            _ => {}
        }
        // Not every client reads on after the last frame.
        self.has_ended |= self.body.is_end_stream();
        if self.has_ended {
            self.recording.end();
        }
        polled
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Recorded<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(frame) = self.ahead.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match self.error_ahead.take() {
            Some(error) => {
                let error = error.into_inner().unwrap_or_else(PoisonError::into_inner);
                Poll::Ready(Some(Err(error)))
            }
            None => self.poll_body(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_read = self.ahead.is_empty() && self.error_ahead.is_none();
        is_read && (self.has_ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let frames = self.ahead.iter().filter_map(Frame::data_ref);
        let ahead: u64 = frames.map(|data| data.len() as u64).sum();
        let rest = match self.has_ended {
            true => SizeHint::with_exact(0),
            false => self.body.size_hint(),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + ahead);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + ahead);
        }
        hint
    }
}

fn without_error<E>(body: Full<Bytes>) -> impl Body<Data = Bytes, Error = E> + Unpin {
    http_body_util::BodyExt::map_err(body, |never| match never {})
}

/// Returns the content of a body that has no more than one frame and does not wait for it.
fn read_now<B: Body>(body: B) -> Option<Bytes> {
    let mut body = pin!(body);
    match body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(None) => Some(Bytes::new()),
        Poll::Ready(Some(Ok(frame))) => {
            let mut data = frame.into_data().ok()?;
            body.is_end_stream().then(|| data.copy_to_bytes(data.remaining()))
        }
        _ => None,
    }
}
