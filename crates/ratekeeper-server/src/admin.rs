//! The side door for those who run the server: health, metrics, the policy and its errors.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ratekeeper::shared::StoreState;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::accept::{self, Door, Port, Room, Seats};
use crate::drain::Drain;
use crate::metrics::{self, Page};
use crate::patient::{Patient, Pulse};
use crate::policy_file::PolicyFile;
use crate::reload::reload;
use crate::tls::Tls;
use crate::tokens::Tokens;

const HELP: &str = "\
GET  /healthz           is the process there?
GET  /readyz            may it be sent requests?
GET  /metrics           numbers, in Prometheus' format
GET  /v1/policy         the policy in force, and what was wrong with the last one that is not
GET  /v1/envoy          the limits for Envoy, and what is wrong with their files
GET  /v1/top?n=20       the keys that are asked about most, and those that are denied most
POST /v1/policy/reload  read the policy file again
";

/// What the side door needs to know.
pub(crate) struct Admin {
    pub(crate) policy: Arc<PolicyFile>,
    /// Who may ask for more than health, if not everybody.
    pub(crate) tokens: Arc<Tokens>,
    /// Is the server still taking requests?
    pub(crate) is_serving: Box<dyn Fn() -> bool + Send + Sync>,
    /// Metrics beside those of the policy.
    pub(crate) more_metrics: Box<dyn Fn(&mut Page) + Send + Sync>,
    /// The limits for Envoy, if there are any.
    pub(crate) envoy: Option<Told>,
}

/// Tells how something is at present.
pub(crate) type Told = Box<dyn Fn() -> Value + Send + Sync>;

impl Door for Admin {
    const PROTOCOLS: &'static [&'static [u8]] = &[b"http/1.1"];

    async fn serve<S>(self: Arc<Self>, stream: S, _: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let pulse = Pulse::new();
        let io = TokioIo::new(Patient::new(stream, Arc::clone(&pulse)));
        let service = service_fn(move |request: Request<Incoming>| {
            let (admin, pulse) = (Arc::clone(&self), Arc::clone(&pulse));
            async move {
                pulse.begin_answer();
                let answer = answer(&admin, &request).await;
                pulse.end_answer();
                Ok::<_, Infallible>(answer)
            }
        });
        let mut http = http1::Builder::new();
        http.header_read_timeout(None);
        // A client that goes away is no news.
        let _ = http.serve_connection(io, service).await;
    }
}

/// Answers for as long as the runtime runs, also while the other doors come to their end.
pub(crate) async fn serve(
    listener: StdListener,
    admin: Arc<Admin>,
    tls: Option<Arc<Tls>>,
    connections_max: usize,
) {
    // The other listeners leave that many.
    let descriptors = Arc::new(Room::new(usize::MAX));
    let seats = Seats::new(connections_max);
    let port = Port { tls, seats, descriptors, drain: Drain::default() };
    if let Err(error) = accept::serve(listener, admin, port).await {
        tracing::error!(%error, "the admin side cannot listen");
    }
}

async fn answer<B>(admin: &Admin, request: &Request<B>) -> Response<Full<Bytes>> {
    let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz");
    if !is_probe && !admin.tokens.allow(request.headers()) {
        let mut answer = text(StatusCode::UNAUTHORIZED, "a valid bearer token is needed\n".into());
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return answer;
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok\n".into()),
        (&Method::GET, "/readyz") => ready(admin),
        (&Method::GET, "/metrics") => {
            let mut page = Page::default();
            metrics::gate(&mut page, admin.policy.gate());
            (admin.more_metrics)(&mut page);
            let mut reply = text(StatusCode::OK, page.into_text());
            let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
            reply.headers_mut().insert(CONTENT_TYPE, kind);
            reply
        }
        (&Method::GET, "/v1/policy") => json(StatusCode::OK, &policy(admin)),
        (&Method::POST, "/v1/policy/reload") => match reload(&admin.policy).await {
            true => json(StatusCode::OK, &policy(admin)),
            false => json(StatusCode::UNPROCESSABLE_ENTITY, &policy(admin)),
        },
        (&Method::GET, "/v1/top") => top(admin, request.uri().query()),
        (&Method::GET, "/v1/envoy") => match &admin.envoy {
            Some(envoy) => json(StatusCode::OK, &envoy()),
            None => text(StatusCode::NOT_FOUND, "there are no limits for Envoy\n".into()),
        },
        (_, "/healthz" | "/readyz" | "/metrics" | "/v1/policy" | "/v1/policy/reload")
        | (_, "/v1/top" | "/v1/envoy") => text(StatusCode::METHOD_NOT_ALLOWED, HELP.into()),
        _ => text(StatusCode::NOT_FOUND, HELP.into()),
    }
}

fn top(admin: &Admin, query: Option<&str>) -> Response<Full<Bytes>> {
    match admin.policy.top().tell(query, admin.policy.gate().engine().now()) {
        Ok(told) => json(StatusCode::OK, &told),
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}

fn ready(admin: &Admin) -> Response<Full<Bytes>> {
    let is_serving = (admin.is_serving)();
    let (store, error) = match admin.policy.gate().engine().store_state() {
        None => ("memory", None),
        Some(StoreState::Up) => ("up", None),
        Some(StoreState::Partial { error, .. }) => ("partial", Some(error.to_string())),
        Some(StoreState::Down(error)) => ("down", Some(error.to_string())),
        Some(_) => ("unknown", None),
    };
    // Without its store it still answers, as each limit was told to.
    let status = if is_serving { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &json!({ "serving": is_serving, "store": store, "store_error": error }))
}

fn policy(admin: &Admin) -> Value {
    let gate = admin.policy.gate();
    let loaded = gate.policy().status();
    let limits: Vec<_> = gate
        .telemetry()
        .limits()
        .iter()
        .map(|limit| {
            json!({
                "name": &*limit.name,
                "allowed": limit.allowed,
                "near_limit": limit.near_limit,
                "denied": limit.denied,
                "shadow_denied": limit.shadow_denied,
            })
        })
        .collect();
    json!({
        "version": loaded.version,
        "loaded_at_us": loaded.loaded_at.get(),
        "failures": loaded.failures,
        "error": loaded.last_error,
        "failed_at_us": loaded.failed_at.map(|at| at.get()),
        "limits": limits,
    })
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    full(status, "text/plain; charset=utf-8", body)
}

fn json(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    full(status, "application/json", format!("{body:#}\n"))
}

fn full(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
