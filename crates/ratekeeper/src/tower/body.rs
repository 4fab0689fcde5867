//! The body of a response: the service's, or a refusal.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::admission::Admitted;

pin_project! {
    /// The body of a response. Until it has been read to its end or dropped, the request is in flight.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        body: Either<B>,
        in_flight: Option<Box<Admitted>>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = EitherPinned]
    enum Either<B> {
        Service { #[pin] body: B },
        Own { bytes: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn of_service(body: B, in_flight: Option<Box<Admitted>>) -> Self {
        Self { body: Either::Service { body }, in_flight }
    }

    pub(super) fn own(bytes: Bytes) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self { body: Either::Own { bytes }, in_flight: None }
    }
}

/// An empty body.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::own(Bytes::new())
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = match this.body.project() {
            EitherPinned::Service { body } => ready!(body.poll_frame(context)),
            EitherPinned::Own { bytes } => bytes.take().map(|bytes| Ok(Frame::data(bytes))),
        };
        if frame.is_none() {
            *this.in_flight = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Either::Service { body } => body.is_end_stream(),
            Either::Own { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Either::Service { body } => body.size_hint(),
            Either::Own { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}
