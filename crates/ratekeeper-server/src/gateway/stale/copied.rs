//! The body of a response on its way to the client, of which a copy may be made.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::StaleState;
use super::cache::{CacheableRequest, RESPONSE_BYTES_MAX};

pin_project! {
    pub(in crate::gateway) struct CopiedBody<B> {
        #[pin]
        body: B,
        copy: Option<Box<BodyCopy>>,
    }
}

/// The copy of what was sent so far.
pub(super) struct BodyCopy {
    request: CacheableRequest,
    headers: HeaderMap,
    so_far: BytesMut,
    state: Arc<StaleState>,
}

impl BodyCopy {
    pub(super) fn begin(
        request: CacheableRequest,
        headers: HeaderMap,
        state: Arc<StaleState>,
    ) -> Box<Self> {
        Box::new(Self { request, headers, so_far: BytesMut::new(), state })
    }

    /// Returns whether the copy goes on. A body that is too long or has trailers is not copied.
    fn take(&mut self, frame: &Frame<Bytes>) -> bool {
        let bytes_left = RESPONSE_BYTES_MAX - self.so_far.len();
        let data = frame.data_ref().filter(|data| data.len() <= bytes_left);
        data.map(|data| self.so_far.extend_from_slice(data)).is_some()
    }

    fn keep(self) {
        let Self { request, headers, so_far, state } = self;
        state.cache.keep(request, headers, so_far.freeze(), state.ticks.now_us());
    }
}

impl<B> CopiedBody<B> {
    pub(super) fn new(body: B, copy: Option<Box<BodyCopy>>) -> Self {
        Self { body, copy }
    }
}

impl<B: Body<Data = Bytes>> Body for CopiedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(context));
        let Some(copy) = this.copy else { return Poll::Ready(frame) };
        let (goes_on, is_over) = match &frame {
            // With a known length, the body is not polled again after the last byte.
            Some(Ok(frame)) => (copy.take(frame), this.body.is_end_stream()),
            Some(Err(_)) => (false, true),
            None => (true, true),
        };
        match this.copy.take_if(|_| !goes_on || is_over) {
            Some(copy) if goes_on => copy.keep(),
            _ => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
