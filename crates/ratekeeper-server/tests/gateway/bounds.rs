//! The gateway's limits on connections, requests in flight, streams and file descriptors.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratekeeper_testkit::{ANY_PORT, Listener, Server, ServerBuilder, wait_until};

use crate::backend::{Backend, respond};
use crate::client::{Client, Response};
use crate::process::Gateway;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Starts an upstream that responds to one request for each message that the test sends.
fn held_upstream() -> (Sender<()>, Backend) {
    let (release, held) = channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let backend = Backend::start(move |_, wire| {
        let is_released = held.lock().unwrap().recv().is_ok();
        is_released && respond(wire, "held")
    });
    (release, backend)
}

fn is_overloaded(response: &Response) -> bool {
    let retry_after = response.head.get("retry-after");
    response.status() == 503
        && response.body.contains("OVERLOADED")
        && retry_after.as_deref() == Some("1")
}

#[test]
fn a_request_above_max_in_flight_is_shed() {
    let (release, backend) = held_upstream();
    let args = ["--max-in-flight", "1", "--admin", "127.0.0.1:0"];
    let gateway = Gateway::before(&backend, &args);
    let mut first = gateway.connect();
    first.send(GET);
    wait_until("the first is in flight", || backend.requests() == 1);
    let mut second = gateway.connect();
    for _ in 0..2 {
        let response = second.get("/");
        assert!(is_overloaded(&response), "{}", response.body);
    }
    let metrics = gateway.metrics();
    assert!(
        metrics.contains("ratekeeper_gateway_rejected_total{reason=\"in_flight\"} 2\n"),
        "{metrics}"
    );
    assert!(metrics.contains("ratekeeper_gateway_requests_in_flight 1\n"), "{metrics}");
    release.send(()).unwrap();
    assert_eq!(first.response().status(), 200);
    release.send(()).unwrap();
    // The first request leaves the in-flight count shortly after its response is sent.
    wait_until("requests are accepted again", || second.get("/").status() == 200);
    assert_eq!(backend.requests(), 2);
}

#[test]
fn a_request_above_max_upstream_connections_is_shed() {
    let (release, backend) = held_upstream();
    let args = ["--max-upstream-connections", "1", "--admin", "127.0.0.1:0"];
    let gateway = Gateway::before(&backend, &args);
    let mut first = gateway.connect();
    first.send(GET);
    wait_until("the first is in flight", || backend.requests() == 1);
    let response = gateway.connect().get("/");
    assert!(is_overloaded(&response), "{}", response.body);
    let metrics = gateway.metrics();
    let rejected = "ratekeeper_gateway_rejected_total{reason=\"upstream_connections\"} 1\n";
    assert!(metrics.contains(rejected), "{metrics}");
    assert!(!gateway.log().contains("request failed"), "the upstream has not failed");
    release.send(()).unwrap();
    assert_eq!(first.response().status(), 200);
    release.send(()).unwrap();
    wait_until("requests are accepted again", || gateway.connect().get("/").status() == 200);
}

#[test]
fn another_upstream_is_used_when_one_is_at_its_connection_limit() {
    let (_release, busy) = held_upstream();
    let idle = Backend::says("idle");
    let gateway = Gateway::before_all(
        &[&busy, &idle],
        &["--workers", "1", "--max-upstream-connections", "1"],
    );
    let waiting = gateway.connect();
    waiting.send(GET);
    // The first upstream is not known; a second request reaches the held one if the first did not.
    let second = gateway.connect();
    if busy.requests() == 0 {
        second.send(GET);
    }
    wait_until("one is held", || busy.requests() == 1);
    for _ in 0..4 {
        assert_eq!(gateway.connect().get("/").body, "idle");
    }
}

#[test]
fn a_tunnel_counts_as_a_connection_to_its_upstream() {
    let backend = Backend::start(|head, wire| {
        if head.get("upgrade").is_none() {
            return respond(wire, "hello");
        }
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        wire.send(switch);
        wire.is_closed();
        false
    });
    let gateway = Gateway::before(&backend, &["--max-upstream-connections", "1"]);
    let mut tunnel = gateway.connect();
    tunnel.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(tunnel.0.head().status(), 101);
    assert!(is_overloaded(&gateway.connect().get("/")));
    drop(tunnel);
    wait_until("the tunnel is closed", || gateway.connect().get("/").status() == 200);
}

#[test]
fn max_streams_is_sent_in_the_http2_settings() {
    let gateway = Gateway::before(&Backend::says("hello"), &["--max-streams", "7"]);
    let mut client = gateway.connect();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    client.send([&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat());
    let head = client.0.exactly(9);
    assert_eq!(head[3], 4, "the first frame has the settings");
    let length = usize::from(head[1]) * 256 + usize::from(head[2]);
    let received = client.0.exactly(length);
    let is_streams = |setting: &&[u8]| setting[..2] == [0, 3];
    assert_eq!(received.chunks(6).find(is_streams), Some(&[0, 3, 0, 0, 0, 7][..]));
}

/// Returns frames that open HTTP/2 streams and reset each at once.
fn opened_and_reset(streams: u32) -> Vec<u8> {
    // GET http://a/; only the host is not in HPACK's static table.
    let headers = [0x82, 0x86, 0x84, 0x41, 1, b'a'];
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut bytes = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
    for id in (0..streams).map(|i| (2 * i + 1).to_be_bytes()) {
        bytes.extend([0, 0, headers.len() as u8, 1, 5]);
        bytes.extend([&id[..], &headers].concat());
        bytes.extend([0, 0, 4, 3, 0]);
        bytes.extend([&id[..], &[0, 0, 0, 8]].concat());
    }
    bytes
}

#[test]
fn rapid_resets_do_not_flood_the_log() {
    let gateway = Gateway::before(&Backend::says("hello"), &[]);
    for _ in 0..50 {
        let mut client = gateway.connect();
        // The gateway may close the connection before everything is sent.
        let _ = client.0.try_send(opened_and_reset(500));
        client.0.rest();
        assert!(client.0.is_closed());
    }
    gateway.wait_for_log("WARN");
    let warnings = gateway.log().matches("WARN").count();
    assert!(warnings < 10, "{warnings} warnings");
    assert_eq!(gateway.connect().get("/").status(), 200);
}

/// Exhausts the file descriptors for connections, and asserts that the health endpoints respond.
fn assert_healthy_without_descriptors(address: SocketAddr, program: &Server, rejected: &str) {
    let all: Vec<_> = (0..400).map(|_| TcpStream::connect(address).unwrap()).collect();
    wait_until("some are rejected", || {
        let metrics = program.metrics();
        let line = metrics.lines().find(|line| line.starts_with(rejected)).expect("a metric");
        !line.ends_with(" 0")
    });
    assert_eq!(Client::connect(program.admin()).get("/healthz").status(), 200);
    assert_eq!(Client::connect(program.admin()).get("/readyz").status(), 200);
    program.wait_for_log("no file descriptors are left");
    drop(all);
}

#[test]
fn the_gateway_stays_healthy_without_file_descriptors() {
    let backend = Backend::says("hello");
    let upstream = backend.url();
    let args = ["--upstream", &upstream, "--admin", ANY_PORT, "--workers", "2"];
    let gateway = Gateway::builder().after_script("ulimit -n 256").args(args).start();
    let address = gateway.gateway();
    let rejected = "ratekeeper_gateway_rejected_total{reason=\"file_descriptors\"}";
    assert_healthy_without_descriptors(address, &gateway, rejected);
    wait_until("it serves again", || {
        let mut client = Client::connect(address);
        client.0.stream().set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        client.0.try_send(GET).is_ok() && client.try_response().is_ok()
    });
}

#[test]
fn the_decision_server_stays_healthy_without_file_descriptors() {
    let server = ServerBuilder::serve(env!("CARGO_BIN_EXE_ratekeeper"))
        .listen(&[Listener::Http, Listener::Admin])
        .args(["--workers", "2"])
        .after_script("ulimit -n 256")
        .start();
    let address = server.http();
    let rejected = "ratekeeper_connections_rejected_total{listener=\"http\"}";
    assert_healthy_without_descriptors(address, &server, rejected);
    wait_until("it serves again", || {
        let mut client = Client::connect(address);
        client.0.stream().set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        client.0.try_send("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").is_ok()
            && client.try_response().is_ok()
    });
}

#[test]
fn an_unwritable_access_log_is_logged_once_and_counted() {
    let backend = Backend::says("hello");
    let upstream = backend.url();
    let args = ["--upstream", &upstream, "--admin", ANY_PORT, "--access-log", "text"];
    // A full device, and a pipe without a reader.
    for shell in ["exec >/dev/full", "exec > >(true)"] {
        let gateway = Gateway::builder().after_script(shell).args(args).start();
        let address = gateway.gateway();
        let mut sent = 0;
        wait_until("lines are lost", || {
            sent += 1;
            assert_eq!(Client::connect(address).get("/").status(), 200);
            let lost = "ratekeeper_gateway_access_log_lost_total{reason=\"unwritable\"} 0";
            !gateway.metrics().contains(lost)
        });
        gateway.wait_for_log("access log cannot be written");
        wait_until("every line is counted", || {
            let lost = "ratekeeper_gateway_access_log_lost_total{reason=\"unwritable\"}";
            gateway.metrics().contains(&format!("{lost} {sent}\n"))
        });
        assert_eq!(gateway.log().matches("access log cannot be written").count(), 1);
    }
}
