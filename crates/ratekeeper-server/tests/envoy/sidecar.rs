//! The Envoy of `deploy/kubernetes/envoy-sidecar.yaml`, unchanged except for its addresses.

use std::net::SocketAddr;

use ratekeeper_testkit::Envoy;

use crate::backend::Backend;
use crate::client::{Client, Response};
use crate::manifests::{RATEKEEPER, SIDECAR, file};
use crate::process::Server;
use crate::proxy::under_traffic;

fn config() -> String {
    file(SIDECAR, "shop-envoy", "envoy.yaml")
}

fn server() -> Server {
    Server::start(&file(RATEKEEPER, "ratekeeper-envoy", "shop.yaml"))
}

/// Starts Envoy with the addresses of the test, and with all servers in place of the service's name.
fn start(app: &Backend, servers: &[&Server]) -> Envoy {
    let socket =
        |address: SocketAddr| format!("address: {}, port_value: {}", address.ip(), address.port());
    let name = "address: ratekeeper-grpc, port_value: 8081";
    let endpoint = |server: &&Server| {
        let address = socket(server.address());
        format!("- endpoint: {{ address: {{ socket_address: {{ {address} }} }} }}")
    };
    let endpoints: Vec<_> = servers.iter().map(endpoint).collect();
    Envoy::start_with(|listen, admin| {
        let swap = |text: &str, from: &str, to: &str| {
            assert!(text.contains(from), "the configuration has no {from}");
            text.replace(from, to)
        };
        let text = swap(&config(), "address: 0.0.0.0, port_value: 10000", &socket(listen));
        let text = swap(&text, "address: 127.0.0.1, port_value: 9901", &socket(admin));
        let text = swap(&text, "address: 127.0.0.1, port_value: 3000", &socket(app.address()));
        let line = text.lines().find(|line| line.contains(name)).expect("an endpoint");
        let indent = " ".repeat(line.len() - line.trim_start().len());
        let each = endpoints.iter().map(|endpoint| format!("{indent}{endpoint}"));
        swap(&text, line, &each.collect::<Vec<_>>().join("\n"))
    })
}

fn get(envoy: &Envoy, user: &str) -> Response {
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n");
    Client::connect(envoy.address()).request(&request)
}

#[test]
fn envoy_accepts_the_configuration() {
    Envoy::validate(&config());
}

#[test]
fn users_are_limited_by_the_file_of_the_manifest() {
    let (app, server) = (Backend::says("hello"), server());
    let envoy = start(&app, &[&server]);
    let statuses: Vec<_> = (0..101).map(|_| get(&envoy, "ann").status()).collect();
    assert!(statuses[..100].iter().all(|status| *status == 200), "{statuses:?}");
    // A minute may have ended meanwhile.
    let limited = || (0..101).any(|_| get(&envoy, "ann").status() == 429);
    assert!(statuses[100] == 429 || limited());
    assert_eq!(get(&envoy, "bob").status(), 200);
}

#[test]
fn a_rolling_restart_fails_no_request() {
    let (app, other) = (Backend::says("hello"), server());
    let mut first = server();
    let envoy = start(&app, &[&first, &other]);
    under_traffic(&envoy, |some_more| {
        first.signal("-TERM");
        assert!(first.wait().success());
        some_more();
    });
}
