//! Ordinary clients beside slow ones.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::client::Client;
use crate::server::request;
use crate::{Everything, grpc, percentiles, setting};

const CHECK: &str = r#"{"key":"k","rate":"1000000/s"}"#;
const REQUESTS: usize = 200;

/// Opens connections that send the beginning of a request, and nothing more.
fn slow_clients(address: SocketAddr, begin: &str, count: usize) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(begin.as_bytes()).unwrap();
        stream
    };
    (0..count).map(connect).collect()
}

/// Sends each request on a new connection, and returns their latencies.
fn latencies(address: SocketAddr, request: &str, response: &str) -> Vec<Duration> {
    let once = |_| {
        let started = Instant::now();
        let mut client = Client::connect(address);
        client.send(request);
        assert_eq!(client.0.line().expect("a response"), response);
        started.elapsed()
    };
    (0..REQUESTS).map(once).collect()
}

fn grpc_latencies(address: SocketAddr) -> Vec<Duration> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut took = Vec::new();
        for _ in 0..REQUESTS {
            let started = Instant::now();
            grpc::Client::connect(address).await.check(&[("user", "ann")]).await;
            took.push(started.elapsed());
        }
        took
    })
}

#[test]
fn ordinary_clients_are_served_beside_slow_clients() {
    let count = setting("SOAK_SLOW", 300);
    let all = Everything::start(&[]);
    let (server, gateway) = (&all.server, &all.gateway);
    let check = request("/v1/check", "", CHECK);
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let ok = "HTTP/1.1 200 OK";
    let measure = || {
        [
            ("http", latencies(server.http(), &check, ok)),
            ("resp", latencies(server.resp(), "CL.THROTTLE k 1000000 1000000 1\r\n", "*5")),
            ("grpc", grpc_latencies(server.grpc())),
            ("gateway", latencies(gateway.address(), get, ok)),
            ("admin", latencies(server.admin(), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", ok)),
        ]
    };
    let alone = measure();
    // Incomplete heads, commands, HTTP/2 prefaces and bodies.
    let slow = [
        slow_clients(server.http(), "POST /v1/check HTTP/1.1\r\nHo", count),
        slow_clients(server.http(), &check[..check.len() - 1], count),
        slow_clients(server.resp(), "*5\r\n$11\r\nCL.THR", count),
        slow_clients(server.grpc(), "PRI * HTTP/2.0\r\n\r\nSM", count),
        slow_clients(server.admin(), "GET /healthz HTTP/1.1\r\nHo", count.min(300)),
        slow_clients(gateway.address(), "GET / HTTP/1.1\r\nHo", count),
        slow_clients(
            gateway.address(),
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab",
            count,
        ),
    ];
    let beside = measure();
    for ((name, alone), (_, beside)) in alone.into_iter().zip(beside) {
        let (alone, beside) = (percentiles(alone), percentiles(beside));
        println!("{name}: alone {alone}; beside {count} slow clients of each kind {beside}");
    }
    drop(slow);
}
