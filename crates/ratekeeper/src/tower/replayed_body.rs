//! The body of a request, the beginning of which may have been read before.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// A piece of a body that is smaller than this is joined with its neighbours: a piece by itself costs about a
/// hundred bytes, and can keep the buffer that it is a part of.
const PIECE_MIN: usize = 4 << 10;
/// What is joined is at most this long.
const JOINED_MAX: usize = 16 << 10;

pin_project! {
    /// The body of a request that [`RequestJsonLayer`](super::RequestJsonLayer) may have read. It has the same
    /// bytes and trailers as if it had not been read; small pieces may have been joined.
    ///
    /// ```
    /// use http_body::Body;
    /// use ratekeeper::tower::ReplayedBody;
    ///
    /// fn length<B: Body<Data = bytes::Bytes>>(body: &ReplayedBody<B>) -> Option<u64> {
    ///     body.size_hint().exact()
    /// }
    /// ```
    pub struct ReplayedBody<Q>
    where
        Q: Body,
    {
        #[pin]
        kind: Kind<Q>,
    }
}

pin_project! {
    #[project = KindPinned]
    enum Kind<Q>
    where
        Q: Body,
    {
        Unread { #[pin] body: Q },
        Read { body: Box<ReadBody<Q>> },
    }
}

impl<Q: Body> ReplayedBody<Q> {
    pub(super) fn unread(body: Q) -> Self {
        Self { kind: Kind::Unread { body } }
    }

    pub(super) fn read(body: ReadBody<Q>) -> Self {
        Self { kind: Kind::Read { body: Box::new(body) } }
    }

    /// Returns the body that is replayed.
    pub fn get_ref(&self) -> &Q {
        match &self.kind {
            Kind::Unread { body } => body,
            Kind::Read { body } => &body.rest,
        }
    }
}

impl<Q: Body + std::fmt::Debug> std::fmt::Debug for ReplayedBody<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplayedBody").field("body", self.get_ref()).finish_non_exhaustive()
    }
}

impl<Q: Body<Data = Bytes>> Body for ReplayedBody<Q> {
    type Data = Bytes;
    type Error = Q::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Q::Error>>> {
        match self.project().kind.project() {
            KindPinned::Unread { body } => body.poll_frame(context),
            KindPinned::Read { body } => body.poll_replayed(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Unread { body } => body.is_end_stream(),
            Kind::Read { body } => {
                body.held.bytes == 0
                    && body.head.is_empty()
                    && body.error.is_none()
                    && body.rest.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Unread { body } => body.size_hint(),
            Kind::Read { body } => body.size_hint(),
        }
    }
}

/// A body whose beginning is held after it was read.
pub(super) struct ReadBody<Q: Body> {
    head: VecDeque<Frame<Bytes>>,
    /// Small pieces that come after `head`.
    joined: BytesMut,
    held: HeldBytes,
    /// Why it could not be read further.
    error: Option<Q::Error>,
    rest: Pin<Box<Q>>,
    is_ended: bool,
}

/// Bytes that are held of a body, counted together with those of others.
struct HeldBytes {
    bytes: usize,
    max: usize,
    all: Arc<AtomicUsize>,
    all_max: usize,
}

impl HeldBytes {
    /// Counts more bytes. Returns whether they are within the bounds.
    fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        let others = self.all.fetch_add(bytes, Ordering::Relaxed);
        self.bytes <= self.max && others + bytes <= self.all_max
    }

    fn subtract(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.all.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.subtract(self.bytes);
    }
}

impl<Q: Body> ReadBody<Q> {
    /// Returns a body of which at most `max` bytes are read, and of all bodies at most `all_max`.
    pub(super) fn new(body: Q, all: Arc<AtomicUsize>, max: usize, all_max: usize) -> Self {
        Self {
            head: VecDeque::new(),
            joined: BytesMut::new(),
            held: HeldBytes { bytes: 0, max, all, all_max },
            error: None,
            rest: Box::pin(body),
            is_ended: false,
        }
    }

    /// Returns whether it was read to its end.
    pub(super) fn is_whole(&self) -> bool {
        self.is_ended
    }
}

impl<Q: Body<Data = Bytes>> ReadBody<Q> {
    /// Returns the next piece, which is kept to be replayed; `None` at the end, after an error, or at the bound.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let frame = match ready!(self.rest.as_mut().poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.error = Some(error);
                    return Poll::Ready(None);
                }
                None => {
                    self.is_ended = true;
                    return Poll::Ready(None);
                }
            };
            let bytes = match frame.into_data() {
                Ok(bytes) => bytes,
                Err(trailers) => {
                    self.end_joined();
                    self.head.push_back(trailers);
                    continue;
                }
            };
            self.hold(&bytes);
            let is_within = self.held.add(bytes.len());
            return Poll::Ready(Some(bytes).filter(|_| is_within));
        }
    }

    fn hold(&mut self, bytes: &Bytes) {
        let is_small = bytes.len() < PIECE_MIN;
        if !is_small || self.joined.len() + bytes.len() > JOINED_MAX {
            self.end_joined();
        }
        match is_small {
            true => self.joined.extend_from_slice(bytes),
            false => self.head.push_back(Frame::data(bytes.clone())),
        }
    }

    fn end_joined(&mut self) {
        if !self.joined.is_empty() {
            let joined = std::mem::take(&mut self.joined);
            self.head.push_back(Frame::data(joined.freeze()));
        }
    }

    fn poll_replayed(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Q::Error>>> {
        if self.head.is_empty() {
            self.end_joined();
        }
        if let Some(frame) = self.head.pop_front() {
            self.held.subtract(frame.data_ref().map_or(0, Bytes::len));
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match self.is_ended {
            true => Poll::Ready(None),
            false => self.rest.as_mut().poll_frame(context),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, head) = (self.rest.size_hint(), self.held.bytes as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(head));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(head));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::HeaderMap;
    use proptest::prelude::*;

    use super::*;

    /// A body of these frames.
    struct Frames(VecDeque<Frame<Bytes>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_empty()
        }

        fn size_hint(&self) -> SizeHint {
            let lens = self.0.iter().filter_map(Frame::data_ref).map(Bytes::len);
            SizeHint::with_exact(lens.sum::<usize>() as u64)
        }
    }

    fn pieces(body: &[u8], lens: &[usize]) -> VecDeque<Frame<Bytes>> {
        let mut rest = Bytes::copy_from_slice(body);
        let mut next = |len: &usize| Frame::data(rest.split_to(rest.len().min(*len)));
        let mut frames: VecDeque<_> = lens.iter().map(&mut next).collect();
        frames.push_back(next(&body.len()));
        frames
    }

    /// Reads up to `max` bytes of a body.
    fn read(frames: VecDeque<Frame<Bytes>>, max: usize) -> ReadBody<Frames> {
        let mut body = ReadBody::new(Frames(frames), Arc::default(), max, max);
        let context = &mut Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(_)) = body.poll_read(context) {}
        body
    }

    #[test]
    fn a_body_of_single_bytes_is_held_in_not_much_more_memory_than_its_bytes() {
        const LEN: usize = 900_000;
        let body = read(pieces(&[b' '; LEN], &[1; LEN]), 1 << 20);
        assert!(body.is_whole());
        let frames = body.head.capacity() * size_of::<Frame<Bytes>>();
        let held = frames + LEN + body.joined.capacity();
        assert!(held < LEN * 11 / 10, "{held} bytes are held");
    }

    proptest! {
        #[test]
        fn a_body_is_replayed_with_the_same_bytes_and_trailers(
            text in prop::collection::vec(any::<u8>(), 0..60_000),
            lens in prop::collection::vec(prop_oneof![0usize..20, 4_000..5_000usize], 0..30),
            max in 0usize..80_000,
            has_trailers: bool,
        ) {
            let mut frames = pieces(&text, &lens);
            if has_trailers {
                frames.push_back(Frame::trailers(HeaderMap::from_iter([(
                    http::header::ETAG,
                    http::HeaderValue::from_static("a"),
                )])));
            }
            let body = read(frames, max);
            let all = Arc::clone(&body.held.all);
            let mut body = ReplayedBody::read(body);
            let (mut replayed, mut trailers) = (Vec::new(), 0);
            let context = &mut Context::from_waker(std::task::Waker::noop());
            loop {
                let left = (text.len() - replayed.len()) as u64;
                prop_assert_eq!(body.size_hint().exact(), Some(left));
                prop_assert!(!body.is_end_stream() || left == 0 && trailers == u32::from(has_trailers));
                match Pin::new(&mut body).poll_frame(context) {
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(bytes) => replayed.extend_from_slice(&bytes),
                        Err(_) => trailers += 1,
                    },
                    Poll::Ready(None) => break,
                    _ => unreachable!("it is always ready"),
                }
            }
            prop_assert!(replayed == text);
            prop_assert_eq!(trailers, u32::from(has_trailers));
            prop_assert_eq!(all.load(Ordering::Relaxed), 0);
        }
    }
}
