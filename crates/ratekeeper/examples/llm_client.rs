//! Fifty streams of a language model at once, within the provider's budget of tokens. The limit is
//! in `llm_client.yaml`. The provider counts in windows of a second instead of a minute, so that
//! the example ends soon.
//!
//! ```sh
//! cargo run -p ratekeeper --example llm_client --features reqwest,axum
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use http_body_util::channel::Channel;
use ratekeeper::client::Outbound;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

const STREAMS: u64 = 50;
const BUDGET: u64 = 5_000;
const PROMPT_TOKENS: u64 = 20;

/// What the provider has counted.
struct Provider {
    began: Instant,
    /// Tokens by window.
    used: Mutex<BTreeMap<u64, u64>>,
}

/// Responds like OpenAI: with a stream of events, of which the last states the usage.
async fn complete(State(provider): State<Arc<Provider>>, body: String) -> Response<Body> {
    // A real model decides itself how long its response is; here the prompt says so.
    let request: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    let words = request["messages"][0]["content"].as_str().and_then(|words| words.parse().ok());
    let words: u64 = words.unwrap_or(100);
    let tokens = PROMPT_TOKENS + words;

    {
        let mut used = provider.used.lock().expect("not poisoned");
        let used = used.entry(provider.began.elapsed().as_secs()).or_default();
        if *used + tokens > BUDGET {
            let response = Response::builder().status(StatusCode::TOO_MANY_REQUESTS);
            return response.body(Body::empty()).expect("a valid response");
        }
        *used += tokens;
    }

    let (mut events, stream) = Channel::<Bytes>::new(1);
    tokio::spawn(async move {
        for word in 0..words {
            if word % 20 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let event =
                r#"data: {"choices": [{"delta": {"content": "word "}}]}"#.to_string() + "\n\n";
            events.send_data(event.into()).await?;
        }
        let usage = serde_json::json!({
            "prompt_tokens": PROMPT_TOKENS, "completion_tokens": words, "total_tokens": tokens,
        });
        let last = serde_json::json!({ "choices": [], "usage": usage });
        let last = format!("data: {last}\n\ndata: [DONE]\n\n");
        events.send_data(last.into()).await
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(Body::new(stream)).expect("a valid response")
}

/// Reads a stream, and returns whether the provider served it.
async fn stream(client: ClientWithMiddleware, url: String, number: u64) -> bool {
    let words = 100 + number * 37 % 300;
    let body = serde_json::json!({
        "model": "m",
        "max_tokens": 500,
        "messages": [{ "role": "user", "content": words.to_string() }],
        "stream": true,
        "stream_options": { "include_usage": true }, // without it, the estimate stays charged
    });
    let sent = client.post(url).body(body.to_string()).send().await;
    let Ok(mut response) = sent.and_then(|response| Ok(response.error_for_status()?)) else {
        return false;
    };
    while let Ok(Some(_words)) = response.chunk().await {}
    true
}

/// Starts all streams at once, and prints what the provider has counted.
async fn run(title: &str, client: ClientWithMiddleware) -> Result<(), Box<dyn std::error::Error>> {
    println!("{STREAMS} streams {title}:");
    let provider = Arc::new(Provider { began: Instant::now(), used: Mutex::default() });
    let app = Router::new()
        .route("/v1/chat/completions", post(complete))
        .with_state(Arc::clone(&provider));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1/chat/completions", listener.local_addr()?);
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let streams = (0..STREAMS).map(|number| stream(client.clone(), url.clone(), number));
    let served = streams.collect::<JoinSet<_>>().join_all().await;
    for (window, tokens) in provider.used.lock().expect("not poisoned").iter() {
        println!("  second {}: {tokens} of {BUDGET} tokens", window + 1);
    }
    let refused = served.iter().filter(|is_served| !**is_served).count();
    println!("  {} streams were served, {refused} were refused", served.len() - refused);
    server.abort();
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = ClientBuilder::new(reqwest::Client::new()).build();
    run("without Ratekeeper", client).await?;

    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/llm_client.yaml");
    let client = ClientBuilder::new(reqwest::Client::new()).with(Outbound::open(policy)?).build();
    run("with Ratekeeper", client).await
}
