//! Why requests fail, and the one place where that becomes a response.

use std::error::Error;
use std::fmt::{self, Display, Formatter};

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use ratekeeper::DependencyRejected;
use ratekeeper::tower::{NotCalled, Unanswered, reject_call};

use super::state::Overload;

/// Why the gateway responds to a request itself.
#[derive(Debug)]
pub(super) enum ProxyError {
    /// The request cannot be forwarded as it is.
    BadRequest(&'static str),
    /// The client requests a tunnel to anywhere.
    Connect,
    TooManyHeaders,
    BodyTooLarge,
    /// The client stopped sending its body, or sends it too slowly.
    SlowBody,
    /// The client's body ended early or broke its framing.
    BrokenBody,
    /// No upstream could be reached.
    Unreachable(String),
    /// An upstream was reached, and failed while it had the request.
    Upstream(String),
    UpstreamTimeout,
    /// A limit on what is in flight is reached.
    Overloaded(Overload),
    /// A dependency that protects the upstreams rejected the request.
    Rejected(DependencyRejected),
    /// A layer before the proxy failed.
    Internal(String),
}

impl ProxyError {
    fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::BrokenBody => StatusCode::BAD_REQUEST,
            Self::Connect => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooManyHeaders => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::Unreachable(_) | Self::Upstream(_) => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Overloaded(_) | Self::Rejected(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "BAD_REQUEST",
            Self::BrokenBody => "BROKEN_BODY",
            Self::Connect => "METHOD_NOT_ALLOWED",
            Self::TooManyHeaders => "TOO_MANY_HEADERS",
            Self::BodyTooLarge => "BODY_TOO_LARGE",
            Self::SlowBody => "BODY_TIMEOUT",
            Self::Unreachable(_) => "UPSTREAM_UNAVAILABLE",
            Self::Upstream(_) => "UPSTREAM_FAILED",
            Self::UpstreamTimeout => "UPSTREAM_TIMEOUT",
            Self::Overloaded(_) => "OVERLOADED",
            Self::Rejected(rejected) => rejected.code(),
            Self::Internal(_) => "INTERNAL",
        }
    }

    /// The message in the response. Names of upstreams and causes are for the log only.
    fn message(&self) -> &'static str {
        match self {
            Self::BadRequest(message) => message,
            Self::BrokenBody => "the request's body ended early or is not well-formed",
            Self::Connect => "CONNECT is not allowed: this is not a forward proxy",
            Self::TooManyHeaders => "the request has too many headers",
            Self::BodyTooLarge => "the request's body is too large",
            Self::SlowBody => "the request's body arrives too slowly",
            Self::Unreachable(_) => "no upstream could be reached",
            Self::Upstream(_) => "the upstream failed while it responded",
            Self::UpstreamTimeout => "the upstream did not respond in time",
            Self::Overloaded(_) => "the gateway has too many requests in flight; try again later",
            Self::Rejected(_) => "the upstreams are protected from this request; try again later",
            Self::Internal(_) => "the gateway failed",
        }
    }

    /// Whether the upstream is at fault.
    fn is_of_upstream(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Upstream(_) | Self::UpstreamTimeout)
    }

    /// Whether the client's request is at fault, so that nothing more is read from its connection.
    fn ends_connection(&self) -> bool {
        matches!(self, Self::BadRequest(_) | Self::BrokenBody | Self::BodyTooLarge | Self::SlowBody)
    }

    pub(super) fn into_response<B: From<Bytes>>(self, is_http1: bool) -> Response<B> {
        if self.status().is_server_error() {
            tracing::debug!(error = %self, "response by the gateway");
        }
        if let Self::Rejected(rejected) = &self {
            return reject_call(rejected, false).map(B::from);
        }
        let mut response = Response::new(B::from(body(self.code(), self.message())));
        *response.status_mut() = self.status();
        if matches!(self, Self::Upstream(_) | Self::UpstreamTimeout) {
            response.extensions_mut().insert(Unanswered);
        }
        if !self.is_of_upstream() {
            response.extensions_mut().insert(NotCalled);
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if is_http1 && self.ends_connection() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if matches!(self, Self::Overloaded(_)) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if matches!(self, Self::Connect) {
            let allowed = "GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH, TRACE";
            headers.insert(ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}

/// Neither text needs escaping: both are ours.
pub(super) fn body(code: &str, message: &str) -> Bytes {
    Bytes::from(format!("{{\"code\":\"{code}\",\"message\":\"{message}\"}}\n"))
}

impl Display for ProxyError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())?;
        match self {
            Self::Unreachable(why) | Self::Upstream(why) | Self::Internal(why) => {
                write!(f, ": {why}")
            }
            Self::Rejected(rejected) => write!(f, ": {rejected}"),
            Self::Overloaded(bound) => write!(f, ": {bound:?}"),
            _ => Ok(()),
        }
    }
}

impl Error for ProxyError {}

/// An error with all its causes, on one line.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
