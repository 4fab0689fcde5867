//! Limits on what a language model has used, before an upstream that streams.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ratekeeper::policy::json_fields::JsonFields;
use ratekeeper::policy::{NoSources, RequestAttributes, Resolution};
use ratekeeper::{Policy, PolicyLimiter};
use ratekeeper_testkit::llm::{self, Tokens};
use ratekeeper_testkit::{Fault, FaultProxy, RedisServer, TIMEOUT};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::process::Gateway;

const STREAMS: usize = 500;
const QUOTA: u64 = 1_000_000_000;

const POLICY: &str = "
version: 1
identify:
  user: { request_json: user }
  model: { request_json: model }
limits:
  - name: openai
    match: { path: /openai }
    per: user
    rate: 1000000000/year
    algorithm: fixed_window
    cost: { usage: openai, estimate: { request_json: max_tokens, default: 1000 } }
  - name: anthropic
    match: { path: /anthropic }
    per: user
    rate: 1000000000/year
    algorithm: fixed_window
    cost: { usage: anthropic, estimate: { request_json: max_tokens, default: 1000 } }
  - name: model
    per: model
    match: { not: { path: /probe } }
    rate: 2000000000/year
    algorithm: fixed_window
    cost: { usage: openai, weights: { input: 1, cached: 0.1, output: 4 } }
";

type UpstreamBody = UnsyncBoxBody<Bytes, Infallible>;

/// Lets the streams begin, and go on only when all of them have.
struct Gate {
    begun: AtomicUsize,
    expected: usize,
    all: Notify,
}

impl Gate {
    fn new(expected: usize) -> Arc<Self> {
        Arc::new(Self { begun: AtomicUsize::new(0), expected, all: Notify::new() })
    }

    async fn wait(&self) {
        let all = self.all.notified();
        let mut all = std::pin::pin!(all);
        all.as_mut().enable();
        if self.begun.fetch_add(1, Ordering::SeqCst) + 1 == self.expected {
            self.all.notify_waiters();
        } else if self.begun.load(Ordering::SeqCst) < self.expected {
            all.await;
        }
    }
}

/// Responds as the model that the request names.
async fn respond(
    request: Request<Incoming>,
    gate: Arc<Gate>,
) -> Result<Response<UpstreamBody>, Infallible> {
    let path = request.uri().path().to_string();
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let tokens = Tokens::of(body["n"].as_u64().unwrap());
    let (content_type, pieces) = match (path.as_str(), body["stream"].as_bool()) {
        ("/openai", Some(true)) => ("text/event-stream", llm::openai_events(tokens, true)),
        ("/anthropic", Some(true)) => ("text/event-stream", llm::anthropic_events(tokens)),
        ("/anthropic", _) => ("application/json", vec![llm::anthropic_json(tokens)]),
        _ => ("application/json", vec![llm::openai_json(tokens)]),
    };
    let is_dying = body["dies"] == true;
    // Events are cut anywhere.
    let cut = |piece: String| {
        let at = piece.len() * 2 / 3;
        [Bytes::from(piece[..at].to_string()), Bytes::from(piece[at..].to_string())]
    };
    let pieces: Vec<Bytes> = pieces.into_iter().flat_map(cut).collect();
    let response = Response::builder().header("content-type", content_type);
    if body["stream"] != true {
        let whole = pieces.concat();
        return Ok(response.body(Full::from(whole).boxed_unsync()).unwrap());
    }
    let pieces = stream::unfold((pieces.into_iter(), 0), move |(mut pieces, n)| {
        let gate = Arc::clone(&gate);
        async move {
            if n == 3 {
                gate.wait().await;
            }
            if is_dying && n == 4 {
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
            Some((Ok(Frame::data(pieces.next()?)), (pieces, n + 1)))
        }
    });
    Ok(response.body(StreamBody::new(pieces).boxed_unsync()).unwrap())
}

/// Starts an upstream whose streams go on when so many have begun.
async fn upstream(streams: usize) -> SocketAddr {
    upstream_with(Gate::new(streams)).await
}

async fn upstream_with(gate: Arc<Gate>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let gate = Arc::clone(&gate);
            let service = service_fn(move |request| respond(request, Arc::clone(&gate)));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    address
}

fn start(upstream: SocketAddr, policy: &str) -> (Gateway, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, policy).unwrap();
    let upstream = format!("http://{upstream}");
    let args = ["--upstream", &upstream, "--admin", "127.0.0.1:0", path.to_str().unwrap()];
    (Gateway::start(&args), folder)
}

fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(2 * TIMEOUT, future).await.expect("in time") });
}

fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let request = Request::post(format!("http://llm{path}")).header("host", "llm");
    request.body(Full::from(body.to_string())).unwrap()
}

async fn read(response: Response<Incoming>) -> (HeaderMap, String) {
    assert_eq!(response.status(), 200);
    let (parts, body) = response.into_parts();
    let text = body.collect().await.expect("the whole body").to_bytes();
    (parts.headers, String::from_utf8(text.to_vec()).unwrap())
}

async fn http1_client(address: SocketAddr) -> http1::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn http2_client(address: SocketAddr) -> http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let executor = TokioExecutor::new();
    let (sender, connection) = http2::handshake(executor, TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn stream_of(n: usize) -> Value {
    json!({ "user": "ann", "model": "m", "max_tokens": 5, "stream": true, "n": n })
}

fn used(count: usize) -> u64 {
    (0..count).map(|n| Tokens::of(n as u64).total()).sum()
}

/// Returns what was charged before this request, which is charged 7 when it is admitted.
async fn charged(gateway: &Gateway, path: &str) -> u64 {
    let probe = json!({ "user": "ann", "model": "other", "max_tokens": 7, "n": 1 });
    let mut client = http1_client(gateway.address()).await;
    let (headers, _) = read(client.send_request(post(path, &probe)).await.unwrap()).await;
    let header = headers["ratelimit"].to_str().unwrap();
    let remaining = header.split(";r=").nth(1).and_then(|rest| rest.split(';').next());
    QUOTA - 7 - remaining.unwrap().parse::<u64>().unwrap()
}

#[test]
fn what_500_concurrent_streams_have_used_is_charged_over_http1() {
    run(async {
        for path in ["/openai", "/anthropic"] {
            let (gateway, _policy) = start(upstream(STREAMS).await, POLICY);
            let address = gateway.address();
            let streams = (0..STREAMS).map(|n| async move {
                let mut client = http1_client(address).await;
                read(client.send_request(post(path, &stream_of(n))).await.unwrap()).await.1
            });
            let bodies = join_all(streams).await;
            assert!(bodies.iter().all(|body| body.ends_with("\n\n")));
            assert_eq!(charged(&gateway, path).await, used(STREAMS), "{path}");
            assert_metric(&gateway, &path[1..], "settled", STREAMS + 1);
        }
    });
}

#[track_caller]
fn assert_metric(gateway: &Gateway, limit: &str, outcome: &str, count: usize) {
    let page = gateway.metrics();
    let series = "ratekeeper_metered_responses_total";
    let line = format!("{series}{{limit=\"{limit}\",outcome=\"{outcome}\"}} {count}\n");
    assert!(page.contains(&line), "{line}{page}");
}

#[test]
fn what_500_concurrent_streams_have_used_is_charged_over_http2() {
    run(async {
        for path in ["/openai", "/anthropic"] {
            let (gateway, _policy) = start(upstream(STREAMS).await, POLICY);
            let mut clients = Vec::new();
            for _ in 0..5 {
                clients.push(http2_client(gateway.address()).await);
            }
            let streams =
                (0..STREAMS).map(|n| {
                    let mut client = clients[n % clients.len()].clone();
                    async move {
                        read(client.send_request(post(path, &stream_of(n))).await.unwrap()).await
                    }
                });
            join_all(streams).await;
            assert_eq!(charged(&gateway, path).await, used(STREAMS), "{path}");
        }
    });
}

/// Returns what is charged to each limit of a request, by its store.
async fn charged_in(limiter: &PolicyLimiter, path: &str, body: &Value) -> Vec<u64> {
    let active = limiter.policy().active();
    let policy = active.policy();
    let json = JsonFields::of(body.to_string().as_bytes(), policy.request_json());
    let request = RequestAttributes { json: json.as_ref(), ..RequestAttributes::new("POST", path) };
    let Resolution::Charged(limits) = policy.resolve(&request) else { panic!("not limited") };
    let mut charged = Vec::new();
    for limit in &limits {
        let state = limiter.peek(limit).await.expect("a rate");
        assert!(!state.is_degraded());
        charged.push(state.limit() - state.remaining());
    }
    charged
}

/// Waits for what is settled in the background.
async fn await_charged(limiter: &PolicyLimiter, expected: &[u64]) {
    let mut now = Vec::new();
    for _ in 0..500 {
        now = charged_in(limiter, "/openai", &stream_of(0)).await;
        if now == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("charged {now:?}, used {expected:?}");
}

fn redis_policy(url: &str) -> (String, PolicyLimiter) {
    let text = format!("{POLICY}store: {{ url: '{url}', deadline: 5s }}\n");
    let policy = Policy::parse("policy.yaml", &text, &NoSources).unwrap();
    (text, PolicyLimiter::new(policy).unwrap())
}

#[test]
fn what_was_used_is_charged_in_redis_to_the_user_and_the_model() {
    run(async {
        let redis = RedisServer::start();
        let (policy, limiter) = redis_policy(&redis.url());
        let (gateway, _policy) = start(upstream(STREAMS).await, &policy);
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(http2_client(gateway.address()).await);
        }
        let streams =
            (0..STREAMS).map(|n| {
                let mut client = clients[n % clients.len()].clone();
                async move {
                    read(client.send_request(post("/openai", &stream_of(n))).await.unwrap()).await
                }
            });
        join_all(streams).await;
        let tokens = (0..STREAMS).map(|n| Tokens::of(n as u64));
        let weighted: u64 =
            tokens.map(|t| (10 * t.input + t.cached + 40 * t.output).div_ceil(10)).sum();
        let expected = [used(STREAMS), weighted];
        await_charged(&limiter, &expected).await;
    });
}

#[test]
fn the_last_responses_before_a_shutdown_are_charged_too() {
    run(async {
        let redis = RedisServer::start();
        let slow = FaultProxy::start(redis.port());
        let (policy, _) = redis_policy(&slow.url());
        let (_, limiter) = redis_policy(&redis.url());
        let gate = Gate::new(2);
        let (mut gateway, _policy) = start(upstream_with(gate.clone()).await, &policy);
        let mut client = http1_client(gateway.address()).await;
        let response = client.send_request(post("/openai", &stream_of(4))).await.unwrap();
        slow.set(Fault::Delay(Duration::from_millis(500)));
        gateway.signal("-TERM");
        gateway.wait_for_log("shutting down");
        gate.wait().await;
        read(response).await;
        assert!(gateway.wait().success());
        let used = Tokens::of(4);
        let weighted = (10 * used.input + used.cached + 40 * used.output).div_ceil(10);
        let charged = charged_in(&limiter, "/openai", &stream_of(4)).await;
        assert_eq!(charged, [used.total(), weighted]);
    });
}

#[test]
fn a_client_that_disconnects_is_charged_at_least_the_estimate() {
    run(async {
        let (gateway, _policy) = start(upstream(1).await, POLICY);
        let mut client = http1_client(gateway.address()).await;
        let body = json!({ "user": "ann", "model": "m", "max_tokens": 12, "stream": true, "dies": true, "n": 3 });
        let mut response = client.send_request(post("/anthropic", &body)).await.unwrap();
        // The whole first event.
        for _ in 0..3 {
            response.body_mut().frame().await.unwrap().unwrap();
        }
        drop((response, client));
        let tokens = Tokens::of(3);
        let started = tokens.input + tokens.cached + 1;
        for _ in 0..500 {
            if gateway.metrics().contains(
                "ratekeeper_metered_responses_total{limit=\"anthropic\",outcome=\"interrupted\"} 1\n",
            ) {
                assert_eq!(charged(&gateway, "/anthropic").await, started.max(12));
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the disconnect was not seen");
    });
}

#[test]
fn an_upstream_that_cannot_be_reached_is_refunded() {
    run(async {
        let nowhere = ratekeeper_testkit::upstream::unused_address();
        let (gateway, _policy) = start(nowhere, POLICY);
        let mut client = http1_client(gateway.address()).await;
        let response = client.send_request(post("/openai", &stream_of(1))).await.unwrap();
        assert_eq!(response.status(), 502);
        response.into_body().collect().await.unwrap();
        assert_metric(&gateway, "openai", "refunded", 1);
    });
}

/// It has the request, and may have used the tokens.
#[test]
fn an_upstream_that_does_not_answer_a_request_keeps_the_estimate() {
    let silent = ratekeeper_testkit::upstream::Backend::start(|head, wire| {
        let _ = wire.try_body(&head);
        false
    });
    run(async {
        let (gateway, _policy) = start(silent.address(), POLICY);
        let mut client = http1_client(gateway.address()).await;
        let response = client.send_request(post("/openai", &stream_of(1))).await.unwrap();
        assert_eq!(response.status(), 502);
        response.into_body().collect().await.unwrap();
        assert_metric(&gateway, "openai", "interrupted", 1);
    });
}
