//! The body of a request, the beginning of which may have been read before.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a request that [`RequestJsonLayer`](super::RequestJsonLayer) may have read. It is the same,
    /// piece by piece, as if it had not been read.
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
                body.head.is_empty() && body.error.is_none() && body.rest.is_end_stream()
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
            let bytes = frame.data_ref().cloned();
            self.head.push_back(frame);
            let Some(bytes) = bytes else { continue };
            let is_within = self.held.add(bytes.len());
            return Poll::Ready(Some(bytes).filter(|_| is_within));
        }
    }

    fn poll_replayed(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Q::Error>>> {
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
