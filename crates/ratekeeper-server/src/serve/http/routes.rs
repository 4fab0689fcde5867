//! Which question is asked where.

use std::net::IpAddr;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::Body;
use ratekeeper::Op;

use super::HttpApi;
use super::reply::{self, Reply, wrong};
use super::{auth, check, hold, reset};
use crate::body::{BodyReadError, read_body};

/// The largest question.
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
            _ => not_so("GET, HEAD", "this is only to be read"),
        };
    }
    let is_auth = path == "/v1/auth";
    if !(door.tokens.allow(request.headers())
        || is_auth && door.tokens.allow_proxy(request.headers()))
    {
        return unauthorized();
    }
    let Some(route) = Route::of(path, door) else {
        let message = "there is no such path; GET / tells which there are";
        return wrong(StatusCode::NOT_FOUND, "NOT_FOUND", message);
    };
    if route == Route::Auth {
        return Box::pin(auth::answer(door, &request, peer)).await;
    }
    if request.method() != Method::POST {
        return not_so("POST", "this is asked with POST and a JSON body");
    }
    let body = match question(request.into_body()).await {
        Ok(body) => body,
        Err(reply) => return reply,
    };
    // What is asked less often is in a box, so that the answer to a check is not moved about with it.
    let answered = match route {
        Route::Check => check::answer(door, &body, Op::Check).await,
        other => Box::pin(other.answer(door, &body)).await,
    };
    answered.unwrap_or_else(|message| wrong(StatusCode::BAD_REQUEST, "BAD_REQUEST", &message))
}

/// What is asked where.
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
            Self::Check | Self::Auth => unreachable!("they are answered elsewhere"),
        }
    }
}

/// All of a question, or what is wrong with it.
async fn question<B>(body: B) -> Result<Bytes, Reply>
where
    B: Body<Data = Bytes>,
{
    read_body(body, BODY_MAX).await.map_err(|why| match why {
        BodyReadError::TooLarge => {
            let message = format!("the body is too large or broke off; at most {BODY_MAX} bytes");
            wrong(StatusCode::PAYLOAD_TOO_LARGE, "BODY", &message)
        }
        BodyReadError::TooSlow => {
            wrong(StatusCode::REQUEST_TIMEOUT, "TIMEOUT", "the body did not come in time")
        }
    })
}

/// What everybody may read.
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

fn not_so(methods: &'static str, message: &str) -> Reply {
    let mut reply = wrong(StatusCode::METHOD_NOT_ALLOWED, "METHOD", message);
    let methods = http::HeaderValue::from_static(methods);
    reply.headers_mut().insert(http::header::ALLOW, methods);
    reply
}

/// What Envoy asks over gRPC, asked in JSON, as envoyproxy/ratelimit has it.
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
