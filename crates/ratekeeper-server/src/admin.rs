//! The admin listener: health, metrics, the policy and its errors, the console.

mod access;

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use ratekeeper::shared::StoreState;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::body::{BodyLimits, read_body};
use crate::console::{
    self, Console, EventStream, InvalidKeyRequest, InvalidSimulation, MoreReadings,
};
use crate::explain::explain_described;
use crate::listener::tls::Tls;
use crate::listener::{
    self, Accepted, ConnectionHandler, ConnectionLimit, Drain, InFlightLimit, ListenerConfig,
    Ticks, serve_http1, too_many_connections,
};
use crate::metrics::{self, Page};
use crate::reload::{LoadStatus, PolicyFile, reload};
use crate::serve::RequestError;
use access::AccessError;
pub(crate) use access::AdminAccess;

const HELP: &str = "\
GET  /healthz           liveness
GET  /readyz            readiness: whether requests may be sent
GET  /metrics           metrics, in Prometheus' format
GET  /v1/policy         the active policy, and why the last reload failed
GET  /v1/envoy          the limits for Envoy, and why the last reload failed
GET  /v1/top?n=20       the most frequent keys, and the most frequently denied
GET  /v1/refusals       recent refusals: ?key=, limit=, since=5m, outcome=, n=
GET  /v1/refusals/ID    why a request was refused; ?rate=200/minute: what if
GET  /v1/status         what the console shows: rates of the last second and minute, store, what needs attention
GET  /v1/history        rates over time: ?span=5m, 1h or 24h, and &limit=NAME
GET  /v1/events         the status once a second, as server-sent events
POST /v1/keys           what each limit has left for a key, by a body such as {\"key\": \"k-123\"}
POST /v1/keys/reset     start a key afresh in a limit: {\"key\": \"k-123\", \"limit\": \"search\"}
POST /v1/explain        which limits apply to a request, and what is left: {\"request\": {\"path\": \"/search\"}}
POST /v1/simulate       a limit against traffic: {\"rate\": \"100/minute\", \"traffic\": \"burst\"}
POST /v1/policy/reload  reload the policy file
";

/// The path of a refusal, before its id.
const REFUSAL: &str = "/v1/refusals/";

const NO_REFUSAL: &str = "the log has no refusal with this id: it is of another server, was admitted, is older than what \
    the log keeps, or is one of very many of its key or limit; GET /v1/refusals?key= lists those of a key\n";

/// What the admin listener shows.
pub(crate) struct Admin {
    pub(crate) policy: Arc<PolicyFile>,
    pub(crate) access: AdminAccess,
    /// Why no requests may be sent, if so.
    pub(crate) not_ready: Box<dyn Fn() -> Option<&'static str> + Send + Sync>,
    /// Metrics beside those of the policy.
    pub(crate) more_metrics: Box<dyn Fn(&mut Page) + Send + Sync>,
    /// What the history records beside the policy's decisions.
    pub(crate) more_readings: MoreReadings,
    /// The limits for Envoy, if there are any.
    pub(crate) envoy: Option<StatusReport>,
    /// The upstreams of a gateway.
    pub(crate) upstreams: Option<StatusReport>,
    pub(crate) console: Console,
}

/// A response at once, or one that goes on.
type AdminBody = Either<Full<Bytes>, EventStream>;

const BODY_MAX: usize = 64 << 10;

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
            async move { respond(&admin, request).await }
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
    let sampled = Arc::clone(&admin);
    let handler = AdminHandler { admin, http, drain, ticks: Ticks::start() };
    let sampling = sampled.console.run(&sampled);
    let serving = listener::serve(listener, Arc::new(handler), config);
    let served = tokio::select! {
        served = serving => served,
        () = sampling => Ok(()),
    };
    if let Err(error) = served {
        tracing::error!(%error, "the admin listener failed");
    }
}

async fn respond(admin: &Admin, request: Request<Incoming>) -> Response<AdminBody> {
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    if method == Method::GET
        && let Some(file) = console::file(&path, request.headers())
    {
        return file.map(|text| Either::Left(Full::from(text)));
    }
    if let Err(error) = admin.access.check(&method, &path, request.headers()) {
        return denied(error).map(Either::Left);
    }
    if (&method, &*path) == (&Method::GET, "/v1/events") {
        return events(admin);
    }
    respond_at_once(admin, &method, &path, request).await.map(Either::Left)
}

async fn respond_at_once(
    admin: &Admin,
    method: &Method,
    path: &str,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    match (method, path) {
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
        (&Method::GET, "/v1/status") => json(StatusCode::OK, &admin.console.status(admin)),
        (&Method::GET, "/v1/history") => match admin.console.history(request.uri().query()) {
            Ok(history) => full(StatusCode::OK, "application/json", history.to_string()),
            Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
        },
        (&Method::POST, "/v1/keys" | "/v1/keys/reset" | "/v1/explain" | "/v1/simulate") => {
            post(admin, path, request).await
        }
        (&Method::GET, "/v1/envoy") => match &admin.envoy {
            Some(envoy) => json(StatusCode::OK, &envoy()),
            None => text(StatusCode::NOT_FOUND, "there are no limits for Envoy\n".into()),
        },
        (_, "/healthz" | "/readyz" | "/metrics" | "/v1/policy" | "/v1/policy/reload")
        | (_, "/v1/top" | "/v1/envoy" | "/v1/refusals" | "/v1/status" | "/v1/history")
        | (_, "/v1/events" | "/v1/keys" | "/v1/keys/reset" | "/v1/explain" | "/v1/simulate") => {
            text(StatusCode::METHOD_NOT_ALLOWED, HELP.into())
        }
        _ => text(StatusCode::NOT_FOUND, HELP.into()),
    }
}

fn denied(error: AccessError) -> Response<Full<Bytes>> {
    if error != AccessError::NoToken {
        return text(StatusCode::FORBIDDEN, format!("{error}\n"));
    }
    let mut response = text(StatusCode::UNAUTHORIZED, format!("{error}\n"));
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn events(admin: &Admin) -> Response<AdminBody> {
    let Some(events) = admin.console.subscribe(admin) else {
        let message = "too many pages are open; close one and try again\n";
        return text(StatusCode::SERVICE_UNAVAILABLE, message.into()).map(Either::Left);
    };
    let mut response = Response::new(Either::Right(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Why the body of a POST is rejected.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum PostError {
    Key(#[from] InvalidKeyRequest),
    Request(#[from] RequestError),
    Simulation(#[from] InvalidSimulation),
}

impl PostError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Key(InvalidKeyRequest::Store(_)) | Self::Simulation(InvalidSimulation::Busy) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// Responds to a request with a JSON body.
async fn post(admin: &Admin, path: &str, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let body = match read_body(request.into_body(), BodyLimits::of_message(BODY_MAX)).await {
        Ok(body) => body,
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    match posted(admin, path, &body).await {
        Ok(result) => json(StatusCode::OK, &result),
        Err(error) => text(error.status(), format!("{error}\n")),
    }
}

async fn posted(admin: &Admin, path: &str, body: &[u8]) -> Result<Value, PostError> {
    let limiter = admin.policy.limiter();
    Ok(match path {
        "/v1/keys" => console::lookup(limiter, body).await?,
        "/v1/keys/reset" => console::reset(limiter, body).await?,
        "/v1/explain" => explain_described(limiter, body).await?,
        _ => admin.console.simulate(body).await?,
    })
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
