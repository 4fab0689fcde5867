//! The client layer of the library against the gateway.
#![allow(clippy::disallowed_methods, reason = "a gateway takes real time")]

use std::fs;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ratekeeper::client::{ClientExt, Outbound};
use tokio::task::JoinSet;
use tower_service::Service;

use crate::backend::Backend;
use crate::process::Gateway;

const WORKERS: usize = 6;
const REQUESTS: usize = 36;

/// Two limits of the same rate. The headers of the first one state no window, because it takes a quarter of a second.
const POLICY: &str = "
version: 1
identify: { key: { header: x-api-key } }
limits:
  - { name: small, match: { path: /small }, per: key, rate: 20/s burst 5 }
  - { name: large, match: { path: /large }, per: key, rate: 20/s }
";

/// Sends requests with a key by a number of workers, and returns how many were served.
async fn send_all(outbound: Outbound, url: String, key: &'static str) -> usize {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = ClientExt::<Request<Full<Bytes>>>::layer(client, outbound);
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (mut client, url) = (client.clone(), url.clone());
        workers.spawn(async move {
            let mut served = 0;
            for _ in 0..REQUESTS / WORKERS {
                let request = Request::get(&url).header("x-api-key", key);
                let response = client.call(request.body(Full::default()).unwrap()).await.unwrap();
                served += usize::from(response.status() == StatusCode::OK);
                response.into_body().collect().await.unwrap();
            }
            served
        });
    }
    workers.join_all().await.into_iter().sum()
}

#[tokio::test]
async fn a_client_with_the_layer_is_served_by_the_gateway() {
    let (backend, folder) = (Backend::says("hello"), tempfile::tempdir().unwrap());
    let policy = folder.path().join("policy.yaml");
    fs::write(&policy, POLICY).unwrap();
    let gateway = Gateway::before(&backend, &[policy.to_str().unwrap()]);
    // The limit of the gateway, a limit that is a little above it, and none.
    let line = |line| Outbound::new(line).unwrap();
    let layers = [
        ("/small", "small-equal", line("20/s burst 5 per header x-api-key")),
        ("/small", "small-above", line("25/s burst 6 per header x-api-key")),
        ("/small", "small-unlimited", Outbound::unlimited()),
        ("/large", "large-equal", line("20/s per header x-api-key")),
        ("/large", "large-above", line("25/s per header x-api-key")),
        ("/large", "large-unlimited", Outbound::unlimited()),
    ];
    let mut clients = JoinSet::new();
    for (path, key, outbound) in layers {
        let url = format!("http://{}{path}", gateway.address());
        clients.spawn(async move {
            let began = Instant::now();
            let served = send_all(outbound.clone(), url, key).await;
            (key, served, outbound.stats(), began.elapsed())
        });
    }
    for (key, served, stats, elapsed) in clients.join_all().await {
        println!("{key}: {} of {} attempts refused, {elapsed:?}", stats.refused, stats.attempts);
        assert_eq!(served, REQUESTS, "{key}");
        assert_eq!(stats.attempts, REQUESTS as u64 + stats.refused, "{key}");
        assert!(stats.refused <= REQUESTS as u64 / 10, "{key}: {stats:?}");
        // After the burst of 20, those that are left take 0.8 s. If nothing remains of the small burst, it is waited for
        // up to a second, which is the unit of the header, so that they take 7 s.
        let longest = if key.starts_with("small") { 20 } else { 5 };
        assert!(elapsed < Duration::from_secs(longest), "{key}: {elapsed:?}");
    }
    assert_eq!(backend.requests(), 6 * REQUESTS, "refusals are not forwarded");
}
