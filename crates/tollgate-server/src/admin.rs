//! The side door for those who run the server: health, metrics, the policy and its errors.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tollgate::shared::StoreState;

use crate::metrics::{self, Page};
use crate::policy_file::PolicyFile;

const CONNECTIONS_MAX: usize = 64;
const HEADERS_WITHIN: Duration = Duration::from_secs(10);

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
    /// Is the server still taking requests?
    pub(crate) is_serving: Box<dyn Fn() -> bool + Send + Sync>,
    /// Metrics beside those of the policy.
    pub(crate) more_metrics: Box<dyn Fn(&mut Page) + Send + Sync>,
    /// The limits for Envoy, if there are any.
    pub(crate) envoy: Option<Told>,
}

/// Tells how something is at present.
pub(crate) type Told = Box<dyn Fn() -> Value + Send + Sync>;

/// Listens at once, so that an address in use is told before anything else begins.
pub(crate) fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers for as long as the runtime runs.
pub(crate) async fn serve(listener: StdListener, admin: Arc<Admin>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin side cannot listen"),
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let admin = admin.clone();
                tokio::spawn(async move {
                    connection(stream, admin).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::error!(%error, "the admin side cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, admin: Arc<Admin>) {
    let service = service_fn(move |request| {
        let answer = answer(&admin, &request);
        async { Ok::<_, Infallible>(answer) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    // A client that goes away is no news.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

fn answer<B>(admin: &Admin, request: &Request<B>) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok\n".into()),
        (&Method::GET, "/readyz") => ready(admin),
        (&Method::GET, "/metrics") => {
            let mut page = Page::default();
            metrics::gate(&mut page, admin.policy.gate());
            (admin.more_metrics)(&mut page);
            text(StatusCode::OK, page.into_text())
        }
        (&Method::GET, "/v1/policy") => json(StatusCode::OK, &policy(admin)),
        (&Method::POST, "/v1/policy/reload") => match admin.policy.reload() {
            Ok(()) => json(StatusCode::OK, &policy(admin)),
            Err(_) => json(StatusCode::UNPROCESSABLE_ENTITY, &policy(admin)),
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
    match admin.policy.top().tell(query, admin.policy.gate().now()) {
        Ok(told) => json(StatusCode::OK, &told),
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}

fn ready(admin: &Admin) -> Response<Full<Bytes>> {
    let is_serving = (admin.is_serving)();
    let (store, error) = match admin.policy.gate().store_state() {
        None => ("memory", None),
        Some(StoreState::Unknown) => ("unknown", None),
        Some(StoreState::Up) => ("up", None),
        Some(StoreState::Down(error)) => ("down", Some(error.to_string())),
    };
    // Without its store it still answers, as each limit was told to.
    let status = if is_serving { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &json!({ "serving": is_serving, "store": store, "store_error": error }))
}

fn policy(admin: &Admin) -> Value {
    let gate = admin.policy.gate();
    let loaded = gate.loaded();
    let limits: Vec<_> = gate
        .stats()
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
        "loaded_at_us": loaded.at.get(),
        "failures": loaded.failures,
        "error": loaded.error,
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
