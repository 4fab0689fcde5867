//! Which upstream gets a request, and what happens when it cannot answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use ratekeeper_testkit::{TIMEOUT, wait_until};

use crate::backend::{Backend, answer, unused_address};
use crate::process::Gateway;

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";

#[test]
fn upstreams_take_turns() {
    let (one, two) = (Backend::says("1"), Backend::says("2"));
    let gateway = Gateway::before_all(&[&one, &two], &["--workers", "1"]);
    let mut client = gateway.connect();
    let said: String = (0..6).map(|_| client.get("/").body).collect();
    assert_eq!(said, "121212");
    assert_eq!((one.connections(), two.connections()), (1, 1), "connections are kept");
}

#[test]
fn without_an_upstream_the_answer_is_502() {
    let gateway = Gateway::start(&["--upstream", &format!("http://{}", unused_address())]);
    let mut client = gateway.connect();
    for _ in 0..10 {
        let answer = client.ask(POST);
        assert_eq!(answer.status(), 502);
        assert!(answer.body.contains("\"code\":\"UPSTREAM_UNAVAILABLE\""), "{}", answer.body);
        assert_eq!(answer.head.get("content-type").as_deref(), Some("application/json"));
    }
}

#[test]
fn a_request_that_reached_nobody_goes_to_another_upstream() {
    let backend = Backend::echo();
    let down = format!("http://{}", unused_address());
    let gateway = Gateway::before(&backend, &["--upstream", &down, "--eject-after", "1000"]);
    let mut client = gateway.connect();
    for _ in 0..10 {
        let answer = client.ask(POST);
        assert!(answer.status() == 200 && answer.body.ends_with("\n\nabc"), "{}", answer.body);
    }
}

#[test]
fn a_request_that_reached_an_upstream_is_never_sent_again() {
    let close = || Backend::start(|head, wire| wire.try_body(&head).is_err());
    let (one, two) = (close(), close());
    let gateway = Gateway::before_all(&[&one, &two], &["--workers", "1", "--eject-after", "1000"]);
    for sent in 1..=10 {
        let answer = gateway.connect().ask(POST);
        assert_eq!(answer.status(), 502);
        assert!(answer.body.contains("UPSTREAM_FAILED"), "{}", answer.body);
        assert_eq!(one.requests() + two.requests(), sent);
    }
}

#[test]
fn a_connection_that_was_closed_while_idle_is_no_failure() {
    let (closed, wait) = channel();
    let closed = Mutex::new(closed);
    let backend = Backend::start(move |head, wire| {
        _ = wire.try_body(&head);
        answer(wire, "hello");
        wire.end();
        closed.lock().unwrap().send(()).unwrap();
        false
    });
    let gateway = Gateway::before(&backend, &["--workers", "1", "--eject-after", "1"]);
    let mut client = gateway.connect();
    for number in 1..=20 {
        assert_eq!(client.ask(POST).body, "hello", "request {number}");
        wait.recv_timeout(TIMEOUT).expect("the connection is closed");
    }
    assert!(!gateway.log().contains("ejected"), "{}", gateway.log());
}

#[test]
fn an_upstream_that_does_not_answer_in_time_is_a_504() {
    let backend = Backend::start(|head, wire| {
        _ = wire.try_body(&head);
        wire.is_closed();
        false
    });
    let gateway = Gateway::before(&backend, &["--response-timeout", "1s"]);
    let answer = gateway.connect().ask(POST);
    assert_eq!(answer.status(), 504);
    assert!(answer.body.contains("UPSTREAM_TIMEOUT"), "{}", answer.body);
}

#[test]
fn an_upstream_that_speaks_something_else_is_a_502() {
    let backend = Backend::start(|_, wire| {
        wire.send("220 ready for mail\r\n");
        wire.is_closed();
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    assert_eq!(gateway.connect().get("/").status(), 502);
}

/// A backend that can be told to fail.
fn moody() -> (Backend, Arc<AtomicBool>) {
    let is_ill = Arc::new(AtomicBool::new(false));
    let ill = Arc::clone(&is_ill);
    let backend = Backend::start(move |head, wire| {
        _ = wire.try_body(&head);
        if ill.load(Ordering::SeqCst) {
            wire.try_send("HTTP/1.1 503 Ill\r\nContent-Length: 0\r\n\r\n").is_ok()
        } else {
            answer(wire, "well")
        }
    });
    (backend, is_ill)
}

#[test]
fn an_upstream_that_keeps_failing_is_left_out_and_returns() {
    let (good, (bad, is_ill)) = (Backend::says("good"), moody());
    is_ill.store(true, Ordering::SeqCst);
    let args = ["--workers", "1", "--eject-after", "2", "--eject-for", "1s"];
    let gateway = Gateway::before_all(&[&good, &bad], &args);
    let mut client = gateway.connect();
    wait_until("it is left out", || {
        client.get("/");
        gateway.log().contains("upstream ejected")
    });
    let failed = bad.requests();
    assert_eq!(failed, 2);
    is_ill.store(false, Ordering::SeqCst);
    assert!((0..20).all(|_| client.get("/").body == "good"), "it gets nothing for a while");
    wait_until("it returns", || client.get("/").body == "well");
}

#[test]
fn upstreams_that_all_fail_are_all_used() {
    let ((one, one_is_ill), (two, two_is_ill)) = (moody(), moody());
    one_is_ill.store(true, Ordering::SeqCst);
    two_is_ill.store(true, Ordering::SeqCst);
    let args = ["--workers", "1", "--eject-after", "1", "--eject-for", "1h"];
    let gateway = Gateway::before_all(&[&one, &two], &args);
    let mut client = gateway.connect();
    (0..10).for_each(|_| _ = client.get("/"));
    assert_eq!((one.requests(), two.requests()), (5, 5));
}

#[test]
fn an_upstream_that_fails_its_health_checks_gets_no_requests() {
    let (good, (bad, is_ill)) = (Backend::says("good"), moody());
    let args = ["--health-path", "/health", "--health-interval", "50ms", "--workers", "1"];
    let gateway = Gateway::before_all(&[&good, &bad], &args);
    let mut client = gateway.connect();
    wait_until("both are used", || client.get("/").body == "well");
    is_ill.store(true, Ordering::SeqCst);
    gateway.wait_for_log("unhealthy");
    assert!((0..20).all(|_| client.get("/").body == "good"));
    is_ill.store(false, Ordering::SeqCst);
    gateway.wait_for_log("healthy again");
    wait_until("both are used again", || client.get("/").body == "well");
}
