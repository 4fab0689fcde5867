//! The layer charges the usage that responses state, in virtual time.
#![cfg(feature = "tower")]

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use ratekeeper::policy::json_fields::JsonFields;
use ratekeeper::policy::{NoSources, RequestAttributes, Resolution};
use ratekeeper::telemetry::MeteredStats;
use ratekeeper::tower::{ActualCost, PeerAddr, ReplayedBody};
use ratekeeper::{ManualClock, Policy, PolicyLimiter, RatekeeperLayer};
use ratekeeper_testkit::llm::{self, Tokens};
use tower::{Layer, ServiceExt, service_fn};

/// A body of these pieces, which may end with an error.
#[derive(Clone)]
struct Pieces {
    pieces: std::collections::VecDeque<Bytes>,
    is_broken: bool,
}

impl Pieces {
    fn new(pieces: impl IntoIterator<Item = impl Into<Bytes>>) -> Self {
        Self { pieces: pieces.into_iter().map(Into::into).collect(), is_broken: false }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(match self.pieces.pop_front() {
            Some(piece) => Some(Ok(Frame::data(piece))),
            None if self.is_broken => Some(Err("broken")),
            None => None,
        })
    }
}

const TOKENS: Tokens = Tokens { input: 100, cached: 50, output: 20 };

fn limiter(policy: &str) -> PolicyLimiter {
    let text = format!("version: 1\n{policy}");
    let policy = Policy::parse("policy.yaml", &text, &NoSources).unwrap_or_else(|e| panic!("{e}"));
    PolicyLimiter::with_clock(policy, ManualClock::new()).unwrap()
}

fn metered(cost: &str) -> PolicyLimiter {
    limiter(&format!(
        "limits: [{{ name: tokens, rate: 1000000/day, algorithm: fixed_window, cost: {{ {cost} }} }}]"
    ))
}

/// Returns what each limit has charged for requests with this body.
async fn charged_for(limiter: &PolicyLimiter, body: &str) -> Vec<u64> {
    let active = limiter.policy().active();
    let policy = active.policy();
    let json = JsonFields::of(body.as_bytes(), policy.request_json());
    let request = RequestAttributes { json: json.as_ref(), ..RequestAttributes::new("POST", "/") };
    let Resolution::Charged(limits) = policy.resolve(&request) else { panic!("not limited") };
    let mut charged = Vec::new();
    for limit in &limits {
        charged.push(1_000_000 - limiter.peek(limit).await.unwrap().remaining());
    }
    charged
}

async fn charged(limiter: &PolicyLimiter) -> u64 {
    charged_for(limiter, "{}").await[0]
}

fn request(body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::post("/").body(Full::from(body.to_string())).unwrap();
    request.extensions_mut().insert(PeerAddr(([192, 0, 2, 1], 4000).into()));
    request
}

/// Sends a request, and returns the response of the layer.
async fn send(
    limiter: &PolicyLimiter,
    body: &str,
    respond: impl Fn(Request<ReplayedBody<Full<Bytes>>>) -> Response<Pieces> + Clone,
) -> Response<impl Body<Data = Bytes, Error = &'static str> + Unpin> {
    let layers = RatekeeperLayer::new(limiter.clone()).with_request_json();
    let service = layers.layer(service_fn(move |request| {
        let response = respond(request);
        async { Ok::<_, Infallible>(response) }
    }));
    service.oneshot(request(body)).await.unwrap()
}

fn response(content_type: &str, body: Pieces) -> Response<Pieces> {
    Response::builder().header("content-type", content_type).body(body).unwrap()
}

fn stream(events: Vec<String>) -> Response<Pieces> {
    response("text/event-stream", Pieces::new(events))
}

fn json(text: String) -> Response<Pieces> {
    response("application/json", Pieces::new([text]))
}

fn stats(limiter: &PolicyLimiter) -> MeteredStats {
    limiter.telemetry().limits()[0].metered
}

#[tokio::test]
async fn what_a_response_states_is_charged_and_it_is_not_changed() {
    for format in ["openai", "anthropic"] {
        let limiter = metered(&format!("usage: {format}, estimate: {{ default: 500 }}"));
        let events = match format {
            "openai" => llm::openai_events(TOKENS, true),
            _ => llm::anthropic_events(TOKENS),
        };
        let sent = events.clone();
        let mut response = send(&limiter, "", move |_| stream(sent.clone())).await;
        assert_eq!(charged(&limiter).await, 500, "{format}: the estimate");
        let mut seen = Vec::new();
        while let Some(frame) = response.body_mut().frame().await {
            seen.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(seen, events, "{format}: piece by piece");
        assert_eq!(charged(&limiter).await, TOKENS.total(), "{format}");
        assert_eq!(stats(&limiter).settled, 1);
    }
    let limiter = metered("usage: openai");
    let response = send(&limiter, "", |_| json(llm::openai_json(TOKENS))).await;
    response.into_body().collect().await.unwrap();
    let response = send(&limiter, "", |_| json(llm::openai_json(TOKENS))).await;
    response.into_body().collect().await.unwrap();
    assert_eq!(charged(&limiter).await, 2 * TOKENS.total());
    let limiter = metered("usage: { json: usage.output_tokens }");
    let response = send(&limiter, "", |_| json(llm::anthropic_json(TOKENS))).await;
    response.into_body().collect().await.unwrap();
    assert_eq!(charged(&limiter).await, TOKENS.output);
}

#[tokio::test]
async fn tokens_are_weighted_exactly() {
    let limiter = metered(
        "usage: openai, weights: { input: 1, cached: 0.1, output: 4 }, estimate: { request_json: max_tokens, default: 7 }",
    );
    let held = send(&limiter, "{\"max_tokens\": 30}", |_| json(llm::openai_json(TOKENS))).await;
    assert_eq!(charged(&limiter).await, 120, "30 tokens of output");
    held.into_body().collect().await.unwrap();
    assert_eq!(charged(&limiter).await, 100 + 5 + 80);
    let tokens = Tokens { input: 0, cached: 1, output: 0 };
    let response = send(&limiter, "", move |_| json(llm::openai_json(tokens))).await;
    response.into_body().collect().await.unwrap();
    assert_eq!(charged(&limiter).await, 185 + 1, "a tenth is rounded up");
}

#[tokio::test]
async fn a_usage_above_what_is_left_is_a_debt() {
    let limiter = limiter(
        "limits: [{ name: tokens, rate: 100/day, algorithm: fixed_window, cost: { usage: openai, estimate: { default: 10 } } }]",
    );
    let response = send(&limiter, "", |_| json(llm::openai_json(TOKENS))).await;
    response.into_body().collect().await.unwrap();
    let denied = send(&limiter, "", |_| panic!("it is not called")).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["ratelimit"], "\"tokens\";r=0;t=86400");
}

/// The estimate stays charged.
#[tokio::test]
async fn a_response_without_usage_is_charged_the_estimate() {
    for body in ["", "{}", "not JSON", "{\"usage\":null}", "{\"usage\":{\"total_tokens\":-1}}"] {
        let limiter = metered("usage: openai, estimate: { default: 500 }");
        let response = send(&limiter, "", move |_| json(body.to_string())).await;
        response.into_body().collect().await.unwrap();
        assert_eq!(charged(&limiter).await, 500, "{body}");
        assert_eq!(stats(&limiter).unstated, 1, "{body}");
    }
    let limiter = metered("usage: openai, estimate: { default: 500 }");
    let response = send(&limiter, "", |_| stream(llm::openai_events(TOKENS, false))).await;
    response.into_body().collect().await.unwrap();
    assert_eq!(charged(&limiter).await, 500, "the client did not request usage");
}

#[tokio::test]
async fn a_client_that_disconnects_is_charged_at_least_the_estimate() {
    for (estimate, format, expected) in
        [(500, "openai", 500), (500, "anthropic", 500), (60, "anthropic", 151)]
    {
        let limiter = metered(&format!("usage: {format}, estimate: {{ default: {estimate} }}"));
        let events = match format {
            "openai" => llm::openai_events(TOKENS, true),
            _ => llm::anthropic_events(TOKENS),
        };
        let mut response = send(&limiter, "", move |_| stream(events.clone())).await;
        for _ in 0..3 {
            response.body_mut().frame().await.unwrap().unwrap();
        }
        drop(response);
        assert_eq!(charged(&limiter).await, expected, "{format}");
        assert_eq!(stats(&limiter).interrupted, 1);
    }
    // Clients close the connection when the stream says that it is over.
    let limiter = metered("usage: openai, estimate: { default: 500 }");
    let events = llm::openai_events(TOKENS, true);
    let count = events.len();
    let mut response = send(&limiter, "", move |_| stream(events.clone())).await;
    for _ in 0..count {
        response.body_mut().frame().await.unwrap().unwrap();
    }
    drop(response);
    assert_eq!(charged(&limiter).await, TOKENS.total());
    let limiter = metered("usage: openai, estimate: { default: 500 }");
    drop(send(&limiter, "", |_| json(llm::openai_json(TOKENS))).await);
    assert_eq!(charged(&limiter).await, 500, "nothing was read");
}

#[tokio::test]
async fn an_upstream_that_dies_is_charged_at_least_the_estimate() {
    let limiter = metered("usage: anthropic, estimate: { default: 160 }");
    let broken = |events: Vec<String>, at: usize| {
        let mut body = Pieces::new(events.into_iter().take(at));
        body.is_broken = true;
        response("text/event-stream", body)
    };
    let events = llm::anthropic_events(TOKENS);
    let respond = move |_| broken(events.clone(), 5);
    let response = send(&limiter, "", respond).await;
    assert_eq!(response.into_body().collect().await.unwrap_err(), "broken");
    assert_eq!(charged(&limiter).await, 160);
    let events = llm::anthropic_events(TOKENS);
    let before_stop = events.len() - 1;
    let respond = move |_| broken(events.clone(), before_stop);
    let response = send(&limiter, "", respond).await;
    response.into_body().collect().await.unwrap_err();
    assert_eq!(charged(&limiter).await, 160 + TOKENS.total(), "more than the estimate");
}

#[tokio::test]
async fn an_error_without_usage_is_refunded() {
    let limiter = metered("usage: openai, estimate: { default: 500 }");
    for status in [400, 429, 500, 503] {
        let response = send(&limiter, "", move |_| {
            let mut response = json("{\"error\":{\"message\":\"no\"}}".into());
            *response.status_mut() = status.try_into().unwrap();
            response
        });
        response.await.into_body().collect().await.unwrap();
    }
    assert_eq!(charged(&limiter).await, 0);
    assert_eq!(stats(&limiter).refunded, 4);
    let response = send(&limiter, "", |_| {
        let mut response = json(llm::openai_json(TOKENS));
        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    response.await.into_body().collect().await.unwrap();
    assert_eq!(charged(&limiter).await, TOKENS.total(), "an error that states its usage");
}

#[tokio::test]
async fn refunds_and_costs_of_the_program_come_first() {
    let limiter = limiter(
        "limits: [{ name: tokens, rate: 1000000/day, algorithm: fixed_window, refund: 203, cost: { usage: openai, estimate: { default: 500 } } }]",
    );
    let response = send(&limiter, "", |_| {
        let mut response = json(llm::openai_json(TOKENS));
        *response.status_mut() = http::StatusCode::NON_AUTHORITATIVE_INFORMATION;
        response
    });
    response.await.into_body().collect().await.unwrap();
    assert_eq!(charged(&limiter).await, 0);
    let response = send(&limiter, "", |_| {
        let mut response = json(llm::openai_json(TOKENS));
        response.extensions_mut().insert(ActualCost(3));
        response
    });
    response.await.into_body().collect().await.unwrap();
    assert_eq!(charged(&limiter).await, 3);
}

#[tokio::test]
async fn compression_is_not_requested_and_a_compressed_response_is_charged_the_estimate() {
    let limiter = metered("usage: openai, estimate: { default: 500 }");
    let response = send(&limiter, "", |request| {
        assert_eq!(request.headers()["accept-encoding"], "identity");
        let mut response = json("\u{1f}\u{8b}".into());
        response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        response
    });
    response.await.into_body().collect().await.unwrap();
    assert_eq!(charged(&limiter).await, 500);
    assert_eq!(stats(&limiter).encoded, 1);
    let plain = self::limiter("limits: [{ name: requests, rate: 10/day }]");
    let response = send(&plain, "", |request| {
        assert!(request.headers().get("accept-encoding").is_none());
        json("{}".into())
    });
    let _ = response.await;
}

const PER_MODEL: &str = "
identify:
  model: { request_json: model }
  user: { request_json: user }
limits:
  - { name: user, per: user, rate: 1000000/day, algorithm: fixed_window, cost: { usage: openai, estimate: { request_json: [max_completion_tokens, max_tokens], default: 100 } } }
  - { name: model, per: [user, model], match: { request_json: { model: large* } }, rate: 1000000/day, algorithm: fixed_window, cost: { usage: openai, weights: { output: 10 } } }
  - { name: few, per: model, match: { request_json: { model: rare } }, rate: 1/day, algorithm: fixed_window }
";

#[tokio::test]
async fn limits_per_user_and_model_are_charged_all_or_none() {
    let limiter = limiter(PER_MODEL);
    let ann = "{\"model\": \"large-1\", \"user\": \"ann\", \"max_tokens\": 40}";
    let held = send(&limiter, ann, |_| json(llm::openai_json(TOKENS))).await;
    assert_eq!(charged_for(&limiter, ann).await, [40, 1]);
    held.into_body().collect().await.unwrap();
    assert_eq!(charged_for(&limiter, ann).await, [170, 350]);
    let other = "{\"model\": \"large-2\", \"user\": \"ann\"}";
    assert_eq!(charged_for(&limiter, other).await, [170, 0], "one count for each model");
    let small = "{\"model\": \"small\", \"user\": \"bob\", \"max_tokens\": 1, \"max_completion_tokens\": 9}";
    let held = send(&limiter, small, |_| json(llm::openai_json(TOKENS))).await;
    assert_eq!(charged_for(&limiter, small).await, [9], "the largest of both");
    held.into_body().collect().await.unwrap();
    let rare = "{\"model\": \"rare\", \"user\": \"bob\"}";
    for status in [200, 429] {
        let response = send(&limiter, rare, |_| json(llm::openai_json(TOKENS))).await;
        assert_eq!(response.status(), status);
        let _ = response.into_body().collect().await;
    }
    assert_eq!(charged_for(&limiter, small).await, [340], "the refused one charged nothing");
}

/// A body that is not known could be any, so that a limit applies to it.
#[tokio::test]
async fn a_body_that_hides_its_model_does_not_evade_a_limit_on_it() {
    let huge = format!("{{\"x\": \"{}\", \"model\": \"rare\"}}", "x".repeat(2 << 20));
    for body in [
        "{\"model\": \"rare\"}",
        "{\"model\": \"small\", \"model\": \"rare\"}",
        "{\"Model\": \"rare\"}",
        "{\"\\u006dodel\": \"rar\\u0065\"}",
        "{\"model\": \"rare\"} x",
        "{\"model\": [\"rare\"]}",
        "",
        &huge,
    ] {
        let limiter = limiter(PER_MODEL);
        let response = send(&limiter, body, |_| json("{}".into())).await;
        let stats = limiter.telemetry().limits();
        let few = stats.iter().find(|limit| &*limit.name == "few").unwrap();
        assert_eq!(
            (response.status().as_u16(), few.allowed),
            (200, 1),
            "{}",
            &body[..body.len().min(40)]
        );
    }
}

#[tokio::test]
async fn a_body_that_was_read_is_replayed_unchanged() {
    let large = format!("{{\"x\": \"{}\"}}", "x".repeat(2 << 20));
    for body in ["{\"model\": \"a\"}", "not JSON at all", "", &large] {
        let limiter = limiter(
            "
identify: { model: { request_json: model } }
limits: [{ name: model, per: model, rate: 100/day }]
",
        );
        let layers = RatekeeperLayer::new(limiter).with_request_json();
        let service = layers.layer(service_fn(|request: Request<ReplayedBody<Pieces>>| async {
            let seen = request.into_body().collect().await.map(|body| body.to_bytes());
            Ok::<_, Infallible>(Response::new(Full::from(seen.unwrap_or("broken".into()))))
        }));
        for (size, is_broken) in [(1, false), (1000, false), (1 << 22, false), (1000, true)] {
            if size == 1 && body.len() > 1000 {
                continue;
            }
            let mut pieces = Pieces::new(body.as_bytes().chunks(size).map(<[u8]>::to_vec));
            pieces.is_broken = is_broken;
            let request = request("").map(|_| pieces);
            let response = service.clone().oneshot(request).await.unwrap();
            let seen = response.into_body().collect().await.unwrap().to_bytes();
            let expected = if is_broken { "broken" } else { body };
            assert!(seen == expected, "{} bytes by {size}", body.len());
        }
    }
}

#[tokio::test]
async fn without_the_layer_that_reads_bodies_a_request_gets_an_explanation() {
    let service = RatekeeperLayer::new(limiter(PER_MODEL)).layer(service_fn(|_| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let response = service.oneshot(request("{}")).await.unwrap();
    assert_eq!(response.status(), 500);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("with_request_json"), "{body:?}");
}
