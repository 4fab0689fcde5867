//! An answer on its way, of which a copy may be made.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::StaleState;
use super::cache::{ANSWER_MAX, Asked};

pin_project! {
    pub(in crate::gateway) struct Copied<B> {
        #[pin]
        body: B,
        copy: Option<Box<Copy>>,
    }
}

/// What has gone by so far.
pub(super) struct Copy {
    asked: Asked,
    headers: HeaderMap,
    so_far: BytesMut,
    state: Arc<StaleState>,
}

impl Copy {
    pub(super) fn begin(asked: Asked, headers: HeaderMap, state: Arc<StaleState>) -> Box<Self> {
        Box::new(Self { asked, headers, so_far: BytesMut::new(), state })
    }

    /// Returns whether the copy goes on. It ends with what is too long, and with trailers.
    fn take(&mut self, frame: &Frame<Bytes>) -> bool {
        let room = ANSWER_MAX - self.so_far.len();
        let data = frame.data_ref().filter(|data| data.len() <= room);
        data.map(|data| self.so_far.extend_from_slice(data)).is_some()
    }

    fn keep(self) {
        let Self { asked, headers, so_far, state } = self;
        state.cache.keep(asked, headers, so_far.freeze(), state.ticks.now_us());
    }
}

impl<B> Copied<B> {
    pub(super) fn new(body: B, copy: Option<Box<Copy>>) -> Self {
        Self { body, copy }
    }
}

impl<B: Body<Data = Bytes>> Body for Copied<B> {
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
            // Whoever knows the length does not ask again after the last byte.
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
