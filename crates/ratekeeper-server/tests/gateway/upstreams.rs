//! Load balancing, retries, ejection and health checks of upstreams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use ratekeeper_testkit::{TIMEOUT, wait_until};

use crate::backend::{Backend, respond, unused_address};
use crate::process::Gateway;

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";

#[test]
fn upstreams_are_used_round_robin() {
    let (one, two) = (Backend::says("1"), Backend::says("2"));
    let gateway = Gateway::before_all(&[&one, &two], &["--workers", "1"]);
    let mut client = gateway.connect();
    let bodies: String = (0..6).map(|_| client.get("/").body).collect();
    assert_eq!(bodies, "121212");
    assert_eq!((one.connections(), two.connections()), (1, 1), "connections are reused");
}

#[test]
fn an_upstream_that_cannot_be_resolved_or_reached_is_logged_at_start() {
    let gone = unused_address().to_string();
    let upstreams =
        ["--upstream", &format!("http://{gone}"), "--upstream", "http://no.such.host.invalid:80"];
    let gateway = Gateway::start(&upstreams);
    wait_until("both are logged", || {
        let log = gateway.log();
        let is_logged = |name: &str| {
            log.lines()
                .any(|line| line.contains("upstream cannot be reached") && line.contains(name))
        };
        is_logged(&gone) && is_logged("no.such.host.invalid")
    });
}

#[test]
fn without_a_reachable_upstream_the_response_is_502() {
    let gateway = Gateway::start(&["--upstream", &format!("http://{}", unused_address())]);
    let mut client = gateway.connect();
    for _ in 0..10 {
        let response = client.request(POST);
        assert_eq!(response.status(), 502);
        assert!(response.body.contains("\"code\":\"UPSTREAM_UNAVAILABLE\""), "{}", response.body);
        assert_eq!(response.head.get("content-type").as_deref(), Some("application/json"));
    }
}

#[test]
fn a_request_that_was_not_sent_is_retried_on_another_upstream() {
    let backend = Backend::echo();
    let down = format!("http://{}", unused_address());
    let gateway = Gateway::before(&backend, &["--upstream", &down, "--eject-after", "1000"]);
    let mut client = gateway.connect();
    for _ in 0..10 {
        let response = client.request(POST);
        assert!(
            response.status() == 200 && response.body.ends_with("\n\nabc"),
            "{}",
            response.body
        );
    }
}

#[test]
fn a_request_that_was_sent_is_never_retried() {
    let close = || Backend::start(|head, wire| wire.try_body(&head).is_err());
    let (one, two) = (close(), close());
    let gateway = Gateway::before_all(&[&one, &two], &["--workers", "1", "--eject-after", "1000"]);
    for sent in 1..=10 {
        let response = gateway.connect().request(POST);
        assert_eq!(response.status(), 502);
        assert!(response.body.contains("UPSTREAM_FAILED"), "{}", response.body);
        assert_eq!(one.requests() + two.requests(), sent);
    }
}

#[test]
fn a_connection_closed_while_idle_is_not_a_failure() {
    let (closed, wait) = channel();
    let closed = Mutex::new(closed);
    let backend = Backend::start(move |head, wire| {
        _ = wire.try_body(&head);
        respond(wire, "hello");
        wire.end();
        closed.lock().unwrap().send(()).unwrap();
        false
    });
    let gateway = Gateway::before(&backend, &["--workers", "1", "--eject-after", "1"]);
    let mut client = gateway.connect();
    for number in 1..=20 {
        assert_eq!(client.request(POST).body, "hello", "request {number}");
        wait.recv_timeout(TIMEOUT).expect("the connection is closed");
    }
    assert!(!gateway.log().contains("ejected"), "{}", gateway.log());
}

#[test]
fn an_upstream_without_a_response_in_time_is_a_504() {
    let backend = Backend::start(|head, wire| {
        _ = wire.try_body(&head);
        wire.is_closed();
        false
    });
    let gateway = Gateway::before(&backend, &["--response-timeout", "1s"]);
    let response = gateway.connect().request(POST);
    assert_eq!(response.status(), 504);
    assert!(response.body.contains("UPSTREAM_TIMEOUT"), "{}", response.body);
}

#[test]
fn an_upstream_that_does_not_speak_http_is_a_502() {
    let backend = Backend::start(|_, wire| {
        wire.send("220 ready for mail\r\n");
        wire.is_closed();
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    assert_eq!(gateway.connect().get("/").status(), 502);
}

/// Starts an upstream whose failure can be switched on.
pub(crate) fn failing_upstream() -> (Backend, Arc<AtomicBool>) {
    let is_failing = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&is_failing);
    let backend = Backend::start(move |head, wire| {
        _ = wire.try_body(&head);
        if failing.load(Ordering::SeqCst) {
            wire.try_send("HTTP/1.1 503 Failing\r\nContent-Length: 0\r\n\r\n").is_ok()
        } else {
            respond(wire, "well")
        }
    });
    (backend, is_failing)
}

#[test]
fn an_upstream_that_keeps_failing_is_ejected_and_returns() {
    let (good, (bad, is_failing)) = (Backend::says("good"), failing_upstream());
    is_failing.store(true, Ordering::SeqCst);
    let args = ["--workers", "1", "--eject-after", "2", "--eject-for", "1s"];
    let gateway = Gateway::before_all(&[&good, &bad], &args);
    let mut client = gateway.connect();
    wait_until("it is ejected", || {
        client.get("/");
        gateway.log().contains("upstream ejected")
    });
    let failed = bad.requests();
    assert_eq!(failed, 2);
    is_failing.store(false, Ordering::SeqCst);
    assert!((0..20).all(|_| client.get("/").body == "good"), "it gets no requests while ejected");
    wait_until("it returns", || client.get("/").body == "well");
}

#[test]
fn if_all_upstreams_fail_all_are_used() {
    let ((one, one_is_failing), (two, two_is_failing)) = (failing_upstream(), failing_upstream());
    one_is_failing.store(true, Ordering::SeqCst);
    two_is_failing.store(true, Ordering::SeqCst);
    let args = ["--workers", "1", "--eject-after", "1", "--eject-for", "1h"];
    let gateway = Gateway::before_all(&[&one, &two], &args);
    let mut client = gateway.connect();
    (0..10).for_each(|_| _ = client.get("/"));
    assert_eq!((one.requests(), two.requests()), (5, 5));
}

#[test]
fn an_upstream_that_fails_its_health_checks_gets_no_requests() {
    let (good, (bad, is_failing)) = (Backend::says("good"), failing_upstream());
    let args = ["--health-path", "/health", "--health-interval", "50ms", "--workers", "1"];
    let gateway = Gateway::before_all(&[&good, &bad], &args);
    let mut client = gateway.connect();
    wait_until("both are used", || client.get("/").body == "well");
    is_failing.store(true, Ordering::SeqCst);
    gateway.wait_for_log("unhealthy");
    assert!((0..20).all(|_| client.get("/").body == "good"));
    is_failing.store(false, Ordering::SeqCst);
    gateway.wait_for_log("healthy again");
    wait_until("both are used again", || client.get("/").body == "well");
}
