//! The answer that is on its way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::ActualCost;
use super::answer::{refuse, tell_allowed};
use super::body::ResponseBody;
use super::layer::InMap;
use crate::gate::{Admission, Admitted, Live};

type Decided = Pin<Box<dyn Future<Output = Admission> + Send>>;

pin_project! {
    /// The answer of a service `S` to a request with the body `Q`, which its future `F` gives, with a
    /// body `R`.
    pub struct ResponseFuture<S, Q, F, R> {
        #[pin]
        state: State<S, Q, F, R>,
        live: Option<Arc<Live>>,
    }
}

pin_project! {
    #[project = StatePinned]
    enum State<S, Q, F, R> {
        /// The store has not answered yet, or the request is held in a queue.
        Deciding { waiting: Option<Waiting<S, Q>> },
        /// The service has been called.
        Calling { #[pin] answer: F, admitted: Option<Box<Admitted>> },
        /// It was refused.
        Refused { response: Option<Response<ResponseBody<R>>> },
    }
}

struct Waiting<S, Q> {
    service: S,
    request: Request<Q>,
    decided: Decided,
    is_grpc: bool,
}

impl<S, Q, F, R> ResponseFuture<S, Q, F, R> {
    pub(super) fn calling(answer: F, live: Arc<Live>, admitted: Option<Box<Admitted>>) -> Self {
        Self { state: State::Calling { answer, admitted }, live: Some(live) }
    }

    pub(super) fn refused(response: Response<ResponseBody<R>>) -> Self {
        Self { state: State::Refused { response: Some(response) }, live: None }
    }

    /// Calls the service when it is decided that the request may pass, and its time has come.
    pub(super) fn waiting(
        service: S,
        request: Request<Q>,
        live: Arc<Live>,
        is_grpc: bool,
        decided: impl Future<Output = Admission> + Send + 'static,
    ) -> Self {
        let decided = Box::pin(async move {
            let admission = decided.await;
            if let Admission::Admitted(admitted) = &admission
                && !admitted.delay.is_zero()
            {
                tokio::time::sleep(admitted.delay).await;
            }
            admission
        });
        let waiting = Some(Waiting { service, request, decided, is_grpc });
        Self { state: State::Deciding { waiting }, live: Some(live) }
    }
}

impl<S, Q, F, R, E> Future for ResponseFuture<S, Q, F, R>
where
    S: Service<Request<Q>, Response = Response<R>, Error = E, Future = F>,
    F: Future<Output = Result<Response<R>, E>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StatePinned::Refused { response } => {
                    return Poll::Ready(Ok(response.take().expect("polled after it was ready")));
                }
                StatePinned::Calling { answer, admitted } => {
                    let response = ready!(answer.poll(context))?;
                    return Poll::Ready(Ok(tell(response, admitted.take(), this.live.as_deref())));
                }
                StatePinned::Deciding { waiting } => {
                    let decided = waiting.as_mut().expect("polled after it was ready");
                    let admission = ready!(decided.decided.as_mut().poll(context));
                    let Waiting { mut service, request, is_grpc, .. } =
                        waiting.take().expect("it was there just now");
                    let admitted = match admission {
                        Admission::Exempt => None,
                        Admission::Admitted(admitted) => Some(admitted),
                        Admission::Refused(refusal) => {
                            let live = this.live.as_ref().expect("it is there until the answer is");
                            let answers = live.policy().response_settings();
                            let refused = refuse(answers, &refusal, is_grpc);
                            return Poll::Ready(Ok(refused.map(ResponseBody::own)));
                        }
                    };
                    let answer = service.call(request);
                    this.state.set(State::Calling { answer, admitted });
                }
            }
        }
    }
}

/// The service's answer, with what the policy has to say about it.
fn tell<R: Body<Data = Bytes>>(
    response: Response<R>,
    admitted: Option<Box<Admitted>>,
    live: Option<&Live>,
) -> Response<ResponseBody<R>> {
    let (mut parts, body) = response.into_parts();
    let held = admitted.map(|mut admitted| {
        admitted.settle(parts.status.as_u16(), &InMap(&parts.headers));
        if let Some(ActualCost(actual)) = parts.extensions.get() {
            admitted.settle_as(*actual);
        }
        if let Some(live) = live {
            tell_allowed(live.policy().response_settings(), admitted.speaker(), &mut parts.headers);
        }
        admitted
    });
    // Nothing is in flight once an empty answer is given.
    let held = held.filter(|held| held.holds_permits() && !body.is_end_stream());
    Response::from_parts(parts, ResponseBody::of_service(body, held))
}
