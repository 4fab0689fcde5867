//! The admin listener: health, metrics, the policy and its errors.

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use ratekeeper::shared::StoreState;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::listener::tls::Tls;
use crate::listener::{
    self, Accepted, ConnectionHandler, ConnectionLimit, Drain, InFlightLimit, ListenerConfig,
    Ticks, serve_http1, too_many_connections,
};
use crate::metrics::{self, Page};
use crate::reload::{LoadStatus, PolicyFile, reload};
use crate::tokens::Tokens;

const HELP: &str = "\
GET  /healthz           liveness
GET  /readyz            readiness: whether requests may be sent
GET  /metrics           metrics, in Prometheus' format
GET  /v1/policy         the active policy, and why the last reload failed
GET  /v1/envoy          the limits for Envoy, and why the last reload failed
GET  /v1/top?n=20       the most frequent keys, and the most frequently denied
GET  /v1/refusals       recent refusals: ?key=, limit=, since=5m, outcome=, n=
GET  /v1/refusals/ID    why a request was refused; ?rate=200/minute: what if
POST /v1/policy/reload  reload the policy file
";

/// The path of a refusal, before its id.
const REFUSAL: &str = "/v1/refusals/";

const NO_REFUSAL: &str = "the log has no refusal with this id: it is of another server, was admitted, is older than what \
    the log keeps, or is one of very many of its key or limit; GET /v1/refusals?key= lists those of a key\n";

/// What the admin listener shows.
pub(crate) struct Admin {
    pub(crate) policy: Arc<PolicyFile>,
    /// Needed for everything but health checks.
    pub(crate) tokens: Arc<Tokens>,
    /// Why no requests may be sent, if so.
    pub(crate) not_ready: Box<dyn Fn() -> Option<&'static str> + Send + Sync>,
    /// Metrics beside those of the policy.
    pub(crate) more_metrics: Box<dyn Fn(&mut Page) + Send + Sync>,
    /// The limits for Envoy, if there are any.
    pub(crate) envoy: Option<StatusReport>,
}

/// Returns the current status of something.
pub(crate) type StatusReport = Box<dyn Fn() -> Value + Send + Sync>;

/// Serves the connections of the admin listener.
struct AdminHandler {
    admin: Arc<Admin>,
    http: http1::Builder,
    drain: Drain,
    ticks: Ticks,
}

impl ConnectionHandler for AdminHandler {
    const ALPN: &'static [&'static [u8]] = &[b"http/1.1"];

    async fn serve<S>(self: Arc<Self>, stream: S, accepted: Accepted)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let admin = Arc::clone(&self.admin);
        let respond = move |request: Request<Incoming>| {
            let admin = Arc::clone(&admin);
            async move { respond(&admin, &request).await }
        };
        serve_http1(&self.http, stream, accepted.peer, self.ticks, &self.drain, respond).await;
        drop(accepted);
    }

    fn rejection() -> Vec<u8> {
        too_many_connections("the admin listener")
    }
}

/// Serves for as long as the runtime runs, also while the other listeners drain.
pub(crate) async fn serve(
    listener: StdListener,
    admin: Arc<Admin>,
    tls: Option<Arc<Tls>>,
    connections_max: usize,
) {
    let drain = Drain::default();
    // The other listeners leave enough descriptors for these connections.
    let descriptors = Arc::new(InFlightLimit::new(usize::MAX));
    let connections = ConnectionLimit::new(connections_max);
    let config = ListenerConfig::new(connections, &descriptors, &drain).with_tls(tls);
    let mut http = http1::Builder::new();
    // The listener has its own timeouts.
    http.header_read_timeout(None);
    let handler = AdminHandler { admin, http, drain, ticks: Ticks::start() };
    if let Err(error) = listener::serve(listener, Arc::new(handler), config).await {
        tracing::error!(%error, "the admin listener failed");
    }
}

async fn respond<B>(admin: &Admin, request: &Request<B>) -> Response<Full<Bytes>> {
    let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz");
    if !is_probe && !admin.tokens.allow(request.headers()) {
        let message = "a valid bearer token is needed\n";
        let mut response = text(StatusCode::UNAUTHORIZED, message.into());
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok\n".into()),
        (&Method::GET, "/readyz") => ready(admin),
        (&Method::GET, "/metrics") => {
            let mut page = Page::default();
            metrics::collect(&mut page, admin.policy.limiter());
            (admin.more_metrics)(&mut page);
            let mut response = text(StatusCode::OK, page.into_text());
            let content_type = HeaderValue::from_static(metrics::CONTENT_TYPE);
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            response
        }
        (&Method::GET, "/v1/policy") => json(StatusCode::OK, &policy(admin)),
        (&Method::POST, "/v1/policy/reload") => match reload(&admin.policy).await {
            true => json(StatusCode::OK, &policy(admin)),
            false => json(StatusCode::UNPROCESSABLE_ENTITY, &policy(admin)),
        },
        (&Method::GET, "/v1/refusals") => refusals(admin, request.uri().query()),
        (&Method::GET, path) if path.starts_with(REFUSAL) => {
            refusal(admin, &path[REFUSAL.len()..], request.uri().query())
        }
        (&Method::GET, "/v1/top") => top(admin, request.uri().query()),
        (&Method::GET, "/v1/envoy") => match &admin.envoy {
            Some(envoy) => json(StatusCode::OK, &envoy()),
            None => text(StatusCode::NOT_FOUND, "there are no limits for Envoy\n".into()),
        },
        (_, "/healthz" | "/readyz" | "/metrics" | "/v1/policy" | "/v1/policy/reload")
        | (_, "/v1/top" | "/v1/envoy" | "/v1/refusals") => {
            text(StatusCode::METHOD_NOT_ALLOWED, HELP.into())
        }
        _ => text(StatusCode::NOT_FOUND, HELP.into()),
    }
}

fn top(admin: &Admin, query: Option<&str>) -> Response<Full<Bytes>> {
    match admin.policy.top().to_json(query, admin.policy.limiter().engine().now()) {
        Ok(top) => json(StatusCode::OK, &top),
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}

fn refusals(admin: &Admin, query: Option<&str>) -> Response<Full<Bytes>> {
    let limiter = admin.policy.limiter();
    match crate::refusals::list(limiter.refusals(), query, limiter.engine().now()) {
        Ok(refusals) => json(StatusCode::OK, &refusals),
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}

fn refusal(admin: &Admin, id: &str, query: Option<&str>) -> Response<Full<Bytes>> {
    match crate::refusals::explain(admin.policy.limiter().refusals(), id, query) {
        Ok(Some(refusal)) => json(StatusCode::OK, &refusal),
        Ok(None) => text(StatusCode::NOT_FOUND, NO_REFUSAL.into()),
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}

fn ready(admin: &Admin) -> Response<Full<Bytes>> {
    let reason = (admin.not_ready)();
    let (store, error) = match admin.policy.limiter().engine().store_state() {
        None => ("memory", None),
        Some(StoreState::Up) => ("up", None),
        Some(StoreState::Partial { error, .. }) => ("partial", Some(error.to_string())),
        Some(StoreState::Down(error)) => ("down", Some(error.to_string())),
        Some(_) => ("unknown", None),
    };
    // Without its store it still decides, by the failure mode of each limit.
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = json!({ "serving": reason.is_none(), "store": store, "store_error": error });
    if let Some(reason) = reason {
        body["reason"] = reason.into();
    }
    json(status, &body)
}

fn policy(admin: &Admin) -> Value {
    let limiter = admin.policy.limiter();
    let LoadStatus { version, loaded_at, failures, last_error, failed_at, .. } =
        admin.policy.status();
    let limits: Vec<_> = limiter
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
        "version": version,
        "loaded_at_us": loaded_at.get(),
        "failures": failures,
        "error": last_error,
        "failed_at_us": failed_at.map(|at| at.get()),
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
