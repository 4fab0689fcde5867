//! The body of a response: the service's, or a refusal.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::response::Parts;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::metering::Metering;
use crate::admission::Admitted;
use crate::policy_handle::ActivePolicy;

pin_project! {
    /// The body of a response. Until it has been read to its end or dropped, the request is in flight.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        body: Either<B>,
        held: Held,
    }
}

/// What is kept until the body has been read.
#[derive(Debug)]
pub(crate) enum Held {
    Nothing,
    /// The permits of the request.
    InFlight {
        _admitted: Box<Admitted>,
    },
    /// A permit of a bulkhead.
    Permit {
        _permit: crate::concurrency::Permit,
    },
    /// A permit of an adaptive limit, whose clock can be any.
    AdaptivePermit {
        _permit: Box<dyn std::fmt::Debug + Send + Sync>,
    },
    /// The permits of dependencies.
    Calls {
        _permits: Vec<crate::dependency::DependencyPermit>,
    },
    /// The charges of the request, which depend on the body.
    Metered(Box<Metering>),
}

impl Held {
    /// Returns what is kept of a request until the body of its response, with this head, has been read.
    pub(crate) fn new(
        admitted: Box<Admitted>,
        policy: Arc<ActivePolicy>,
        head: &Parts,
        is_end_stream: bool,
    ) -> Self {
        let mut held = match admitted.is_metered() {
            true => Self::Metered(Box::new(Metering::new(*admitted, policy, head))),
            // A request is in flight until the body of its response has been read.
            false if admitted.holds_permits() => Self::InFlight { _admitted: admitted },
            false => Self::Nothing,
        };
        if is_end_stream {
            held.end();
        }
        held
    }

    /// Reads a frame, which is the last if `is_last`.
    fn read(&mut self, frame: &Frame<Bytes>, is_last: bool) {
        let Self::Metered(metering) = self else { return };
        if let Some(bytes) = frame.data_ref() {
            metering.feed(bytes);
        }
        if is_last {
            self.end();
        }
    }

    /// Ends with the body.
    pub(crate) fn end(&mut self) {
        if let Self::Metered(metering) = self {
            metering.complete();
        }
        *self = Self::Nothing;
    }

    /// Ends with an error of the body. Permits are kept until the body is dropped.
    fn fail(&mut self) {
        if let Self::Metered(_) = self {
            *self = Self::Nothing;
        }
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
    pub(crate) fn of_service(body: B, held: Held) -> Self {
        Self { body: Either::Service { body }, held }
    }

    pub(crate) fn own(bytes: Bytes) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self { body: Either::Own { bytes }, held: Held::Nothing }
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
        let mut body = match this.body.project() {
            EitherPinned::Service { body } => body,
            EitherPinned::Own { bytes } => {
                return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))));
            }
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        match &frame {
            // Not every server reads on after the last frame.
            Some(Ok(frame)) => this.held.read(frame, body.is_end_stream()),
            Some(Err(_)) => this.held.fail(),
            None => this.held.end(),
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
