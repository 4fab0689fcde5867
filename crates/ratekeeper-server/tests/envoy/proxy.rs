//! A real Envoy in front of a real upstream, with this server as its rate limit service.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use ratekeeper_testkit::{Envoy, EnvoySetup, wait_until};

use crate::backend::{Backend, unused_address};
use crate::client::{Client, Response};
use crate::process::Server;

const FILE: &str = "
domain: test
descriptors:
  - { key: user, rate_limit: { name: users, unit: year, requests_per_unit: 2 } }
  - { key: all, value: requests, rate_limit: { unit: year, requests_per_unit: 100000 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
";

/// A descriptor for each of these headers that is present, one that is always sent, and one with a limit of
/// its own.
const RATE_LIMITS: &str = "[
  { actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }] },
  { actions: [{ request_headers: { header_name: x-shadow, descriptor_key: shadow } }] },
  { actions: [{ generic_key: { descriptor_key: all, descriptor_value: requests } }] },
  { actions: [{ request_headers: { header_name: x-own, descriptor_key: own } }],
    limit: { dynamic_metadata: { metadata_key: { key: ratekeeper.limits, path: [{ key: own }] } } } },
]";

fn envoy(upstream: &Backend, service: SocketAddr, failure_mode_deny: bool) -> Envoy {
    Envoy::start(&EnvoySetup {
        upstream: upstream.address(),
        services: vec![service],
        domain: "test",
        rate_limits: RATE_LIMITS,
        failure_mode_deny,
    })
}

fn get(envoy: &Envoy, headers: &str) -> Response {
    let mut client = Client::connect(envoy.address());
    client.request(&format!("GET / HTTP/1.1\r\nhost: a\r\n{headers}\r\n"))
}

#[test]
fn callers_are_limited_and_get_headers() {
    let (upstream, server) = (Backend::says("hello"), Server::start(FILE));
    let envoy = envoy(&upstream, server.address(), true);
    let first = get(&envoy, "x-user: ann\r\n");
    assert_eq!((first.status(), first.body.as_str()), (200, "hello"));
    assert_eq!(first.head.get("x-ratelimit-remaining").as_deref(), Some("1"));
    assert_eq!(get(&envoy, "x-user: ann\r\n").status(), 200);
    let denied = get(&envoy, "x-user: ann\r\n");
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.head.get("x-ratelimit-remaining").as_deref(), Some("0"));
    assert!(
        denied.head.get("ratelimit").is_some_and(|value| value.starts_with("\"users\";r=0;t="))
    );
    assert!(denied.head.get("retry-after").is_some());
    assert_eq!(get(&envoy, "x-user: bob\r\n").status(), 200);
    assert_eq!(get(&envoy, "").status(), 200);
    assert_eq!(upstream.requests(), 4);
}

#[test]
fn a_limit_in_shadow_mode_denies_nothing() {
    let (upstream, server) = (Backend::says("hello"), Server::start(FILE));
    let envoy = envoy(&upstream, server.address(), true);
    for _ in 0..3 {
        assert_eq!(get(&envoy, "x-shadow: 1\r\n").status(), 200);
    }
}

#[test]
fn a_route_brings_its_own_limit() {
    let (upstream, server) = (Backend::says("hello"), Server::start(FILE));
    let envoy = envoy(&upstream, server.address(), true);
    let statuses: Vec<_> = (0..3).map(|_| get(&envoy, "x-own: 1\r\n").status()).collect();
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn without_a_server_envoy_applies_its_failure_mode() {
    let upstream = Backend::says("hello");
    assert_eq!(get(&envoy(&upstream, unused_address(), false), "x-user: ann\r\n").status(), 200);
    assert_eq!(get(&envoy(&upstream, unused_address(), true), "x-user: ann\r\n").status(), 500);
}

/// Envoy treats an invalid request as if the server had failed, and does not let it pass.
#[test]
fn an_invalid_request_does_not_pass() {
    let (upstream, server) = (Backend::says("hello"), Server::start(FILE));
    let setup = EnvoySetup {
        upstream: upstream.address(),
        services: vec![server.address()],
        domain: "test",
        rate_limits: "[
          { actions: [{ generic_key: { descriptor_key: own, descriptor_value: same } }],
            limit: { dynamic_metadata: { metadata_key: { key: ratekeeper.limits, path: [{ key: own }] } } } },
        ]",
        failure_mode_deny: true,
    };
    let many = setup.rate_limits.trim_matches(['[', ']']).repeat(257);
    let setup =
        EnvoySetup { rate_limits: Box::leak(format!("[{many}]").into_boxed_str()), ..setup };
    assert_eq!(get(&Envoy::start(&setup), "").status(), 500);
}

/// Sends requests through Envoy while `action` runs; none may fail.
pub(crate) fn under_traffic(envoy: &Envoy, action: impl FnOnce(&dyn Fn())) {
    let (done, responses) = (AtomicBool::new(false), AtomicUsize::new(0));
    let more_traffic = || {
        let before = responses.load(Ordering::Relaxed);
        wait_until("there is traffic", || responses.load(Ordering::Relaxed) > before + 200);
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(envoy.address());
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(client.get("/").status(), 200);
                    responses.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        more_traffic();
        action(&more_traffic);
        more_traffic();
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_drain_under_traffic_fails_no_request() {
    let (upstream, mut server) = (Backend::says("hello"), Server::start(FILE));
    // Requests pass while no server is left.
    let envoy = envoy(&upstream, server.address(), false);
    let mut next = None;
    under_traffic(&envoy, |_| {
        server.signal("-TERM");
        assert!(server.wait().success());
        // Another server takes over at the same address.
        next = Some(Server::start_at(&server.address().to_string(), FILE));
    });
}

/// With a second server, and an Envoy that retries there, no request fails when one server ends.
fn fails_no_request_on(signal: &str) {
    let (upstream, other) = (Backend::says("hello"), Server::start(FILE));
    let mut server = Server::start(FILE);
    let envoy = Envoy::start(&EnvoySetup {
        upstream: upstream.address(),
        services: vec![server.address(), other.address()],
        domain: "test",
        rate_limits: RATE_LIMITS,
        failure_mode_deny: true,
    });
    let mut next = None;
    under_traffic(&envoy, |more_traffic| {
        server.signal(signal);
        server.wait();
        more_traffic();
        next = Some(Server::start_at(&server.address().to_string(), FILE));
    });
}

#[test]
fn with_two_servers_a_drain_fails_no_request() {
    fails_no_request_on("-TERM");
}

#[test]
fn with_two_servers_a_crash_fails_no_request() {
    fails_no_request_on("-KILL");
}
