//! How the gateway ends.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use ratekeeper_testkit::{TIMEOUT, wait_until};

use crate::backend::{Backend, answer};
use crate::process::Gateway;

/// A backend that answers when it is allowed to.
fn patient() -> (Backend, std::sync::mpsc::Sender<()>) {
    let (go, wait) = channel();
    let wait = Mutex::new(wait);
    let backend = Backend::start(move |_, wire| {
        _ = wait.lock().unwrap().recv_timeout(TIMEOUT);
        answer(wire, "at last")
    });
    (backend, go)
}

#[test]
fn a_request_under_way_is_answered_before_the_end() {
    let (backend, go) = patient();
    let mut gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the request arrives", || backend.requests() == 1);
    gateway.signal("-TERM");
    let address = gateway.address();
    wait_until("nothing is accepted", || std::net::TcpStream::connect(address).is_err());
    go.send(()).unwrap();
    let answer = client.answer();
    assert_eq!(answer.body, "at last");
    assert_eq!(answer.head.get("connection").as_deref(), Some("close"));
    assert!(client.0.is_closed());
    assert!(gateway.wait().success());
}

#[test]
fn a_drain_under_load_loses_no_answer() {
    let backend = Backend::says("hello");
    let mut gateway = Gateway::before(&backend, &[]);
    let (address, answered) = (gateway.address(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = crate::client::Client::connect(address);
                // Until it is told that this was the last answer. Every request gets one.
                loop {
                    let answer = client.get("/");
                    assert_eq!(answer.body, "hello");
                    answered.fetch_add(1, Ordering::SeqCst);
                    if answer.head.get("connection").is_some() {
                        return;
                    }
                }
            });
        }
        wait_until("there is load", || answered.load(Ordering::SeqCst) > 200);
        gateway.signal("-TERM");
    });
    assert!(gateway.wait().success());
}

#[test]
fn idle_connections_do_not_hold_up_the_end() {
    let mut gateway = Gateway::before(&Backend::says("hello"), &[]);
    let (silent, mut idle) = (gateway.connect(), gateway.connect());
    assert_eq!(idle.get("/").body, "hello");
    gateway.signal("-INT");
    assert!(gateway.wait().success());
    assert!(idle.0.is_closed());
    drop(silent);
}

#[test]
fn the_end_does_not_wait_longer_than_it_was_told() {
    let (backend, _go) = patient();
    let mut gateway = Gateway::before(&backend, &["--drain", "1s"]);
    let client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the request arrives", || backend.requests() == 1);
    gateway.signal("-TERM");
    assert!(gateway.wait().success());
    assert!(gateway.log().contains("shut down with connections open"), "{}", gateway.log());
}

#[test]
fn a_second_signal_ends_at_once() {
    let (backend, _go) = patient();
    let mut gateway = Gateway::before(&backend, &["--drain", "1h"]);
    let client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the request arrives", || backend.requests() == 1);
    gateway.signal("-TERM");
    gateway.wait_for_log("shutting down");
    gateway.signal("-TERM");
    assert!(gateway.wait().success());
}
