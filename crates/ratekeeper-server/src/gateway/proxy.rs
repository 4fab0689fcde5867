//! Forwards one request to an upstream, and returns its response.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::HOST;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use ratekeeper::tower::outcome_of;
use ratekeeper::{ActivePolicy, CallOutcome, DependencyPermit, DependencyRejected};

use super::client::Client;
use super::error::{ProxyError, chain};
use super::headers;
use super::request_body::ForwardedBody;
use super::response_body::{ResponseBody, UpstreamBody};
use super::state::{GatewayState, Overload, WorkerState};
use super::tunnel;
use super::upstream::Tried;
use super::upstream_connection::{SendError, UpstreamConnection};

/// The innermost service. It always responds.
#[derive(Clone)]
pub(crate) struct Proxy(Arc<WorkerState>);

/// The upstream that served a request, in the extensions of the response if there is an access log.
#[derive(Clone)]
pub(super) struct ServedBy(pub(super) Arc<str>);

impl Proxy {
    pub(super) fn new(worker: Arc<WorkerState>) -> Self {
        Self(worker)
    }
}

impl tower_service::Service<Request<ForwardedBody>> for Proxy {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<ForwardedBody>) -> Self::Future {
        let Some(client) = request.extensions_mut().remove::<Arc<Client>>() else {
            let error = ProxyError::Internal("a request without its client".to_string());
            return Box::pin(ready(Ok(error.into_response(true))));
        };
        let worker = Arc::clone(&self.0);
        Box::pin(async move {
            let is_http1 = request.version() <= Version::HTTP_11;
            let response = exchange(worker, client, request).await;
            Ok(response.unwrap_or_else(|error| error.into_response(is_http1)))
        })
    }
}

/// An upstream's response, and the connection that its body comes from.
struct UpstreamResponse {
    upstream: usize,
    /// The permits of the dependencies that protect the upstream.
    calls: Vec<DependencyPermit>,
    connection: Box<UpstreamConnection>,
    response: Response<Incoming>,
}

async fn exchange(
    worker: Arc<WorkerState>,
    client: Arc<Client>,
    mut request: Request<ForwardedBody>,
) -> Result<Response<ResponseBody>, ProxyError> {
    let is_upgrade = request.version() == Version::HTTP_11
        && *request.method() == Method::GET
        && headers::requests_websocket(request.headers());
    let upgrade = is_upgrade.then(|| hyper::upgrade::on(&mut request));
    let policy = request.extensions_mut().remove::<Arc<ActivePolicy>>();
    let policy = policy.unwrap_or_else(|| worker.gateway.policy.limiter().policy().active());
    let request = prepare(&worker, &client, request, upgrade.is_some())?;
    let response = send_to_any(&worker, &policy, request).await?;
    finish(worker, client, &policy, response, upgrade)
}

/// Turns a client's request into the one for the upstream.
fn prepare(
    worker: &WorkerState,
    client: &Client,
    request: Request<ForwardedBody>,
    is_upgrade: bool,
) -> Result<Request<ForwardedBody>, ProxyError> {
    let gateway = &worker.gateway;
    let (mut parts, body) = request.into_parts();
    body.get_ref().check_size()?;
    headers::strip_request(&mut parts.headers, is_upgrade, &gateway.request_id_header);
    take_authority(&mut parts.uri);
    // `check` has made sure that there is one.
    let host = parts.headers.get(HOST).cloned();
    let host = host.unwrap_or_else(|| gateway.upstreams[0].host.clone());
    headers::set_forwarded(&mut parts.headers, client, host.clone());
    parts.headers.insert(HOST, host);
    parts.version = Version::HTTP_11;
    Ok(Request::from_parts(parts, body))
}

/// Keeps the path only, byte by byte as it came.
fn take_authority(uri: &mut Uri) {
    if uri.authority().is_some() {
        *uri = uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
    }
}

/// Tries one upstream after the other until one has received something of the request.
async fn send_to_any(
    worker: &WorkerState,
    policy: &ActivePolicy,
    mut request: Request<ForwardedBody>,
) -> Result<UpstreamResponse, ProxyError> {
    let start = worker.next_start();
    let (mut tried, mut why, mut overload) = (Tried::default(), String::new(), None);
    let mut rejected: Option<DependencyRejected> = None;
    while let Some(upstream) = worker.pick(policy, start, tried) {
        tried.add(upstream);
        let mut calls = match acquire_all(policy, upstream).await {
            Ok(calls) => calls,
            Err(error) => {
                let is_sooner =
                    |other: &DependencyRejected| error.retry_after() < other.retry_after();
                if rejected.as_ref().is_none_or(is_sooner) {
                    rejected = Some(error);
                }
                continue;
            }
        };
        let mut report = |outcome| calls.iter_mut().for_each(|call| call.report(outcome));
        match send_to(worker, upstream, request).await {
            Ok((connection, response)) => {
                report(outcome_of(&response));
                return Ok(UpstreamResponse { upstream, calls, connection, response });
            }
            Err(SendFailure::Unsent(unsent, error)) => {
                report(CallOutcome::Failure);
                worker.note_failure(policy, upstream, &error);
                (request, why) = (*unsent, error);
            }
            // The upstream has not failed.
            Err(SendFailure::Overloaded(unsent, bound)) => {
                (request, overload) = (*unsent, Some(bound));
            }
            Err(SendFailure::Failed(error)) => {
                match error {
                    ProxyError::Upstream(_) => report(CallOutcome::Failure),
                    ProxyError::UpstreamTimeout => report(CallOutcome::Overloaded),
                    // The client failed.
                    _ => return Err(error),
                }
                worker.note_failure(policy, upstream, &error.to_string());
                return Err(error);
            }
        }
    }
    match (overload, rejected) {
        (Some(bound), _) => {
            worker.gateway.note_overload(bound);
            Err(ProxyError::Overloaded(bound))
        }
        (None, Some(rejected)) if why.is_empty() => Err(ProxyError::Rejected(rejected)),
        (None, _) => Err(ProxyError::Unreachable(why)),
    }
}

/// Takes a permit of each dependency that protects an upstream.
async fn acquire_all(
    policy: &ActivePolicy,
    upstream: usize,
) -> Result<Vec<DependencyPermit>, DependencyRejected> {
    let mut calls = Vec::new();
    for dependency in policy.upstream_dependencies(upstream) {
        calls.push(dependency.acquire().await?);
    }
    Ok(calls)
}

enum SendFailure {
    /// Nothing was sent: it can be sent to another upstream.
    Unsent(Box<Request<ForwardedBody>>, String),
    /// The limit of connections to it, or of file descriptors, is reached.
    Overloaded(Box<Request<ForwardedBody>>, Overload),
    Failed(ProxyError),
}

/// Sends over an idle connection, or else over a new one.
async fn send_to(
    worker: &WorkerState,
    upstream: usize,
    mut request: Request<ForwardedBody>,
) -> Result<(Box<UpstreamConnection>, Response<Incoming>), SendFailure> {
    let GatewayState { timeouts, upstreams, descriptors, .. } = &*worker.gateway;
    let Some(in_use) = upstreams[upstream].in_use.try_acquire_owned() else {
        return Err(SendFailure::Overloaded(Box::new(request), Overload::UpstreamConnections));
    };
    while let Some(mut connection) = worker.pools[upstream].take() {
        match connection.send(request, timeouts.response).await {
            Ok(response) => {
                connection.set_in_use(Some(in_use));
                return Ok((connection, response));
            }
            // It was closed while it was idle. There may be others.
            Err(SendError::Unsent(unsent)) => request = *unsent,
            Err(SendError::Failed(error)) => return Err(SendFailure::Failed(error)),
        }
    }
    let Some(descriptor) = descriptors.connections.try_acquire_owned() else {
        return Err(SendFailure::Overloaded(Box::new(request), Overload::Descriptors));
    };
    let connection =
        UpstreamConnection::open(&upstreams[upstream], timeouts.connect, descriptor).await;
    let mut connection = match connection {
        Ok(connection) => connection,
        Err(error) => return Err(SendFailure::Unsent(Box::new(request), chain(&error))),
    };
    connection.set_in_use(Some(in_use));
    match connection.send(request, timeouts.response).await {
        Ok(response) => Ok((connection, response)),
        Err(SendError::Unsent(unsent)) => {
            Err(SendFailure::Unsent(unsent, "it closed a new connection".to_string()))
        }
        Err(SendError::Failed(error)) => Err(SendFailure::Failed(error)),
    }
}

/// Turns the upstream's response into the one for the client.
fn finish(
    worker: Arc<WorkerState>,
    client: Arc<Client>,
    policy: &ActivePolicy,
    response: UpstreamResponse,
    upgrade: Option<OnUpgrade>,
) -> Result<Response<ResponseBody>, ProxyError> {
    let UpstreamResponse { upstream, calls, connection, response } = response;
    note_status(&worker, policy, upstream, response.status());
    let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let (mut parts, incoming) = response.into_parts();
    let allowed = headers::kept_for_s(&parts.headers);
    headers::strip_response(&mut parts.headers, is_switch, &worker.gateway.request_id_header);
    parts.version = Version::HTTP_11;
    if worker.gateway.access_log.is_some() {
        parts.extensions.insert(ServedBy(Arc::clone(&worker.gateway.upstreams[upstream].name)));
    }
    let body = match (is_switch, upgrade) {
        (false, _) => {
            // A second less, so that no request is sent just when the upstream closes.
            let allowed = allowed.map(|s| Duration::from_secs(s.saturating_sub(1)));
            ResponseBody::Upstream(UpstreamBody::new(
                incoming, connection, calls, allowed, upstream, worker,
            ))
        }
        (true, Some(upgrade)) => {
            client.become_tunnel();
            tokio::spawn(tunnel::run(worker, client, *connection, calls, upgrade));
            ResponseBody::Own(None)
        }
        (true, None) => {
            return Err(ProxyError::Upstream(
                "it switched protocols without a request to".to_string(),
            ));
        }
    };
    Ok(Response::from_parts(parts, body))
}

fn note_status(worker: &WorkerState, policy: &ActivePolicy, upstream: usize, status: StatusCode) {
    match status.as_u16() {
        502..=504 => worker.note_failure(policy, upstream, status.as_str()),
        _ => worker.gateway.upstreams[upstream].health.succeed(),
    }
}
