//! The future of a response.

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
use super::body::{Held, ResponseBody};
use super::dependencies::was_not_called;
use super::layer::InMap;
use super::metering::request_plain_response;
use super::response::{ShadowRefusedBy, refuse, refuse_shed, set_limit_headers};
use crate::admission::{Admission, Admitted};
use crate::policy_handle::ActivePolicy;

type BoxAdmission = Pin<Box<dyn Future<Output = Admission> + Send>>;

pin_project! {
    /// The response of a service `S` to a request with the body `Q`. `F` is the future of the service, `R` the
    /// body of its response.
    pub struct ResponseFuture<S, Q, F, R> {
        #[pin]
        state: CallState<S, Q, F, R>,
        policy: Option<Arc<ActivePolicy>>,
    }
}

pin_project! {
    #[project = CallStatePinned]
    enum CallState<S, Q, F, R> {
        /// A shared store is deciding, or the request is delayed.
        Deciding { waiting: Option<DelayedCall<S, Q>> },
        /// The service has been called.
        Calling { #[pin] response: F, admitted: Option<Box<Admitted>> },
        /// The request was refused.
        Refused { response: Option<Response<ResponseBody<R>>> },
    }
}

struct DelayedCall<S, Q> {
    service: S,
    request: Request<Q>,
    admission: BoxAdmission,
    is_grpc: bool,
}

impl<S, Q, F, R> ResponseFuture<S, Q, F, R> {
    pub(super) fn calling(
        response: F,
        policy: Arc<ActivePolicy>,
        admitted: Option<Box<Admitted>>,
    ) -> Self {
        Self { state: CallState::Calling { response, admitted }, policy: Some(policy) }
    }

    pub(super) fn refused(response: Response<ResponseBody<R>>) -> Self {
        Self { state: CallState::Refused { response: Some(response) }, policy: None }
    }

    /// Calls the service after the request was admitted and its delay is over.
    pub(super) fn waiting(
        service: S,
        request: Request<Q>,
        policy: Arc<ActivePolicy>,
        is_grpc: bool,
        deciding: impl Future<Output = Admission> + Send + 'static,
    ) -> Self {
        let admission = Box::pin(async move {
            let admission = deciding.await;
            if let Admission::Admitted(admitted) = &admission
                && !admitted.delay.is_zero()
            {
                tokio::time::sleep(admitted.delay).await;
            }
            admission
        });
        let waiting = Some(DelayedCall { service, request, admission, is_grpc });
        Self { state: CallState::Deciding { waiting }, policy: Some(policy) }
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
                CallStatePinned::Refused { response } => {
                    return Poll::Ready(Ok(response.take().expect("polled after it was ready")));
                }
                CallStatePinned::Calling { response, admitted } => {
                    let response = ready!(response.poll(context))?;
                    return Poll::Ready(Ok(finish(response, admitted.take(), this.policy.take())));
                }
                CallStatePinned::Deciding { waiting } => {
                    let pending = waiting.as_mut().expect("polled after it was ready");
                    let admission = ready!(pending.admission.as_mut().poll(context));
                    let DelayedCall { mut service, request, is_grpc, .. } =
                        waiting.take().expect("it was polled just now");
                    let admitted = match admission {
                        Admission::Exempt => None,
                        Admission::Admitted(admitted) => Some(admitted),
                        Admission::Refused(refusal) => {
                            let policy = this.policy.as_ref().expect("kept until the response");
                            let settings = policy.policy().response_settings();
                            let refused = refuse(settings, &refusal, is_grpc);
                            return Poll::Ready(Ok(refused.map(ResponseBody::own)));
                        }
                        Admission::Shed(refusal) => {
                            let refused = refuse_shed(&refusal, is_grpc);
                            return Poll::Ready(Ok(refused.map(ResponseBody::own)));
                        }
                    };
                    let response = forward(&mut service, request, admitted.as_deref());
                    this.state.set(CallState::Calling { response, admitted });
                }
            }
        }
    }
}

/// Calls the service with a request that was admitted.
pub(super) fn forward<S: Service<Request<Q>>, Q>(
    service: &mut S,
    mut request: Request<Q>,
    admitted: Option<&Admitted>,
) -> S::Future {
    if admitted.is_some_and(Admitted::is_metered) {
        request_plain_response(request.headers_mut());
    }
    service.call(request)
}

/// Settles the charge by the response, and adds the rate limit headers.
fn finish<R: Body<Data = Bytes>>(
    response: Response<R>,
    admitted: Option<Box<Admitted>>,
    policy: Option<Arc<ActivePolicy>>,
) -> Response<ResponseBody<R>> {
    let (mut parts, body) = response.into_parts();
    let (Some(mut admitted), Some(policy)) = (admitted, policy) else {
        return Response::from_parts(parts, ResponseBody::of_service(body, Held::Nothing));
    };
    if was_not_called(&parts.extensions) {
        admitted.ignore_load();
    }
    admitted.settle(parts.status.as_u16(), &InMap(&parts.headers));
    if let Some(ActualCost(actual)) = parts.extensions.get() {
        admitted.settle_as(*actual);
    }
    if let Some(refused) = ShadowRefusedBy::of(&admitted) {
        parts.extensions.insert(refused);
    }
    let settings = policy.policy().response_settings();
    if let Some(binding) = admitted.binding()
        && settings.on_allowed
    {
        set_limit_headers(settings, binding, &mut parts.headers);
    }
    let held = Held::new(admitted, policy, &parts, body.is_end_stream());
    Response::from_parts(parts, ResponseBody::of_service(body, held))
}
