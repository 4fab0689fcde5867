//! Load over all protocols at once.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::client::{Client, Wire};
use crate::server::request;
use crate::{Everything, grpc, setting};

/// The quota of the key that all protocols share.
const QUOTA: u64 = 1_000;

#[derive(Default)]
struct Tally {
    allowed: AtomicU64,
    denied: AtomicU64,
}

impl Tally {
    fn count(&self, is_allowed: bool) {
        let counter = if is_allowed { &self.allowed } else { &self.denied };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::Relaxed)
    }

    fn total(&self) -> u64 {
        self.allowed() + self.denied.load(Ordering::Relaxed)
    }
}

fn over_http(address: SocketAddr, until: Instant, tally: &Tally) {
    let body = format!(r#"{{"key":"all","rate":"1/day burst {QUOTA}"}}"#);
    let check = request("/v1/check", "", &body);
    let mut client = Client::connect(address);
    while Instant::now() < until {
        match client.request(&check).status() {
            status @ (200 | 429) => tally.count(status == 200),
            status => panic!("unexpected status {status}"),
        }
    }
}

fn over_resp(address: SocketAddr, until: Instant, tally: &Tally) {
    let mut wire = Wire::new(TcpStream::connect(address).unwrap());
    let burst = QUOTA - 1;
    while Instant::now() < until {
        wire.send(format!("CL.THROTTLE all {burst} 1 86400\r\n").repeat(10));
        for _ in 0..10 {
            let reply: Vec<_> = (0..6).map(|_| wire.line().unwrap()).collect();
            assert_eq!(reply[0], "*5", "{reply:?}");
            tally.count(reply[1] == ":0");
        }
    }
}

fn over_gateway(address: SocketAddr, until: Instant, tally: &Tally) {
    let mut client = Client::connect(address);
    while Instant::now() < until {
        let response = client.get("/");
        assert_eq!((response.status(), response.body.as_str()), (200, "hello"));
        tally.count(true);
    }
}

async fn over_grpc(address: SocketAddr, until: Instant, tally: &Tally) {
    let mut client = grpc::Client::connect(address).await;
    while Instant::now() < until {
        assert!(!client.is_over(&[("user", "ann")]).await);
        tally.count(true);
    }
}

async fn over_http2(address: SocketAddr, until: Instant, tally: &Tally) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let handshake = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.unwrap();
    let connection = tokio::spawn(connection);
    while Instant::now() < until {
        let get = Request::get("http://a/").body(Full::<Bytes>::default()).unwrap();
        let response = sender.send_request(get).await.expect("a response");
        assert_eq!(response.status(), 200);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
        tally.count(true);
    }
    drop(sender);
    connection.abort();
}

#[test]
fn all_protocols_at_once_serve_every_request_and_share_one_quota() {
    let span = Duration::from_secs(setting("SOAK_SECONDS", 5) as u64);
    let all = Everything::start(&[]);
    let (server, gateway) = (&all.server, &all.gateway);
    let until = Instant::now() + span;
    let tallies: [Tally; 5] = Default::default();
    let [http, resp, of_gateway, of_grpc, http2] = &tallies;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| over_http(server.http(), until, http));
            scope.spawn(|| over_resp(server.resp(), until, resp));
            scope.spawn(|| over_gateway(gateway.address(), until, of_gateway));
        }
        scope.spawn(|| {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::join!(
                    over_grpc(server.grpc(), until, of_grpc),
                    over_grpc(server.grpc(), until, of_grpc),
                    over_http2(gateway.address(), until, http2),
                );
            });
        });
    });
    for (name, tally) in
        ["http", "resp", "gateway", "grpc", "gateway over HTTP/2"].iter().zip(&tallies)
    {
        println!("{name}: {} responses, {} allowed", tally.total(), tally.allowed());
        assert!(tally.total() > 0, "no responses over {name}");
    }
    // The same key and rate share one count across protocols.
    let (total, allowed) = (http.total() + resp.total(), http.allowed() + resp.allowed());
    assert_eq!(allowed, QUOTA.min(total), "exactly the quota");
    assert_eq!(Client::connect(server.admin()).get("/healthz").status(), 200);
}
