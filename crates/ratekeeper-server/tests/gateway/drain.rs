//! Graceful shutdown of the gateway.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use ratekeeper_testkit::{TIMEOUT, wait_until};

use crate::backend::{Backend, respond};
use crate::process::Gateway;

/// Starts an upstream that responds when the test sends a message.
fn held_upstream() -> (Backend, std::sync::mpsc::Sender<()>) {
    let (release, held) = channel();
    let held = Mutex::new(held);
    let backend = Backend::start(move |_, wire| {
        _ = held.lock().unwrap().recv_timeout(TIMEOUT);
        respond(wire, "at last")
    });
    (backend, release)
}

#[test]
fn requests_in_flight_are_served_before_shutdown() {
    let (backend, release) = held_upstream();
    let mut gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the request arrives", || backend.requests() == 1);
    gateway.signal("-TERM");
    let address = gateway.address();
    wait_until("nothing is accepted", || std::net::TcpStream::connect(address).is_err());
    release.send(()).unwrap();
    let response = client.response();
    assert_eq!(response.body, "at last");
    assert_eq!(response.head.get("connection").as_deref(), Some("close"));
    assert!(client.0.is_closed());
    assert!(gateway.wait().success());
}

#[test]
fn a_drain_under_load_loses_no_response() {
    let backend = Backend::says("hello");
    let mut gateway = Gateway::before(&backend, &[]);
    let (address, served) = (gateway.address(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = crate::client::Client::connect(address);
                // Until a response announces the close. Every request gets a response.
                loop {
                    let response = client.get("/");
                    assert_eq!(response.body, "hello");
                    served.fetch_add(1, Ordering::SeqCst);
                    if response.head.get("connection").is_some() {
                        return;
                    }
                }
            });
        }
        wait_until("there is load", || served.load(Ordering::SeqCst) > 200);
        gateway.signal("-TERM");
    });
    assert!(gateway.wait().success());
}

#[test]
fn idle_connections_do_not_delay_shutdown() {
    let mut gateway = Gateway::before(&Backend::says("hello"), &[]);
    let (silent, mut idle) = (gateway.connect(), gateway.connect());
    assert_eq!(idle.get("/").body, "hello");
    gateway.signal("-INT");
    assert!(gateway.wait().success());
    assert!(idle.0.is_closed());
    drop(silent);
}

#[test]
fn the_drain_ends_at_its_timeout() {
    let (backend, _release) = held_upstream();
    let mut gateway = Gateway::before(&backend, &["--drain", "1s"]);
    let client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the request arrives", || backend.requests() == 1);
    gateway.signal("-TERM");
    assert!(gateway.wait().success());
    assert!(gateway.log().contains("shut down with connections open"), "{}", gateway.log());
}

#[test]
fn a_second_signal_stops_at_once() {
    let (backend, _release) = held_upstream();
    let mut gateway = Gateway::before(&backend, &["--drain", "1h"]);
    let client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the request arrives", || backend.requests() == 1);
    gateway.signal("-TERM");
    gateway.wait_for_log("shutting down");
    gateway.signal("-TERM");
    assert!(gateway.wait().success());
}
