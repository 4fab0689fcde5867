//! The layer as a middleware of reqwest.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Extensions, HeaderMap, Method, StatusCode};
use ratekeeper_control::Failure;
use reqwest::{Body, Request, Response, ResponseBuilderExt, Url};
use reqwest_middleware::{Error, Middleware, Next, Result};

use super::call::{AttemptToSend, Exchange};
use super::error::{BoxError, OutboundError};
use super::outbound::Outbound;
use super::request::{Attempt, OutboundRequest};
use super::service::{finish_response, prepare};
use crate::admission::Admitted;
use crate::policy_handle::ActivePolicy;

/// Errors of the layer are an [`OutboundError<reqwest::Response>`](super::OutboundError) in an [`Error::Middleware`].
///
/// ```
/// use ratekeeper::client::{Outbound, OutboundError};
/// use reqwest_middleware::ClientBuilder;
///
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let client = ClientBuilder::new(reqwest::Client::new())
///     .with(Outbound::new("100/s per host")?)
///     .build();
/// # Ok(()) }
///
/// # async fn g(client: reqwest_middleware::ClientWithMiddleware) {
/// if let Err(error) = client.get("https://api.example.com").send().await
///     && let Some(error) = OutboundError::find(&error)
/// {
///     println!("{error}; retry in {:?}", error.retry_after());
/// }
/// # }
/// ```
#[async_trait]
impl Middleware for Outbound {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let mut head = ReqwestHead { request: Some(request), extensions: extensions.clone() };
        let mut exchange = ReqwestExchange { next, extensions, is_replayable: true };
        self.run(&mut head, &mut exchange).await.map_err(Error::middleware)
    }
}

impl OutboundError<Response> {
    /// Returns the error of the layer in an error of a client with middleware, if it is one.
    pub fn find(error: &Error) -> Option<&Self> {
        match error {
            Error::Middleware(error) => error.downcast_ref(),
            Error::Reqwest(_) => None,
        }
    }
}

struct ReqwestHead {
    /// `None` once it was sent and cannot be sent again.
    request: Option<Request>,
    extensions: Extensions,
}

impl ReqwestHead {
    fn unsent(&self) -> &Request {
        self.request.as_ref().expect("a request is read before it is sent")
    }
}

/// Sends requests by the rest of a middleware chain.
struct ReqwestExchange<'a> {
    next: Next<'a>,
    extensions: &'a mut Extensions,
    is_replayable: bool,
}

impl Exchange for ReqwestExchange<'_> {
    type Head = ReqwestHead;
    type Raw = Response;
    type Response = Response;

    fn view(head: &ReqwestHead) -> OutboundRequest<'_> {
        OutboundRequest::of_reqwest(head.unsent(), &head.extensions)
    }

    fn method(head: &ReqwestHead) -> &Method {
        head.unsent().method()
    }

    fn headers(head: &ReqwestHead) -> &HeaderMap {
        head.unsent().headers()
    }

    fn extensions(head: &ReqwestHead) -> &Extensions {
        &head.extensions
    }

    fn content(&self, head: &ReqwestHead) -> Option<Bytes> {
        let body = head.request.as_ref()?.body()?;
        body.as_bytes().map(Bytes::copy_from_slice)
    }

    async fn send(
        &mut self,
        head: &mut ReqwestHead,
        attempt: &AttemptToSend,
    ) -> std::result::Result<Response, BoxError> {
        let copy = head.request.as_ref().filter(|_| attempt.is_kept).and_then(Request::try_clone);
        // The last attempt is not kept, and no body would change that it is the last.
        self.is_replayable = copy.is_some() || !attempt.is_kept;
        let request = copy.or_else(|| head.request.take());
        let mut request = request.ok_or("the body of the request cannot be sent again")?;
        prepare(request.headers_mut(), attempt);
        if attempt.number > 1 {
            self.extensions.insert(Attempt(attempt.number));
        }
        Ok(self.next.clone().run(request, self.extensions).await?)
    }

    fn is_replayable(&self) -> bool {
        self.is_replayable
    }

    fn failure(error: &BoxError) -> Option<Failure> {
        match error.downcast_ref::<Error>() {
            Some(Error::Reqwest(error)) if error.is_connect() => Some(Failure::NotSent),
            Some(Error::Reqwest(error))
                if error.is_builder() || error.is_redirect() || error.is_decode() =>
            {
                None
            }
            Some(Error::Reqwest(_)) => Some(Failure::Broken),
            // Another middleware has failed.
            _ => None,
        }
    }

    fn head(response: &Response) -> (StatusCode, &HeaderMap) {
        (response.status(), response.headers())
    }

    fn finish(
        mut response: Response,
        admitted: Option<(Box<Admitted>, Arc<ActivePolicy>)>,
        attempt: u32,
    ) -> Response {
        let is_held =
            |(admitted, _): &(Box<Admitted>, _)| admitted.is_metered() || admitted.holds_permits();
        match admitted.filter(is_held) {
            Some(admitted) => {
                let url = response.url().clone();
                let mut response: http::Response<Body> = response.into();
                // The conversion drops the address, and takes it from the extensions on the way back.
                response.extensions_mut().extend(url_extension(url));
                finish_response(response, Some(admitted), attempt).map(Body::wrap).into()
            }
            None => {
                if attempt > 1 {
                    response.extensions_mut().insert(Attempt(attempt));
                }
                response
            }
        }
    }
}

/// Returns the extension in which reqwest keeps the address of a response.
fn url_extension(url: Url) -> Extensions {
    let response = http::Response::builder().url(url).body(());
    response.map(|response| response.into_parts().0.extensions).unwrap_or_default()
}
