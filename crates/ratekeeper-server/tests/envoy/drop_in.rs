//! A real Envoy whose rate limit service is configured by the variables and files of envoyproxy/ratelimit.

use std::net::SocketAddr;
use std::path::Path;

use ratekeeper_testkit::Envoy;

use crate::backend::Backend;
use crate::client::{Client, Response};
use crate::docs;
use crate::process::Server;

fn socket(address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!("{{ socket_address: {{ address: \"{ip}\", port_value: {port} }} }}")
}

fn pipe(path: &Path) -> String {
    format!("{{ pipe: {{ path: \"{}\" }} }}", path.display())
}

fn envoy(upstream: &Backend, service: &str) -> Envoy {
    Envoy::start_with(|listen, admin| {
        let values = [
            ("@LISTEN@", socket(listen)),
            ("@ADMIN@", socket(admin)),
            ("@UPSTREAM@", socket(upstream.address())),
            ("@SERVICE@", service.to_string()),
        ];
        let fill = |text: String, (name, value): &(&str, String)| text.replace(name, value);
        values.iter().fold(include_str!("peer.yaml").to_string(), fill)
    })
}

fn get(envoy: &Envoy, path: &str, headers: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
    Client::connect(envoy.address()).request(&request)
}

/// Quotas that last longer than a test.
fn quotas() -> String {
    docs::block("domain: services").replace("unit: minute", "unit: year")
}

/// `integration-test/scripts/quota.sh`, and the service that Envoy would route to.
#[test]
fn requests_go_to_the_service_that_has_quota_left() {
    let upstream = Backend::echo();
    let server = Server::start_by_environment(&quotas(), &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let envoy = envoy(&upstream, &socket(server.address()));
    let service = |response: &Response| {
        let line = response.body.lines().find_map(|line| line.strip_prefix("x-service: "));
        line.unwrap_or_default().to_string()
    };
    let [first, second, third] = [(); 3].map(|()| get(&envoy, "/quota", ""));
    assert_eq!([&first, &second, &third].map(Response::status), [200, 200, 429]);
    assert_eq!(service(&first), "service_1", "{}", first.body);
    assert_eq!(service(&second), "service_2", "the first one is used up: {}", second.body);
    assert_eq!(upstream.requests(), 2);
}

#[test]
fn headers_have_the_names_of_the_variables_and_the_socket_is_that_of_grpc_uds() {
    let (upstream, folder) = (Backend::says("hello"), tempfile::tempdir().unwrap());
    let path = folder.path().join("grpc.sock");
    let file = quotas() + "  - { key: user, rate_limit: { unit: year, requests_per_unit: 1 } }\n";
    let variables = [
        ("GRPC_UDS", path.to_str().unwrap()),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Limit"),
    ];
    let mut server = Server::start_by_environment(&file, &variables);
    assert!(server.log().contains(&format!("envoy: unix:{} (3 limits)", path.display())));
    let envoy = envoy(&upstream, &pipe(&path));
    for (status, remaining) in [(200, "0"), (429, "0")] {
        let response = get(&envoy, "/", "x-user: ann\r\n");
        assert_eq!(response.status(), status);
        assert_eq!(response.head.get("x-limit").as_deref(), Some("1"));
        assert_eq!(response.head.get("ratelimit-remaining").as_deref(), Some(remaining));
        let reset = response.head.get("ratelimit-reset").and_then(|secs| secs.parse::<u64>().ok());
        assert!(reset.is_some_and(|secs| (1..=365 * 86_400).contains(&secs)), "{reset:?}");
    }
    drop(envoy);
    server.signal("-TERM");
    assert!(server.wait().success());
    assert!(!path.exists(), "the socket is removed");
}

#[test]
fn in_shadow_mode_envoy_refuses_nothing() {
    let upstream = Backend::says("hello");
    let server = Server::start_by_environment(&quotas(), &[("SHADOW_MODE", "true")]);
    let envoy = envoy(&upstream, &socket(server.address()));
    assert!((0..5).all(|_| get(&envoy, "/quota", "").status() == 200));
}
