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
const ASKED: usize = 200;

/// Connections that have begun to say something, and do not go on.
fn slow_ones(address: SocketAddr, begin: &str, count: usize) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(begin.as_bytes()).unwrap();
        stream
    };
    (0..count).map(connect).collect()
}

/// Asks on a connection of its own each time, and returns how long each took.
fn ask(address: SocketAddr, request: &str, says: &str) -> Vec<Duration> {
    let once = |_| {
        let begun = Instant::now();
        let mut client = Client::connect(address);
        client.send(request);
        assert_eq!(client.0.line().expect("an answer"), says);
        begun.elapsed()
    };
    (0..ASKED).map(once).collect()
}

fn ask_grpc(address: SocketAddr) -> Vec<Duration> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut took = Vec::new();
        for _ in 0..ASKED {
            let begun = Instant::now();
            grpc::Client::connect(address).await.check(&[("user", "ann")]).await;
            took.push(begun.elapsed());
        }
        took
    })
}

#[test]
fn ordinary_clients_are_served_beside_slow_ones() {
    let count = setting("SOAK_SLOW", 300);
    let all = Everything::start(&[]);
    let (server, gateway) = (&all.server, &all.gateway);
    let check = request("/v1/check", "", CHECK);
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let ok = "HTTP/1.1 200 OK";
    let ask_all = || {
        [
            ("http", ask(server.http(), &check, ok)),
            ("resp", ask(server.resp(), "CL.THROTTLE k 1000000 1000000 1\r\n", "*5")),
            ("grpc", ask_grpc(server.grpc())),
            ("gateway", ask(gateway.address(), get, ok)),
            ("admin", ask(server.admin(), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", ok)),
        ]
    };
    let alone = ask_all();
    // A head, a command, a greeting and a body that are never finished.
    let slow = [
        slow_ones(server.http(), "POST /v1/check HTTP/1.1\r\nHo", count),
        slow_ones(server.http(), &check[..check.len() - 1], count),
        slow_ones(server.resp(), "*5\r\n$11\r\nCL.THR", count),
        slow_ones(server.grpc(), "PRI * HTTP/2.0\r\n\r\nSM", count),
        slow_ones(server.admin(), "GET /healthz HTTP/1.1\r\nHo", count.min(300)),
        slow_ones(gateway.address(), "GET / HTTP/1.1\r\nHo", count),
        slow_ones(
            gateway.address(),
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab",
            count,
        ),
    ];
    let beside = ask_all();
    for ((name, alone), (_, beside)) in alone.into_iter().zip(beside) {
        let (alone, beside) = (percentiles(alone), percentiles(beside));
        println!("{name}: alone {alone}; beside {count} slow clients of each kind {beside}");
    }
    drop(slow);
}
