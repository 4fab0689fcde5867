//! Dependencies of a policy in the gateway: of routes, and of each upstream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use ratekeeper_testkit::wait_until;

use crate::backend::{Backend, respond};
use crate::client::Response;
use crate::limits::{PolicyFile, admin, gateway, statuses};
use crate::process::Gateway;
use crate::upstreams::failing_upstream;

const STOCK: &str = "GET /stock HTTP/1.1\r\nHost: a\r\n\r\n";
const OTHER: &str = "GET /other HTTP/1.1\r\nHost: a\r\n\r\n";

#[track_caller]
fn assert_rejected(response: &Response, status: u16, code: &str, dependency: &str) {
    assert_eq!(response.status(), status, "{}", response.body);
    let retry_after = response.head.get("retry-after").expect("a Retry-After");
    assert!(retry_after.parse::<u64>().unwrap() >= 1, "{retry_after}");
    let has =
        |field: &str, value: &str| response.body.contains(&format!("\"{field}\":\"{value}\""));
    assert!(has("code", code) && has("dependency", dependency), "{}", response.body);
}

/// Starts an upstream in which `/stock` fails while the switch is on.
fn failing_stock() -> (Backend, Arc<AtomicBool>) {
    let is_failing = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&is_failing);
    let backend = Backend::start(move |head, wire| {
        _ = wire.try_body(&head);
        if head.target() == "/stock" && failing.load(Ordering::SeqCst) {
            wire.try_send("HTTP/1.1 500 Failing\r\nContent-Length: 0\r\n\r\n").is_ok()
        } else {
            respond(wire, "well")
        }
    });
    (backend, is_failing)
}

#[test]
fn an_open_breaker_of_a_route_rejects_only_that_route_and_closes_after_probes() {
    let (backend, is_failing) = failing_stock();
    let policy = PolicyFile::new(
        "dependencies:\n  \
           inventory: { match: { path: /stock }, breaker: { consecutive_failures: 3, wait: 1s, probes: 2 } }\n\
         limits: []",
    );
    let gateway = gateway(&backend, &policy, &["--access-log", "json"]);
    let mut client = gateway.connect();
    assert_eq!(statuses(&mut client, STOCK, 3), [500; 3]);
    assert_rejected(&client.request(STOCK), 503, "CIRCUIT_OPEN", "inventory");
    assert_eq!(statuses(&mut client, OTHER, 3), [200; 3]);
    assert_eq!(backend.requests(), 6, "a rejected request is not forwarded");
    wait_until("the log names the dependency", || gateway.output().contains("\"inventory\""));
    let metrics = admin(&gateway, "GET /metrics").body;
    let open = "ratekeeper_dependency_breaker_state{dependency=\"inventory\",state=\"open\"} 1";
    assert!(metrics.contains(open), "{metrics}");
    is_failing.store(false, Ordering::SeqCst);
    wait_until("probes close it", || {
        client.request(STOCK);
        gateway.log().contains("to=Closed")
    });
    assert_eq!(statuses(&mut client, STOCK, 10), [200; 10]);
}

#[test]
fn the_rate_of_a_dependency_is_a_429_that_names_it() {
    let backend = Backend::says("hello");
    let policy = PolicyFile::new(
        "dependencies: { inventory: { match: { path: /stock }, rate: 2/hour burst 2 } }\nlimits: []",
    );
    let gateway = gateway(&backend, &policy, &[]);
    let mut client = gateway.connect();
    assert_eq!(statuses(&mut client, STOCK, 2), [200; 2]);
    assert_rejected(&client.request(STOCK), 429, "RATE_LIMITED", "inventory");
    assert_eq!(client.request(OTHER).status(), 200);
}

/// Starts an upstream that announces each request to `/stock`, and responds when it is released.
fn held_upstream() -> (Backend, Receiver<()>, Sender<()>) {
    let (arrived, arrivals) = channel();
    let (release, released) = channel::<()>();
    let (arrived, released) = (Mutex::new(arrived), Mutex::new(released));
    let backend = Backend::start(move |head, wire| {
        _ = wire.try_body(&head);
        if head.target() == "/stock" {
            arrived.lock().unwrap().send(()).unwrap();
            _ = released.lock().unwrap().recv();
        }
        respond(wire, "hello")
    });
    (backend, arrivals, release)
}

#[test]
fn calls_beyond_the_concurrency_wait_in_the_queue_and_then_get_503() {
    let (backend, arrivals, release) = held_upstream();
    let policy = PolicyFile::new(
        "dependencies:\n  \
           inventory: { match: { path: /stock }, concurrency: { max: 1, queue: { max: 1, wait: 1m } } }\n\
         limits: []",
    );
    let gateway = gateway(&backend, &policy, &[]);
    thread::scope(|scope| {
        let first = scope.spawn(|| gateway.connect().request(STOCK));
        arrivals.recv().unwrap();
        let second = scope.spawn(|| gateway.connect().request(STOCK));
        let waits = "ratekeeper_dependency_queue_length{dependency=\"inventory\"} 1";
        wait_until("one waits", || admin(&gateway, "GET /metrics").body.contains(waits));
        assert_rejected(&gateway.connect().request(STOCK), 503, "BULKHEAD_FULL", "inventory");
        assert_eq!(gateway.connect().request(OTHER).status(), 200, "other routes are unaffected");
        release.send(()).unwrap();
        arrivals.recv().unwrap();
        release.send(()).unwrap();
        assert_eq!((first.join().unwrap().status(), second.join().unwrap().status()), (200, 200));
    });
}

#[test]
fn a_call_that_waits_too_long_gets_503() {
    let (backend, arrivals, release) = held_upstream();
    let policy = PolicyFile::new(
        "dependencies:\n  \
           inventory: { match: { path: /stock }, concurrency: { max: 1, queue: { max: 1, wait: 10ms } } }\n\
         limits: []",
    );
    let gateway = gateway(&backend, &policy, &[]);
    thread::scope(|scope| {
        let first = scope.spawn(|| gateway.connect().request(STOCK));
        arrivals.recv().unwrap();
        assert_rejected(&gateway.connect().request(STOCK), 503, "BULKHEAD_TIMEOUT", "inventory");
        release.send(()).unwrap();
        assert_eq!(first.join().unwrap().status(), 200);
    });
}

const PER_UPSTREAM: &str = "
dependencies:
  upstreams: { per: upstream, breaker: { consecutive_failures: 2, wait: 1h, probes: 1 } }
limits: []";

#[test]
fn an_upstream_whose_breaker_is_open_gets_no_requests() {
    let (good, (bad, is_failing)) = (Backend::says("good"), failing_upstream());
    is_failing.store(true, Ordering::SeqCst);
    let policy = PolicyFile::new(PER_UPSTREAM);
    let gateway = Gateway::before_all(&[&good, &bad], &["--workers", "1", policy.path()]);
    let mut client = gateway.connect();
    wait_until("it opens", || {
        client.get("/");
        gateway.log().contains("to=Open")
    });
    assert_eq!(bad.requests(), 2);
    assert!((0..20).all(|_| client.get("/").body == "good"));
    assert_eq!(bad.requests(), 2);
    assert!(!gateway.log().contains("upstream ejected"), "the breaker decides");
}

#[test]
fn if_the_breakers_of_all_upstreams_are_open_none_gets_requests() {
    let ((one, one_is_failing), (two, two_is_failing)) = (failing_upstream(), failing_upstream());
    one_is_failing.store(true, Ordering::SeqCst);
    two_is_failing.store(true, Ordering::SeqCst);
    let policy = PolicyFile::new(PER_UPSTREAM);
    let gateway = Gateway::before_all(&[&one, &two], &["--workers", "1", policy.path()]);
    let mut client = gateway.connect();
    (0..4).for_each(|_| assert_eq!(client.get("/").status(), 503));
    for _ in 0..10 {
        assert_rejected(&client.get("/"), 503, "CIRCUIT_OPEN", "upstreams");
    }
    assert_eq!((one.requests(), two.requests()), (2, 2));
}

#[test]
fn a_health_check_that_succeeds_again_closes_the_breaker() {
    let (good, (bad, is_failing)) = (Backend::says("good"), failing_upstream());
    let policy = PolicyFile::new(PER_UPSTREAM);
    let args = ["--health-path", "/health", "--health-interval", "50ms", "--workers", "1"];
    let gateway = Gateway::before_all(&[&good, &bad], &[&args[..], &[policy.path()]].concat());
    let mut client = gateway.connect();
    wait_until("both are used", || client.get("/").body == "well");
    is_failing.store(true, Ordering::SeqCst);
    wait_until("it is unhealthy", || {
        client.get("/");
        gateway.log().contains("upstream is unhealthy")
    });
    assert!((0..20).all(|_| client.get("/").body == "good"));
    is_failing.store(false, Ordering::SeqCst);
    gateway.wait_for_log("healthy again");
    wait_until("it gets requests again", || client.get("/").body == "well");
}

#[test]
fn a_reload_keeps_the_state_of_a_dependency() {
    let (backend, _) = failing_stock();
    let breaker = "breaker: { consecutive_failures: 1, wait: 1h }";
    let text = |more: &str| {
        format!(
            "dependencies: {{ inventory: {{ match: {{ path: /stock }}, {breaker}{more} }} }}\nlimits: []"
        )
    };
    let policy = PolicyFile::new(&text(""));
    let gateway = gateway(&backend, &policy, &[]);
    let mut client = gateway.connect();
    assert_eq!(client.request(STOCK).status(), 500);
    assert_rejected(&client.request(STOCK), 503, "CIRCUIT_OPEN", "inventory");
    policy.write(&text(", concurrency: 5"));
    let limit = "ratekeeper_dependency_limit{dependency=\"inventory\"} 5";
    wait_until("it is reloaded", || admin(&gateway, "GET /metrics").body.contains(limit));
    assert_rejected(&client.request(STOCK), 503, "CIRCUIT_OPEN", "inventory");
}

#[test]
fn a_dependency_that_only_a_program_can_use_is_logged() {
    let backend = Backend::says("hello");
    let policy = PolicyFile::new("dependencies: { mail: { concurrency: 5 } }\nlimits: []");
    let gateway = gateway(&backend, &policy, &[]);
    gateway.wait_for_log("no effect here");
}
