//! The middleware of reqwest.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Frame;
use ratekeeper::Policy;
use ratekeeper::client::{Attempt, Outbound, OutboundError, Repeatable, StopReason};
use ratekeeper::policy::NoSources;
use ratekeeper_testkit::{LlmServer, Quota, ScriptedResponse, ScriptedServer};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use serde_json::{Value, json};

use crate::support::*;

type ReqwestError = OutboundError<reqwest::Response>;

fn reqwest_client(outbound: &Outbound) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(outbound.clone()).build()
}

fn outbound_error(error: reqwest_middleware::Error) -> ReqwestError {
    let reqwest_middleware::Error::Middleware(error) = error else { panic!("{error}") };
    error.downcast::<ReqwestError>().expect("an error of the layer")
}

#[tokio::test]
async fn json_is_sent_again_and_received() {
    let server = ScriptedServer::start(|number, request| match number {
        0 => ScriptedResponse::status(503),
        _ => ScriptedResponse::status(200)
            .header("Content-Type", "application/json")
            .body(request.body.clone()),
    });
    let outbound = Outbound::new("100/s per host").unwrap();
    let url = format!("{}/echo?a=b", server.url());
    let sent = json!({"text": "grün", "list": [1, 2, 3]});
    let request = reqwest_client(&outbound).post(&url).json(&sent).with_extension(Repeatable);
    let response = request.send().await.unwrap();
    assert_eq!(response.url().as_str(), url);
    assert_eq!(response.extensions().get::<Attempt>(), Some(&Attempt(2)));
    assert_eq!(response.json::<Value>().await.unwrap(), sent);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].body, requests[1].body);
    assert_eq!(requests[1].header("x-retry-count").as_deref(), Some("1"));
}

/// A body that streams by.
struct StreamedBody(u32);

impl http_body::Body for StreamedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0 = self.0.saturating_sub(1);
        Poll::Ready((self.0 > 0).then(|| Ok(Frame::data(Bytes::from_static(b"piece ")))))
    }
}

#[tokio::test]
async fn a_body_that_streams_by_is_sent_once_and_the_error_says_so() {
    let server = ScriptedServer::always(ScriptedResponse::status(429).header("Retry-After", "1"));
    let outbound = Outbound::new("100/s per host").unwrap();
    let body = reqwest::Body::wrap(StreamedBody(5));
    let sent = reqwest_client(&outbound).put(server.url()).body(body).send().await;
    let error = outbound_error(sent.unwrap_err());
    assert!(error.to_string().contains("the request cannot be sent again"), "{error}");
    assert_eq!(error.retry_after(), Some(SEC));
    let OutboundError::UpstreamRefused(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.stop, Some(StopReason::NotReplayable));
    let response = refusal.response.into_inner();
    assert_eq!((response.status().as_u16(), server.received()), (429, 1));
    assert_eq!(server.requests()[0].body, b"piece piece piece piece ");
}

#[tokio::test]
async fn errors_are_typed() {
    // Nothing is sent.
    let server = ScriptedServer::always(ScriptedResponse::status(200));
    let limited = Outbound::new("1/minute per host").unwrap().max_wait(Duration::ZERO);
    let client = reqwest_client(&limited);
    assert_eq!(client.get(server.url()).send().await.unwrap().status(), 200);
    let error = outbound_error(client.get(server.url()).send().await.unwrap_err());
    assert!(matches!(error, OutboundError::Refused(_)), "{error}");
    assert!(error.retry_after().is_some_and(|wait| wait > 50 * SEC), "{error}");
    assert_eq!(server.received(), 1);

    // Nothing listens. A request of any method was never sent, and is tried three times.
    server.close();
    let client = reqwest_client(&Outbound::unlimited());
    let error = outbound_error(client.post(server.url()).send().await.unwrap_err());
    let OutboundError::Failed { attempts: 3, stop, source } = &error else { panic!("{error}") };
    assert_eq!(*stop, Some(StopReason::Attempts));
    let source = source.downcast_ref::<reqwest_middleware::Error>().expect("that of reqwest");
    assert!(source.is_connect(), "{source}");

    // The timeout of reqwest is inside of the layer. Only an idempotent request is sent again.
    let server = ScriptedServer::always(ScriptedResponse::black_hole());
    let inner = reqwest::Client::builder().timeout(200 * MS).build().unwrap();
    let client = ClientBuilder::new(inner).with(Outbound::unlimited()).build();
    let began = Instant::now();
    let error = outbound_error(client.post(server.url()).send().await.unwrap_err());
    assert!(matches!(error, OutboundError::Failed { stop: Some(StopReason::NotSafe), .. }));
    let error = outbound_error(client.get(server.url()).send().await.unwrap_err());
    assert!(matches!(error, OutboundError::Failed { attempts: 3, .. }), "{error}");
    assert_eq!(server.received(), 4);
    assert!(began.elapsed() < 5 * SEC, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_metered_response_streams_and_keeps_its_url() {
    const INTERVAL: Duration = Duration::from_millis(50);
    let quota = Quota::token_bucket(1_000_000, SEC);
    let server = LlmServer::builder(quota, quota).event_interval(INTERVAL).start();
    let text = "version: 1
limits:
  - name: tokens
    rate: 1000000000/year
    algorithm: fixed_window
    cost: { usage: openai, estimate: { request_json: [max_tokens], default: 100 } }";
    let policy = Policy::parse("policy.yaml", text, &NoSources).unwrap();
    let outbound = Outbound::with_policy(policy).unwrap();
    let url = format!("{}/v1/chat/completions", server.url());
    let body = json!({
        "max_tokens": 40, "metadata": {"use": 20}, "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "hello"}],
    });
    let began = Instant::now();
    let mut response = reqwest_client(&outbound).post(&url).json(&body).send().await.unwrap();
    assert_eq!(response.url().as_str(), url);
    let first = response.chunk().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: "));
    let first_after = began.elapsed();
    let mut pieces = 1;
    while response.chunk().await.unwrap().is_some() {
        pieces += 1;
    }
    // It takes a second to send all events, and the first one came before the last was sent.
    let total = began.elapsed();
    assert!(pieces > 10, "{pieces}");
    assert!(
        total >= 20 * INTERVAL && first_after < total - 5 * INTERVAL,
        "{first_after:?} {total:?}"
    );
    drop(response);
    assert_eq!(crate::llm::charged(&outbound, &server).await, server.tokens_used());
}
