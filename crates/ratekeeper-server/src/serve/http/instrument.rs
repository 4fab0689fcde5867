//! Counts, times and traces the requests of the HTTP API.

use std::net::IpAddr;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::Body;

use super::response::{ApiResponse, IsError};
use super::{HttpApi, routes};
use crate::serve::request_metrics::{Outcome, Tally};
use crate::trace::{self, DecisionInfo, DecisionSpan, Parent};

/// How requests of a path are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    /// Decides whether a request may proceed.
    Decision,
    /// The same for a proxy, by forward-auth.
    ForwardAuth,
    /// Concerns limits, but decides nothing.
    Other,
    /// Does not concern limits (help, health), and is not timed.
    Untimed,
}

/// Handles a request, and records its outcome and duration.
pub(super) async fn handle<B>(api: &HttpApi, request: Request<B>, peer: IpAddr) -> ApiResponse
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let kind = RequestKind::of(request.uri().path());
    let parent = Parent::of(request.headers());
    let (metrics, began) = (&api.metrics, api.limiter.engine().now());
    let mut response = routes::handle(api, request, peer).await;
    let is_forward_auth = kind == RequestKind::ForwardAuth;
    let metrics = if is_forward_auth { &metrics.forward_auth } else { &metrics.http };
    let outcome = kind.outcome(&response);
    if kind == RequestKind::Untimed {
        metrics.count(outcome);
        return response;
    }
    let ended = api.limiter.engine().now();
    metrics.record(&Tally::one(outcome), ended.since(began));
    if trace::is_on() {
        let info: DecisionInfo = response.extensions_mut().remove().unwrap_or_default();
        let protocol = if is_forward_auth { "forward_auth" } else { "http" };
        let (info, outcome) = (&info, outcome.name());
        trace::record(&DecisionSpan { protocol, info, outcome, began, ended, parent });
    }
    response
}

impl RequestKind {
    fn of(path: &str) -> Self {
        match path {
            "/v1/check" | "/v1/reserve" | "/v1/acquire" | "/json" => Self::Decision,
            "/v1/auth" => Self::ForwardAuth,
            _ if path.starts_with("/v1/") => Self::Other,
            _ => Self::Untimed,
        }
    }

    fn outcome(self, response: &ApiResponse) -> Outcome {
        let status = response.status();
        if response.extensions().get::<IsError>().is_some() || status.is_server_error() {
            return Outcome::Error;
        }
        match self {
            Self::Decision | Self::ForwardAuth if status == StatusCode::OK => Outcome::Allowed,
            // 401 is the policy's denial of a request without an identity.
            Self::Decision | Self::ForwardAuth if status.is_client_error() => Outcome::Denied,
            _ if status.is_success() => Outcome::Other,
            _ => Outcome::Error,
        }
    }
}
