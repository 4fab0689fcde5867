//! The bounds of the server: connections, requests in flight, sizes and keys.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpStream};

use bytes::Bytes;
use futures_util::stream::pending;
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ratekeeper_testkit::{RedisServer, wait_until};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::grpc;
use crate::process::{Server, envoy_config, file, path, policy, request};

const CHECK: &str = r#"{"key":"k","rate":"1000000/s"}"#;

#[test]
fn a_connection_beyond_the_limit_is_rejected_by_each_listener() {
    let config = envoy_config(100);
    let server = Server::start(&[
        "--max-connections",
        "1",
        "--resp",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--envoy-config",
        path(config.path()),
    ]);
    for (listener, rejection) in [
        (server.http(), "HTTP/1.1 503 Service Unavailable\r\n"),
        (server.resp(), "-ERR max number of clients reached\r\n"),
        (server.grpc(), ""),
    ] {
        // Which of the two is accepted first is not known.
        wait_until("one of two is rejected", || {
            [Client::connect(listener), Client::connect(listener)].iter_mut().any(|client| {
                let wait = Some(std::time::Duration::from_millis(50));
                client.0.stream().set_read_timeout(wait).unwrap();
                match rejection {
                    "" => client.0.is_closed(),
                    _ => client.0.rest().starts_with(rejection),
                }
            })
        });
    }
    wait_until("a new connection is accepted again", || {
        let mut client = Client::connect(server.http());
        client.0.try_send(request("/v1/check", "", CHECK)).is_ok()
            && client.try_response().is_ok_and(|response| response.status() == 200)
    });
}

#[test]
fn requests_above_the_in_flight_limit_are_rejected_with_retry_after() {
    let (redis, config) = (RedisServer::start(), envoy_config(100));
    let store = format!("store: {{ url: '{}', deadline: 30s }}\nlimits: []", redis.url());
    let file = policy(&store);
    let server = Server::start(&[
        path(file.path()),
        "--workers",
        "1",
        "--max-in-flight",
        "1",
        "--grpc",
        "127.0.0.1:0",
        "--envoy-config",
        path(config.path()),
    ]);
    let check = json!({"key": "k", "rate": "100/hour"});
    assert_eq!(server.post("/v1/check", check.clone()).0, 200);
    redis.pause();
    let mut first = server.connect();
    first.send(request("/v1/check", "", &check.to_string()));
    wait_until("the first is in flight, and another is rejected", || {
        let mut second = server.connect();
        let soon = std::time::Duration::from_millis(50);
        second.0.stream().set_read_timeout(Some(soon)).unwrap();
        second.send(request("/v1/check", "", &check.to_string()));
        let response = second.try_response();
        response.is_ok_and(|response| {
            response.status() == 503 && response.head.get("retry-after").as_deref() == Some("1")
        })
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut clients = [
            grpc::Client::connect(server.grpc()).await,
            grpc::Client::connect(server.grpc()).await,
        ];
        let [one, other] = &mut clients;
        let message = || grpc::request(&[("user", "ann")]);
        let rejected = tokio::select! {
            rejected = one.send(message()) => rejected,
            rejected = other.send(message()) => rejected,
        };
        assert_eq!(rejected.unwrap_err().code(), tonic::Code::Unavailable);
    });
    redis.resume();
    assert_eq!(first.response().status(), 200, "the first is not affected");
}

#[test]
fn headers_are_bounded() {
    let server = Server::start(&[]);
    let many = "X-A: b\r\n".repeat(100);
    let mut client = server.connect();
    client.send(request("/v1/check", &many, CHECK));
    assert_eq!(client.response().status(), 431);
    let long = format!("X-A: {}\r\n", "b".repeat(20_000));
    let mut client = server.connect();
    let _ = client.0.try_send(request("/v1/check", &long, CHECK));
    assert!(client.try_response().is_ok_and(|response| response.status() == 431));
    assert_eq!(server.connect().request("NONSENSE\r\n\r\n").status(), 400);
}

#[test]
fn distinct_keys_stay_within_the_bound_and_evictions_are_counted() {
    let file = policy("store: { url: memory, keys_max: 10000 }\nlimits: []");
    let server = Server::start(&[path(file.path()), "--resp", "127.0.0.1:0", "--workers", "1"]);
    let flood = |from: usize| {
        let mut wire = crate::client::Wire::new(TcpStream::connect(server.resp()).unwrap());
        for batch in 0..100 {
            let keys = (0..1_000).map(|i| from + batch * 1_000 + i);
            // None expires while the test runs, however slow the machine is.
            let commands: String =
                keys.map(|i| format!("CL.THROTTLE key:{i} 15 30 86400\r\n")).collect();
            wire.send(commands);
            for _ in 0..6_000 {
                wire.line().unwrap();
            }
        }
    };
    flood(0);
    let number = |name: &str| -> u64 {
        let page = server.metrics();
        let line = page.lines().find(|line| line.starts_with(name)).expect("a metric");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let bytes = number("ratekeeper_memory_bytes ");
    flood(1_000_000);
    assert_eq!(number("ratekeeper_memory_bytes "), bytes, "after 100,000 more keys");
    assert!(number("ratekeeper_memory_keys ") <= 10_000 * 2);
    assert!(number("ratekeeper_memory_evictions_total ") > 100_000);
}

/// Starts health checks whose message never arrives.
async fn start_health_checks(address: SocketAddr, streams: usize) -> Vec<JoinHandle<()>> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let connected = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = connected.unwrap();
    let mut tasks = vec![tokio::spawn(async { drop(connection.await) })];
    for _ in 0..streams {
        let mut sender = sender.clone();
        let endless = StreamBody::new(pending::<Result<Frame<Bytes>, Infallible>>());
        let request = Request::post("http://a/grpc.health.v1.Health/Check");
        let request = request.header("content-type", "application/grpc").body(endless).unwrap();
        tasks.push(tokio::spawn(async move { drop(sender.send_request(request).await) }));
    }
    tasks
}

#[tokio::test]
async fn requests_without_a_token_do_not_use_the_in_flight_limit() {
    let (tokens, config) = (file("alpha\n"), envoy_config(100));
    let (tokens, config) = (path(tokens.path()), path(config.path()));
    let server = Server::start(&[
        "--tokens",
        tokens,
        "--workers",
        "1",
        "--max-in-flight",
        "1",
        "--grpc",
        "127.0.0.1:0",
        "--envoy-config",
        config,
    ]);
    let health_checks = start_health_checks(server.grpc(), 100).await;
    let mut client = grpc::Client::connect(server.grpc()).await;
    for _ in 0..20 {
        let mut request = tonic::Request::new(grpc::request(&[("user", "ann")]));
        request.metadata_mut().insert("authorization", "Bearer alpha".parse().unwrap());
        client.send(request).await.expect("a response");
        tokio::task::yield_now().await;
    }
    health_checks.iter().for_each(JoinHandle::abort);
}
