//! The server and the gateway under many clients at once, of every protocol. Short by default;
//! `scripts/soak` runs them for longer with more clients, and prints their measurements.

use ratekeeper_testkit::http1 as client;
use ratekeeper_testkit::upstream as backend;
#[path = "../gateway/process.rs"]
#[allow(dead_code, reason = "the gateway's tests use more of it")]
mod gateway;
#[path = "../envoy/grpc.rs"]
#[allow(dead_code, reason = "the tests with Envoy use more of it")]
mod grpc;
#[path = "../serve/process.rs"]
#[allow(dead_code, reason = "the server's tests use more of it")]
mod server;

mod connections;
mod protocols;
mod slow;

use std::time::Duration;

use backend::Backend;
use gateway::Gateway;
use server::{Server, envoy_config, path};

/// Returns a number that `scripts/soak` may set.
fn setting(name: &str, otherwise: usize) -> usize {
    let set = std::env::var(name).ok();
    set.map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// A server with every listener, and a gateway in front of an upstream.
struct Everything {
    server: Server,
    gateway: Gateway,
    _backend: Backend,
    _config: tempfile::TempDir,
}

impl Everything {
    fn start(args: &[&str]) -> Self {
        let config = envoy_config(1_000_000_000);
        let listeners = ["--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--envoy-config"];
        let all = [&listeners[..], &[path(config.path())], args].concat();
        let backend = Backend::says("hello");
        let gateway = Gateway::before(&backend, &[args, &["--admin", "127.0.0.1:0"]].concat());
        Self { server: Server::start(&all), gateway, _backend: backend, _config: config }
    }
}

/// Formats the median and the 99th percentile.
fn percentiles(mut took: Vec<Duration>) -> String {
    took.sort();
    let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)];
    format!("p50 {:?}, p99 {:?}", at(50), at(99))
}
