//! The paths of the HTTP API.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::{ALLOW, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body::Body;
use ratekeeper::Op;

use super::HttpApi;
use super::error::RequestError;
use super::response::{ApiResponse, error_response, full_response, text_response};
use super::{check, forward_auth, permits, reservations, reset};
use crate::body::{BodyError, BodyLimits, read_body};

/// The largest body, in bytes.
const BODY_MAX: usize = 64 << 10;

const HELP: &str = include_str!("help.txt");
const OPENAPI: &str = include_str!("openapi.json");

type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) async fn handle<B>(api: &HttpApi, request: Request<B>, peer: IpAddr) -> ApiResponse
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let path = request.uri().path();
    if let Some(page) = public_page(path) {
        return match *request.method() {
            Method::GET | Method::HEAD => page,
            _ => method_not_allowed("GET, HEAD", "use GET"),
        };
    }
    let is_forward_auth = path == "/v1/auth";
    if !(api.tokens.allow(request.headers())
        || is_forward_auth && api.tokens.allow_proxy(request.headers()))
    {
        return unauthorized();
    }
    let Some(route) = ApiRoute::of(path, api) else {
        let message = "there is no such path; GET / lists them";
        return error_response(StatusCode::NOT_FOUND, "NOT_FOUND", message);
    };
    if route == ApiRoute::ForwardAuth {
        return Box::pin(forward_auth::authorize(api, &request, peer)).await;
    }
    if request.method() != Method::POST {
        return method_not_allowed("POST", "use POST with a JSON body");
    }
    let (parts, body) = request.into_parts();
    let body = match read_body(body, BodyLimits::of_message(BODY_MAX)).await {
        Ok(body) => body,
        Err(error) => return body_error_response(&error),
    };
    // The futures of the other routes are larger and boxed, so that the one of a check stays small.
    let handled = match route {
        ApiRoute::Check => check::check(api, &parts.headers, &body, Op::Check).await,
        other => Box::pin(other.handle(api, &parts.headers, &body)).await,
    };
    handled.unwrap_or_else(|error| error.to_response())
}

/// The paths that need a token, if any is configured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ApiRoute {
    Check,
    Peek,
    Reset,
    Reserve,
    Settle,
    Acquire,
    Release,
    ForwardAuth,
    /// The JSON form of Envoy's rate limit service, at the path that envoyproxy/ratelimit uses.
    Descriptors,
}

impl ApiRoute {
    fn of(path: &str, api: &HttpApi) -> Option<Self> {
        Some(match path {
            "/v1/check" => Self::Check,
            "/v1/auth" => Self::ForwardAuth,
            "/v1/peek" => Self::Peek,
            "/v1/reset" => Self::Reset,
            "/v1/reserve" => Self::Reserve,
            "/v1/settle" => Self::Settle,
            "/v1/acquire" => Self::Acquire,
            "/v1/release" => Self::Release,
            "/json" if api.envoy.is_some() => Self::Descriptors,
            _ => return None,
        })
    }

    async fn handle(
        self,
        api: &HttpApi,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<ApiResponse, RequestError> {
        match self {
            Self::Peek => check::check(api, headers, body, Op::Peek).await,
            Self::Reset => reset::reset(api, body).await,
            Self::Reserve => reservations::reserve(api, headers, body).await,
            Self::Settle => reservations::settle(api, body).await,
            Self::Acquire => permits::acquire(api, headers, body).await,
            Self::Release => permits::release(api, body).await,
            Self::Descriptors => Ok(descriptors(api, body).await),
            Self::Check | Self::ForwardAuth => unreachable!("handled by the caller"),
        }
    }
}

/// Returns a page that needs no token.
fn public_page(path: &str) -> Option<ApiResponse> {
    Some(match path {
        "/" => text_response(StatusCode::OK, HELP),
        "/openapi.json" => full_response(StatusCode::OK, "application/json", OPENAPI.into()),
        // The second path is the one of envoyproxy/ratelimit.
        "/healthz" | "/healthcheck" => text_response(StatusCode::OK, "ok\n"),
        _ => return None,
    })
}

/// Decides about descriptors in JSON.
async fn descriptors(api: &HttpApi, body: &[u8]) -> ApiResponse {
    let Some(envoy) = &api.envoy else {
        let message = "there are no descriptor limits";
        return error_response(StatusCode::NOT_FOUND, "NOT_FOUND", message);
    };
    let (status, body) = envoy.respond_json(body).await;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    full_response(status, "application/json", body.into())
}

fn body_error_response(error: &BodyError) -> ApiResponse {
    match error {
        BodyError::TooLarge => {
            let message = format!("the body is too large; at most {BODY_MAX} bytes");
            error_response(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", &message)
        }
        BodyError::TooSlow => {
            let message = "the body did not arrive in time";
            error_response(StatusCode::REQUEST_TIMEOUT, "TIMEOUT", message)
        }
        BodyError::Broken(_) => {
            error_response(StatusCode::BAD_REQUEST, "BODY_INCOMPLETE", "the body is incomplete")
        }
    }
}

fn method_not_allowed(allowed: &'static str, message: &str) -> ApiResponse {
    let mut response =
        error_response(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

fn unauthorized() -> ApiResponse {
    let message = "a valid bearer token is required";
    let mut response = error_response(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
