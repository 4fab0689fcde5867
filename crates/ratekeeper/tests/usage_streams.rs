//! An axum application that streams, with the layer, over real connections.
#![cfg(feature = "axum")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body as AxumBody;
use axum::extract::State;
use axum::routing::post;
use axum::{Router, http};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ratekeeper::policy::json_fields::JsonFields;
use ratekeeper::policy::{NoSources, RequestAttributes, Resolution};
use ratekeeper::{Policy, PolicyLimiter, RatekeeperLayer};
use ratekeeper_testkit::llm::{self, Tokens};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const STREAMS: usize = 500;

const POLICY: &str = "
version: 1
identify:
  user: { header: x-user }
  model: { request_json: model }
limits:
  - name: user
    per: user
    rate: 1000000000/year
    algorithm: fixed_window
    cost: { usage: openai, estimate: { request_json: max_tokens, default: 1000 } }
  - name: model
    per: [user, model]
    rate: 1000000000/year
    algorithm: fixed_window
    cost: { usage: openai, weights: { input: 1, cached: 0.1, output: 4 } }
";

/// A stream that goes on when all have begun.
struct Stream {
    pieces: VecDeque<String>,
    begin: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.pieces.len() == 1
            && let Some(begin) = &mut self.begin
        {
            std::task::ready!(begin.as_mut().poll(context));
            self.begin = None;
        }
        Poll::Ready(self.pieces.pop_front().map(|piece| Ok(Frame::data(piece.into()))))
    }
}

async fn complete(State(all): State<Arc<Barrier>>, body: String) -> Response<AxumBody> {
    let body: serde_json::Value = serde_json::from_str(&body).expect("the whole body");
    let pieces = llm::openai_events(Tokens::of(body["n"].as_u64().unwrap()), true);
    let begin = async move {
        all.wait().await;
    };
    let stream = Stream { pieces: pieces.into(), begin: Some(Box::pin(begin)) };
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(AxumBody::new(stream)).unwrap()
}

async fn serve(limiter: &PolicyLimiter) -> SocketAddr {
    let layer = RatekeeperLayer::new(limiter.clone()).with_request_json();
    let all = Arc::new(Barrier::new(STREAMS));
    let app = Router::new().route("/", post(complete)).layer(layer).with_state(all);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn body(n: usize) -> String {
    format!("{{\"model\": \"m\", \"max_tokens\": 3, \"n\": {n}}}")
}

fn request(n: usize) -> Request<Full<Bytes>> {
    let request = Request::post("http://llm/").header("host", "llm").header("x-user", "ann");
    request.body(Full::from(body(n))).unwrap()
}

async fn read(response: Response<hyper::body::Incoming>) {
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.expect("the whole body").to_bytes();
    assert!(body.ends_with(b"data: [DONE]\n\n"));
}

async fn assert_charged_is_used(limiter: &PolicyLimiter) {
    let active = limiter.policy().active();
    let json = JsonFields::of(body(0).as_bytes(), active.policy().request_json());
    let headers = vec![("x-user".to_string(), "ann".to_string())];
    let request = RequestAttributes {
        headers: &headers,
        json: json.as_ref(),
        ..RequestAttributes::new("POST", "/")
    };
    let Resolution::Charged(limits) = active.policy().resolve(&request) else { panic!() };
    let tokens = || (0..STREAMS).map(|n| Tokens::of(n as u64));
    let weighted = tokens().map(|t| (10 * t.input + t.cached + 40 * t.output).div_ceil(10));
    let used: [u64; 2] = [tokens().map(|t| t.total()).sum(), weighted.sum()];
    for (limit, used) in limits.iter().zip(used) {
        let state = limiter.peek(limit).await.unwrap();
        assert_eq!(state.limit() - state.remaining(), used, "{}", limit.rule.name());
    }
}

fn limiter() -> PolicyLimiter {
    PolicyLimiter::new(Policy::parse("policy.yaml", POLICY, &NoSources).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_500_concurrent_streams_have_used_is_charged_over_http1() {
    let limiter = limiter();
    let address = serve(&limiter).await;
    let mut streams = JoinSet::new();
    for n in 0..STREAMS {
        streams.spawn(async move {
            let stream = TcpStream::connect(address).await.unwrap();
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            read(sender.send_request(request(n)).await.unwrap()).await;
        });
    }
    streams.join_all().await;
    assert_charged_is_used(&limiter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_500_concurrent_streams_have_used_is_charged_over_http2() {
    let limiter = limiter();
    let address = serve(&limiter).await;
    let mut streams = JoinSet::new();
    for connection in 0..5 {
        let stream = TcpStream::connect(address).await.unwrap();
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, driver) = handshake.unwrap();
        tokio::spawn(driver);
        for n in (connection..STREAMS).step_by(5) {
            let mut sender = sender.clone();
            streams
                .spawn(async move { read(sender.send_request(request(n)).await.unwrap()).await });
        }
    }
    streams.join_all().await;
    assert_charged_is_used(&limiter).await;
}
