//! What callers may not do to the server.

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
    wait_until("there is room again", || {
        let mut client = Client::connect(server.http());
        client.0.try_send(request("/v1/check", "", CHECK)).is_ok()
            && client.try_answer().is_ok_and(|answer| answer.status() == 200)
    });
}

#[test]
fn more_questions_than_it_can_have_under_way_are_told_to_come_later() {
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
    wait_until("it is under way, and another is one too many", || {
        let mut second = server.connect();
        let soon = std::time::Duration::from_millis(50);
        second.0.stream().set_read_timeout(Some(soon)).unwrap();
        second.send(request("/v1/check", "", &check.to_string()));
        let answer = second.try_answer();
        answer.is_ok_and(|answer| {
            answer.status() == 503 && answer.head.get("retry-after").as_deref() == Some("1")
        })
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut clients = [
            grpc::Client::connect(server.grpc()).await,
            grpc::Client::connect(server.grpc()).await,
        ];
        let [one, other] = &mut clients;
        let question = || grpc::request(&[("user", "ann")]);
        let refused = tokio::select! {
            refused = one.send(question()) => refused,
            refused = other.send(question()) => refused,
        };
        assert_eq!(refused.unwrap_err().code(), tonic::Code::Unavailable);
    });
    redis.resume();
    assert_eq!(first.answer().status(), 200, "the first is answered as if nothing had been");
}

#[test]
fn heads_and_bodies_have_their_bounds() {
    let server = Server::start(&[]);
    let many = "X-A: b\r\n".repeat(100);
    let mut client = server.connect();
    client.send(request("/v1/check", &many, CHECK));
    assert_eq!(client.answer().status(), 431);
    let long = format!("X-A: {}\r\n", "b".repeat(20_000));
    let mut client = server.connect();
    let _ = client.0.try_send(request("/v1/check", &long, CHECK));
    assert!(client.try_answer().is_ok_and(|answer| answer.status() == 431));
    assert_eq!(server.connect().ask("NONSENSE\r\n\r\n").status(), 400);
}

#[test]
fn a_flood_of_distinct_keys_stays_within_the_cap_and_is_counted() {
    let file = policy("store: { url: memory, keys_max: 10000 }\nlimits: []");
    let server = Server::start(&[path(file.path()), "--resp", "127.0.0.1:0", "--workers", "1"]);
    let flood = |from: usize| {
        let mut wire = crate::client::Wire::new(TcpStream::connect(server.resp()).unwrap());
        for batch in 0..100 {
            let keys = (0..1_000).map(|i| from + batch * 1_000 + i);
            let commands: String =
                keys.map(|i| format!("CL.THROTTLE key:{i} 15 30 60\r\n")).collect();
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

/// A request for health whose message never comes.
async fn ask_for_health_in_vain(address: SocketAddr, streams: usize) -> Vec<JoinHandle<()>> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let shaken = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = shaken.unwrap();
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
async fn strangers_take_no_place_of_those_who_may_ask() {
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
    let in_vain = ask_for_health_in_vain(server.grpc(), 100).await;
    let mut client = grpc::Client::connect(server.grpc()).await;
    for _ in 0..20 {
        let mut asked = tonic::Request::new(grpc::request(&[("user", "ann")]));
        asked.metadata_mut().insert("authorization", "Bearer alpha".parse().unwrap());
        client.send(asked).await.expect("an answer");
        tokio::task::yield_now().await;
    }
    in_vain.iter().for_each(JoinHandle::abort);
}
