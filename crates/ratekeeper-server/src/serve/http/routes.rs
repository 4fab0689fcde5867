//! The paths of the HTTP API.

use std::net::IpAddr;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::Body;
use ratekeeper::Op;

use super::HttpApi;
use super::reply::{self, Reply, wrong};
use super::{auth, check, hold, reset};
use crate::body::{BodyReadError, read_body};

/// The largest body of a request.
const BODY_MAX: usize = 64 << 10;

const HELP: &str = include_str!("help.txt");
const OPENAPI: &str = include_str!("openapi.json");

type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) async fn answer<B>(door: &HttpApi, request: Request<B>, peer: IpAddr) -> Reply
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let path = request.uri().path();
    if let Some(page) = page(path) {
        return match *request.method() {
            Method::GET | Method::HEAD => page,
            _ => method_not_allowed("GET, HEAD", "use GET or HEAD"),
        };
    }
    let is_auth = path == "/v1/auth";
    if !(door.tokens.allow(request.headers())
        || is_auth && door.tokens.allow_proxy(request.headers()))
    {
        return unauthorized();
    }
    let Some(route) = Route::of(path, door) else {
        let message = "there is no such path; GET / lists the paths";
        return wrong(StatusCode::NOT_FOUND, "NOT_FOUND", message);
    };
    if route == Route::Auth {
        return Box::pin(auth::answer(door, &request, peer)).await;
    }
    if request.method() != Method::POST {
        return method_not_allowed("POST", "use POST with a JSON body");
    }
    let body = match read_request(request.into_body()).await {
        Ok(body) => body,
        Err(reply) => return reply,
    };
    // Other operations are boxed, so that the future of a check stays small.
    let response = match route {
        Route::Check => check::answer(door, &body, Op::Check).await,
        other => Box::pin(other.answer(door, &body)).await,
    };
    response.unwrap_or_else(|message| wrong(StatusCode::BAD_REQUEST, "BAD_REQUEST", &message))
}

/// The operation of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    Check,
    Peek,
    Reset,
    Reserve,
    Settle,
    Acquire,
    Release,
    Auth,
    /// As envoyproxy/ratelimit has it.
    Descriptors,
}

impl Route {
    fn of(path: &str, door: &HttpApi) -> Option<Self> {
        Some(match path {
            "/v1/check" => Self::Check,
            "/v1/auth" => Self::Auth,
            "/v1/peek" => Self::Peek,
            "/v1/reset" => Self::Reset,
            "/v1/reserve" => Self::Reserve,
            "/v1/settle" => Self::Settle,
            "/v1/acquire" => Self::Acquire,
            "/v1/release" => Self::Release,
            "/json" if door.envoy.is_some() => Self::Descriptors,
            _ => return None,
        })
    }

    async fn answer(self, door: &HttpApi, body: &[u8]) -> Result<Reply, String> {
        match self {
            Self::Peek => check::answer(door, body, Op::Peek).await,
            Self::Reset => reset::answer(door, body).await,
            Self::Reserve => hold::reserve(door, body).await,
            Self::Settle => hold::settle(door, body).await,
            Self::Acquire => hold::acquire(door, body).await,
            Self::Release => hold::release(door, body).await,
            Self::Descriptors => Ok(descriptors(door, body).await),
            Self::Check | Self::Auth => unreachable!("they are served elsewhere"),
        }
    }
}

/// Returns the body of a request, or the response if it cannot be read.
async fn read_request<B>(body: B) -> Result<Bytes, Reply>
where
    B: Body<Data = Bytes>,
{
    read_body(body, BODY_MAX).await.map_err(|why| match why {
        BodyReadError::TooLarge => {
            let message = format!("the body is incomplete or larger than {BODY_MAX} bytes");
            wrong(StatusCode::PAYLOAD_TOO_LARGE, "BODY", &message)
        }
        BodyReadError::TooSlow => {
            wrong(StatusCode::REQUEST_TIMEOUT, "TIMEOUT", "the body did not come in time")
        }
    })
}

/// Returns the pages that need no token.
fn page(path: &str) -> Option<Reply> {
    let (kind, text) = match path {
        "/" => ("text/plain; charset=utf-8", HELP),
        "/openapi.json" => ("application/json", OPENAPI),
        // The second is envoyproxy/ratelimit's.
        "/healthz" | "/healthcheck" => ("text/plain; charset=utf-8", "ok\n"),
        _ => return None,
    };
    Some(reply::full(StatusCode::OK, kind, text.into()))
}

fn method_not_allowed(methods: &'static str, message: &str) -> Reply {
    let mut reply = wrong(StatusCode::METHOD_NOT_ALLOWED, "METHOD", message);
    let methods = http::HeaderValue::from_static(methods);
    reply.headers_mut().insert(http::header::ALLOW, methods);
    reply
}

/// Envoy's gRPC request in JSON, as in envoyproxy/ratelimit.
async fn descriptors(door: &HttpApi, body: &[u8]) -> Reply {
    let Some(envoy) = &door.envoy else {
        return wrong(StatusCode::NOT_FOUND, "NOT_FOUND", "there are no limits of descriptors");
    };
    let (status, body) = envoy.respond_json(body).await;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply::full(status, "application/json", body.into())
}

fn unauthorized() -> Reply {
    let mut reply =
        wrong(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "a valid bearer token is needed");
    let scheme = http::HeaderValue::from_static("Bearer");
    reply.headers_mut().insert(http::header::WWW_AUTHENTICATE, scheme);
    reply
}
