//! Graceful shutdown: every request that was counted gets its response.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ratekeeper_testkit::{RedisServer, wait_until};
use serde_json::json;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::client::Client;
use crate::grpc;
use crate::process::{Server, envoy_config, path, policy, request};

const CLIENTS: usize = 16;
const LIMIT: u64 = 50_000_000;

/// A server whose counts outlive it, with all listeners.
struct Served {
    redis: RedisServer,
    policy: tempfile::NamedTempFile,
    envoy: tempfile::TempDir,
}

impl Served {
    fn new() -> Self {
        let redis = RedisServer::start();
        let store = format!("store: {{ url: '{}', deadline: 30s }}\nlimits: []", redis.url());
        Self { policy: policy(&store), envoy: envoy_config(LIMIT as u32), redis }
    }

    fn start(&self) -> Server {
        assert!(self.redis.is_up());
        let envoy = path(self.envoy.path());
        let listeners = ["--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--envoy-config", envoy];
        Server::start(&[&[path(self.policy.path())], &listeners[..]].concat())
    }
}

fn check() -> serde_json::Value {
    json!({"key": "k", "rate": format!("{LIMIT}/day"), "algorithm": "fixed_window"})
}

#[test]
fn every_question_over_http_that_was_counted_is_answered() {
    let served = Served::new();
    let mut server = served.start();
    let responses = AtomicUsize::new(0);
    let check_request = request("/v1/check", "", &check().to_string());
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let mut client = server.connect();
            let (responses, check_request) = (&responses, &check_request);
            scope.spawn(move || {
                // Until a response says that it was the last. Every request gets one.
                loop {
                    let response = client.request(check_request);
                    assert_eq!(response.status(), 200, "{}", response.body);
                    responses.fetch_add(1, Ordering::SeqCst);
                    if response.head.get("connection").as_deref() == Some("close") {
                        return;
                    }
                }
            });
        }
        wait_until("there is load", || responses.load(Ordering::SeqCst) > 500);
        server.signal("-TERM");
    });
    assert!(server.wait().success());
    let (_, left) = served.start().post("/v1/peek", check());
    let counted = LIMIT - left["remaining"].as_u64().unwrap();
    assert_eq!(counted, responses.into_inner() as u64);
}

#[test]
fn every_question_of_envoy_that_was_counted_is_answered() {
    let served = Served::new();
    let mut server = served.start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let responses = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        let total = std::sync::Arc::new(AtomicUsize::new(0));
        for _ in 0..4 {
            let client = grpc::Client::connect(server.grpc()).await;
            for _ in 0..8 {
                let (mut client, total) = (client.clone(), total.clone());
                tasks.spawn(async move {
                    // A request that comes too late is refused before it is processed.
                    while client.send(grpc::request(&[("user", "ann")])).await.is_ok() {
                        total.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        }
        while total.load(Ordering::SeqCst) < 500 {
            tokio::task::yield_now().await;
        }
        server.signal("-TERM");
        while tasks.join_next().await.is_some() {}
        total.load(Ordering::SeqCst)
    });
    assert!(server.wait().success());
    let left = runtime.block_on(async {
        let server = served.start();
        let mut client = grpc::Client::connect(server.grpc()).await;
        client.check(&[("user", "ann")]).await.statuses[0].limit_remaining
    });
    assert_eq!(LIMIT - u64::from(left) - 1, responses as u64);
}

#[test]
fn idle_connections_do_not_hold_up_the_end() {
    let served = Served::new();
    let mut server = served.start();
    let (silent, mut idle) = (server.connect(), server.connect());
    assert_eq!(idle.get("/healthz").status(), 200);
    let (redis, envoy) = (Client::connect(server.resp()), Client::connect(server.grpc()));
    server.signal("-INT");
    assert!(server.wait().success());
    assert!(!server.log().contains("shut down with connections open"), "{}", server.log());
    assert!(idle.0.is_closed());
    drop((silent, redis, envoy));
}

#[tokio::test]
async fn those_who_watch_its_health_hear_of_the_end_and_do_not_hold_it_up() {
    let served = Served::new();
    let mut server = served.start();
    let mut client = HealthClient::new(grpc::channel(server.grpc()).await);
    let mut watched = Vec::new();
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        let request = HealthCheckRequest { service: service.into() };
        let mut health = client.watch(request).await.unwrap().into_inner();
        assert_eq!(health.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
        watched.push(health);
    }
    server.signal("-TERM");
    for mut health in watched {
        assert_eq!(health.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    }
    assert!(server.wait().success());
    assert!(!server.log().contains("shut down with connections open"), "{}", server.log());
}

#[test]
fn what_was_leased_and_not_spent_is_given_back() {
    let redis = RedisServer::start();
    let store = format!("store: {{ url: '{}', deadline: 30s, leased: true }}", redis.url());
    let policy = policy(&format!("{store}\nlimits: []"));
    let start = || Server::start(&[path(policy.path())]);
    let check = json!({"key": "k", "rate": "100000/day", "algorithm": "fixed_window"});
    let mut server = start();
    let mut client = server.connect();
    let check_request = request("/v1/check", "", &check.to_string());
    let metric = |name: &str| -> u64 {
        let page = Client::connect(server.admin()).get("/metrics").body;
        let line = page.lines().find(|line| line.starts_with(name)).expect("a metric").to_string();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let mut sent = 0;
    wait_until("some is leased and not spent", || {
        for _ in 0..200 {
            assert_eq!(client.request(&check_request).status(), 200);
            sent += 1;
        }
        metric("ratekeeper_lease_unspent_units ") > 0
    });
    server.signal("-TERM");
    assert!(server.wait().success());
    let (_, left) = start().post("/v1/peek", check);
    assert_eq!(left["remaining"], 100_000 - sent);
}
