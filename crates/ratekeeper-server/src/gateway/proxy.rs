//! Passes one request on to an upstream, and its answer back.

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

use super::answer_body::{AnswerBody, UpstreamBody};
use super::client::Client;
use super::error::{ProxyError, chain};
use super::headers;
use super::link::{Link, SendError};
use super::request_body::RequestBody;
use super::shared::{Overload, Shared, Worker};
use super::tunnel;
use super::upstream::Tried;

/// The service behind everything else. It always answers.
#[derive(Clone)]
pub(crate) struct Proxy(Arc<Worker>);

/// Which upstream answered, in the extensions of its answer if there is an access log.
#[derive(Clone)]
pub(super) struct AnsweredBy(pub(super) Arc<str>);

impl Proxy {
    pub(super) fn new(worker: Arc<Worker>) -> Self {
        Self(worker)
    }
}

impl tower_service::Service<Request<Incoming>> for Proxy {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let Some(client) = request.extensions_mut().remove::<Arc<Client>>() else {
            let error = ProxyError::Internal("a request without its client".to_string());
            return Box::pin(ready(Ok(error.into_response(true))));
        };
        let worker = Arc::clone(&self.0);
        Box::pin(async move {
            let is_http1 = request.version() <= Version::HTTP_11;
            let answer = exchange(worker, client, request).await;
            Ok(answer.unwrap_or_else(|error| error.into_response(is_http1)))
        })
    }
}

/// An upstream's answer, and the connection that its body comes from.
struct Answer {
    upstream: usize,
    link: Box<Link>,
    response: Response<Incoming>,
}

async fn exchange(
    worker: Arc<Worker>,
    client: Arc<Client>,
    mut request: Request<Incoming>,
) -> Result<Response<AnswerBody>, ProxyError> {
    let asks = request.version() == Version::HTTP_11
        && *request.method() == Method::GET
        && headers::asks_for_websocket(request.headers());
    let upgrade = asks.then(|| hyper::upgrade::on(&mut request));
    let request = prepare(&worker, &client, request, upgrade.is_some())?;
    let answer = send_to_any(&worker, request).await?;
    finish(worker, client, answer, upgrade)
}

/// Turns a client's request into the one for the upstream.
fn prepare(
    worker: &Worker,
    client: &Client,
    request: Request<Incoming>,
    is_upgrade: bool,
) -> Result<Request<RequestBody>, ProxyError> {
    let shared = &worker.shared;
    let (mut parts, body) = request.into_parts();
    let body = RequestBody::new(body, shared.bounds.max_body, &shared.timeouts, shared.ticks)?;
    headers::strip_request(&mut parts.headers, is_upgrade, &shared.request_id_header);
    take_authority(&mut parts.uri);
    // `check` has seen to it that there is one.
    let host = parts.headers.get(HOST).cloned();
    let host = host.unwrap_or_else(|| shared.upstreams[0].host.clone());
    headers::set_forwarded(&mut parts.headers, client, host.clone());
    parts.headers.insert(HOST, host);
    parts.version = Version::HTTP_11;
    Ok(Request::from_parts(parts, body))
}

/// Leaves the path only, byte by byte as it came.
fn take_authority(uri: &mut Uri) {
    if uri.authority().is_some() {
        *uri = uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
    }
}

/// Tries one upstream after the other until one has received something of the request.
async fn send_to_any(
    worker: &Worker,
    mut request: Request<RequestBody>,
) -> Result<Answer, ProxyError> {
    let turn = worker.next_turn();
    let (mut tried, mut why, mut overload) = (Tried::default(), String::new(), None);
    while let Some(upstream) = worker.pick(turn, tried) {
        tried.add(upstream);
        match send_to(worker, upstream, request).await {
            Ok(answer) => return Ok(answer),
            Err(Unanswered::Unsent(unsent, error)) => {
                worker.note_failure(upstream, &error);
                (request, why) = (*unsent, error);
            }
            // Which is no fault of the upstream's.
            Err(Unanswered::Overloaded(unsent, bound)) => {
                (request, overload) = (*unsent, Some(bound));
            }
            Err(Unanswered::Failed(error)) => {
                if matches!(error, ProxyError::Upstream(_) | ProxyError::UpstreamTimeout) {
                    worker.note_failure(upstream, &error.to_string());
                }
                return Err(error);
            }
        }
    }
    match overload {
        Some(bound) => {
            worker.shared.note_overload(bound);
            Err(ProxyError::Overloaded(bound))
        }
        None => Err(ProxyError::Unreachable(why)),
    }
}

enum Unanswered {
    /// Nothing was sent: another upstream may have it.
    Unsent(Box<Request<RequestBody>>, String),
    /// It may not have another connection.
    Overloaded(Box<Request<RequestBody>>, Overload),
    Failed(ProxyError),
}

/// Sends over a connection that is there, or else over a new one.
async fn send_to(
    worker: &Worker,
    upstream: usize,
    mut request: Request<RequestBody>,
) -> Result<Answer, Unanswered> {
    let Shared { timeouts, upstreams, descriptors, .. } = &*worker.shared;
    let Some(in_use) = upstreams[upstream].in_use.enter_owned() else {
        return Err(Unanswered::Overloaded(Box::new(request), Overload::UpstreamConnections));
    };
    while let Some(mut link) = worker.pools[upstream].take() {
        match link.send(request, timeouts.response).await {
            Ok(response) => {
                link.set_in_use(Some(in_use));
                return Ok(Answer { upstream, link, response });
            }
            // It was closed while it was idle. There are others.
            Err(SendError::Unsent(unsent)) => request = *unsent,
            Err(SendError::Failed(error)) => return Err(Unanswered::Failed(error)),
        }
    }
    let Some(descriptor) = descriptors.connections.enter_owned() else {
        return Err(Unanswered::Overloaded(Box::new(request), Overload::Descriptors));
    };
    let link = Link::open(&upstreams[upstream], timeouts.connect, descriptor).await;
    let mut link = match link {
        Ok(link) => link,
        Err(error) => return Err(Unanswered::Unsent(Box::new(request), chain(&error))),
    };
    link.set_in_use(Some(in_use));
    match link.send(request, timeouts.response).await {
        Ok(response) => Ok(Answer { upstream, link, response }),
        Err(SendError::Unsent(unsent)) => {
            Err(Unanswered::Unsent(unsent, "it closed a new connection".to_string()))
        }
        Err(SendError::Failed(error)) => Err(Unanswered::Failed(error)),
    }
}

/// Turns the upstream's answer into the one for the client.
fn finish(
    worker: Arc<Worker>,
    client: Arc<Client>,
    answer: Answer,
    upgrade: Option<OnUpgrade>,
) -> Result<Response<AnswerBody>, ProxyError> {
    let Answer { upstream, link, response } = answer;
    note_status(&worker, upstream, response.status());
    let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let (mut parts, incoming) = response.into_parts();
    let allowed = headers::kept_for_s(&parts.headers);
    headers::strip_answer(&mut parts.headers, is_switch, &worker.shared.request_id_header);
    parts.version = Version::HTTP_11;
    if worker.shared.access_log.is_some() {
        parts.extensions.insert(AnsweredBy(Arc::clone(&worker.shared.upstreams[upstream].name)));
    }
    let body = match (is_switch, upgrade) {
        (false, _) => {
            // A second less: on its way, a request must not meet the close.
            let allowed = allowed.map(|s| Duration::from_secs(s.saturating_sub(1)));
            AnswerBody::Upstream(UpstreamBody::new(incoming, link, allowed, upstream, worker))
        }
        (true, Some(upgrade)) => {
            client.activity.become_tunnel();
            tokio::spawn(tunnel::run(worker, client, *link, upgrade));
            AnswerBody::Own(None)
        }
        (true, None) => {
            return Err(ProxyError::Upstream("it switched protocols unasked".to_string()));
        }
    };
    Ok(Response::from_parts(parts, body))
}

fn note_status(worker: &Worker, upstream: usize, status: StatusCode) {
    match status.as_u16() {
        502..=504 => worker.note_failure(upstream, status.as_str()),
        _ => worker.shared.upstreams[upstream].fitness.succeed(),
    }
}
