//! A language model API with limits on requests and tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::Request;
use http_body_util::BodyExt;
use ratekeeper::Policy;
use ratekeeper::client::{Outbound, Repeatable, RetryRules};
use ratekeeper::policy::{NoSources, RequestAttributes, Resolution, StoreSettings};
use ratekeeper_testkit::{LlmServer, Quota, RedisServer};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::*;

const STREAMS: usize = 50;
const REQUESTS_PER_STREAM: usize = 4;
const REQUESTS: usize = STREAMS * REQUESTS_PER_STREAM;

/// The first two limits are those of the server. The third one never refuses: it counts the same tokens.
const POLICY: &str = "
version: 1
limits:
  - { name: requests, per: host, rate: 60/s burst 60 }
  - name: tokens
    per: host
    rate: 8000/2s
    cost: { usage: openai, estimate: { request_json: [max_tokens], default: 200 } }
  - name: total
    per: host
    rate: 1000000000/year
    algorithm: fixed_window
    cost: { usage: openai, estimate: { request_json: [max_tokens], default: 200 } }
";

fn server() -> LlmServer {
    let (requests, tokens) = (Quota::token_bucket(60, SEC), Quota::token_bucket(8_000, 2 * SEC));
    LlmServer::builder(requests, tokens).delay(10 * MS).event_interval(MS / 4).start()
}

fn outbound() -> Outbound {
    Outbound::with_policy(Policy::parse("policy.yaml", POLICY, &NoSources).unwrap()).unwrap()
}

/// A request for up to 200 tokens that uses between 50 and 149; every other one is a stream.
fn request(url: &str, n: usize) -> Request<Body> {
    let mut body = json!({
        "max_tokens": 200, "metadata": {"use": 50 + n * 37 % 100},
        "messages": [{"role": "user", "content": "How many tokens?"}],
    });
    if n.is_multiple_of(2) {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    let request = Request::post(format!("{url}/v1/chat/completions"));
    let request = request.header("content-type", "application/json");
    let mut request = request.body(Body::from(body.to_string())).unwrap();
    request.extensions_mut().insert(Repeatable);
    request
}

/// Returns what is charged to the last limit, which is a window of a year.
pub(crate) async fn charged(outbound: &Outbound, server: &LlmServer) -> u64 {
    let active = outbound.limiter().policy().active();
    let authority = server.address().to_string();
    let attributes = RequestAttributes {
        host: Some(&authority),
        port: Some(server.address().port()),
        ..RequestAttributes::new("POST", "/v1/chat/completions")
    };
    let Resolution::Charged(limits) = active.policy().resolve(&attributes) else { panic!() };
    let state = outbound.limiter().peek(limits.last().unwrap()).await.unwrap();
    state.limit() - state.remaining()
}

#[tokio::test]
async fn fifty_streams_stay_within_the_tokens_of_the_server() {
    let server = server();
    let outbound = outbound().retry(RetryRules::default().with_attempts_max(5));
    let (url, began) = (server.url(), Instant::now());
    let results = send_all(&client(&outbound), STREAMS, REQUESTS, move |n| request(&url, n)).await;
    let elapsed = began.elapsed();
    let errors: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(served(&results), REQUESTS, "{errors:?}");
    for (n, result) in results.iter().enumerate() {
        let body = &result.as_ref().unwrap().body;
        let is_whole = if n.is_multiple_of(2) {
            body.ends_with(b"data: [DONE]\n\n")
        } else {
            body.ends_with(b"}")
        };
        assert!(is_whole, "{n}: {body:?}");
    }
    let (used, charged) = (server.tokens_used(), charged(&outbound, &server).await);
    let (accepted, refused) = (server.accepted(), server.refused());
    assert!(server.streams_max() > 1);
    let naive = naive().await;
    println!(
        "llm: {used} tokens used and {charged} charged in {elapsed:?}; {refused} of {} requests refused; \
         a naive loop: {} of {} refused in {:?}",
        accepted + refused,
        naive.refused,
        naive.arrivals,
        naive.elapsed
    );
    assert_eq!(charged, used);
    assert_eq!(accepted, REQUESTS as u64);
    assert!(refused * 20 <= accepted + refused, "{refused} of {}", accepted + refused);
    // Not merely slower: the quota allows 8,000 tokens at once and 4,000 per second.
    let fastest = (used.saturating_sub(8_000)) as f64 / 4_000.0;
    assert!(elapsed.as_secs_f64() <= 3.0 * fastest + 3.0, "{elapsed:?} of {fastest} s");
    assert!(naive.refused * 10 > naive.arrivals, "{} of {}", naive.refused, naive.arrivals);
    assert!(naive.refused * (accepted + refused) > 3 * refused * naive.arrivals);
}

#[tokio::test]
async fn a_fleet_shares_a_budget_of_tokens() {
    let (server, redis) = (server(), RedisServer::start());
    // Two processes, each with a connection of its own.
    let member = || {
        let policy = Policy::parse("policy.yaml", POLICY, &NoSources).unwrap();
        let store = StoreSettings { deadline: Some(SEC), ..StoreSettings::at(&redis.url()) };
        let outbound = Outbound::with_policy(policy.with_store(store)).unwrap();
        outbound.retry(RetryRules::default().with_attempts_max(5))
    };
    let (one, other) = (member(), member());
    let (url, other_url) = (server.url(), server.url());
    let (one_client, other_client) = (client(&one), client(&other));
    let (mine, others) = tokio::join!(
        send_all(&one_client, STREAMS / 2, REQUESTS / 2, move |n| request(&url, n)),
        send_all(&other_client, STREAMS / 2, REQUESTS / 2, move |n| request(&other_url, n)),
    );
    assert_eq!(served(&mine) + served(&others), REQUESTS);
    let refused = server.refused();
    assert!(refused * 20 <= REQUESTS as u64, "{refused} of {REQUESTS}");
    // Charges are corrected in the background.
    one.limiter().engine().return_leases().await;
    other.limiter().engine().return_leases().await;
    assert_eq!(charged(&one, &server).await, server.tokens_used());
}

struct Naive {
    refused: u64,
    arrivals: u64,
    elapsed: Duration,
}

/// The same requests, each of which is repeated 100 ms after a refusal.
async fn naive() -> Naive {
    let server = server();
    let (client, began) = (http_client(), Instant::now());
    let (refused, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for worker in 0..STREAMS {
        let (client, url, refused) = (client.clone(), server.url(), Arc::clone(&refused));
        tasks.spawn(async move {
            for n in (worker..REQUESTS).step_by(STREAMS) {
                loop {
                    let response = client.request(request(&url, n)).await.unwrap();
                    let status = response.status();
                    response.into_body().collect().await.unwrap();
                    if status == 200 {
                        break;
                    }
                    refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(100 * MS).await;
                }
            }
        });
    }
    tasks.join_all().await;
    let refused = refused.load(Ordering::Relaxed);
    assert_eq!(refused, server.refused());
    Naive { refused, arrivals: refused + server.accepted(), elapsed: began.elapsed() }
}
