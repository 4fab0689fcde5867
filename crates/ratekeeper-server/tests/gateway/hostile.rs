//! Malformed requests, request smuggling, slow clients and oversized input.

use std::thread;
use std::time::Duration;

use ratekeeper_testkit::wait_until;

use crate::backend::Backend;
use crate::process::Gateway;

/// Asserts that each of these is rejected and its connection closed, and nothing reaches the upstream.
fn assert_rejected(requests: &[&str]) {
    let backend = Backend::echo();
    let gateway = Gateway::before(&backend, &[]);
    for request in requests {
        let mut client = gateway.connect();
        client.send(format!("{request}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.0.end();
        let response = client.0.rest();
        assert!(response.starts_with("HTTP/1.1 400 "), "{request:?} got {response:?}");
        assert_eq!(response.matches("HTTP/1.1 ").count(), 1, "{request:?} got {response:?}");
    }
    assert_eq!(backend.requests(), 0);
}

#[test]
fn a_request_with_two_lengths_is_rejected() {
    assert_rejected(&[
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        "GET /first HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ]);
}

#[test]
fn an_invalid_content_length_is_rejected() {
    assert_rejected(&[
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
    ]);
}

#[test]
fn an_obfuscated_transfer_encoding_is_rejected() {
    assert_rejected(&[
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ]);
}

#[test]
fn a_tab_before_a_transfer_encoding_is_whitespace() {
    let gateway = Gateway::before(&Backend::echo(), &[]);
    let request =
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\t chunked \r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let mut client = gateway.connect();
    let response = client.request(request);
    assert!(response.status() == 200 && response.body.ends_with("\n\nabc"), "{}", response.body);
    assert_eq!(client.get("/").status(), 200);
}

#[test]
fn bare_line_feeds_and_folded_lines_are_rejected() {
    assert_rejected(&[
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n folded\r\n\r\n",
    ]);
}

#[test]
fn a_request_without_exactly_one_valid_host_is_rejected() {
    assert_rejected(&[
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    ]);
}

#[test]
fn a_malformed_chunk_closes_the_connection() {
    let backend = Backend::start(|head, wire| {
        assert!(wire.try_body(&head).is_err(), "the upstream must not see a whole body");
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    for chunk in [
        "3\nabc\r\n",
        "3;x\nabc\r\n",
        "3;x\ry\r\nabc\r\n",
        "3 junk\r\nabc\r\n",
        "3\r\nabcd\r\n",
        "-3\r\nabc\r\n",
        "0x3\r\nabc\r\n",
        "\r\n",
        "fffffffffffffffff\r\nabc\r\n",
    ] {
        let mut client = gateway.connect();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(format!("{head}{chunk}0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.0.end();
        let response = client.0.rest();
        assert!(response.starts_with("HTTP/1.1 400 "), "{chunk:?} got {response:?}");
        assert_eq!(response.matches("HTTP/1.1 ").count(), 1, "{chunk:?} got {response:?}");
    }
}

#[test]
fn pipelined_requests_are_served_in_order_and_all_validated() {
    let backend = Backend::echo();
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    let one = "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na\n\nb";
    let two =
        "POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\n\n\r\n0\r\n\r\n";
    let bad = "GET /3 HTTP/1.1\r\nHost: a\nX: y\r\n\r\n";
    client.send([one, two, bad].concat());
    assert!(client.response().body.ends_with("\n\na\n\nb"));
    assert!(client.response().body.ends_with("\n\n\n\n"));
    assert_eq!(client.response().status(), 400);
    assert!(client.0.is_closed());
}

#[test]
fn slow_headers_reach_the_header_timeout() {
    let gateway = Gateway::before(&Backend::echo(), &["--header-timeout", "1s"]);
    let mut silent = gateway.connect();
    assert!(silent.0.is_closed(), "no bytes");

    let mut partial = gateway.connect();
    partial.send("GET / HT");
    assert!(partial.0.is_closed(), "a partial head");

    let mut slow = gateway.connect();
    assert_eq!(slow.get("/").status(), 200, "a complete head");
    slow.send("GET / HTTP/1.1\r\nX:");
    let stream = slow.0.stream().try_clone().unwrap();
    // Single bytes do not extend the timeout.
    wait_until("the connection is closed", || {
        use std::io::Write;
        (&stream).write_all(b"x").is_err()
    });
    assert!(slow.0.is_closed());
}

#[test]
fn a_stalled_body_reaches_the_body_timeout() {
    let backend = Backend::start(|head, wire| wire.try_body(&head).is_ok());
    let gateway = Gateway::before(&backend, &["--body-timeout", "1s"]);
    let mut client = gateway.connect();
    let response = client.request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!(response.status(), 408);
    assert!(response.body.contains("BODY_TIMEOUT"), "{}", response.body);
    assert!(client.0.is_closed());
}

#[test]
fn a_body_sent_byte_by_byte_reaches_the_body_timeout() {
    let backend = Backend::start(|head, wire| wire.try_body(&head).is_ok());
    let gateway = Gateway::before(&backend, &["--body-timeout", "1s"]);
    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    let stream = client.0.stream().try_clone().unwrap();
    let drip = thread::spawn(move || {
        // Single bytes come more often than once a second, and do not extend the timeout.
        wait_until("the connection is closed", || {
            use std::io::Write;
            (&stream).write_all(b"x").is_err()
        });
    });
    let response = client.response();
    assert_eq!(response.status(), 408);
    assert!(response.body.contains("BODY_TIMEOUT"), "{}", response.body);
    assert!(client.0.is_closed());
    drop(client);
    drip.join().unwrap();
}

#[test]
fn an_http2_preface_without_requests_reaches_the_header_timeout() {
    let gateway = Gateway::before(&Backend::echo(), &["--header-timeout", "1s"]);
    for preface in ["PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut client = gateway.connect();
        client.send(preface);
        // The gateway sends its settings and closes.
        client.0.rest();
        assert!(client.0.is_closed(), "{preface:?}");
    }
}

#[test]
fn a_client_that_does_not_read_its_response_is_disconnected() {
    let backend = Backend::start(|_, wire| {
        let length = 1 << 30;
        wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
        while wire.try_send(vec![0; 1 << 20]).is_ok() {}
        false
    });
    let args = ["--body-timeout", "1s", "--max-connections", "1"];
    let gateway = Gateway::before(&backend, &args);
    let client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("another connection is accepted", || {
        gateway.connect().request("OPTIONS * HTTP/1.1\r\n\r\n").status() == 400
    });
}

#[test]
fn an_oversized_body_is_rejected_with_and_without_a_length() {
    let backend = Backend::start(|head, wire| wire.try_body(&head).is_ok());
    let gateway = Gateway::before(&backend, &["--max-body", "100k"]);
    let mut client = gateway.connect();
    let response = client.request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 102401\r\n\r\n");
    assert_eq!(response.status(), 413);
    assert!(client.0.is_closed());
    assert_eq!(backend.requests(), 0);

    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let stream = client.0.stream().try_clone().unwrap();
    let upload = thread::spawn(move || {
        use std::io::Write;
        let chunk = [b"10000\r\n", &vec![b'x'; 1 << 16][..], b"\r\n"].concat();
        // Far more than the gateway reads before it responds; the response must still arrive.
        (0..64).all(|_| (&stream).write_all(&chunk).is_ok())
    });
    let response = client.response();
    assert_eq!(response.status(), 413);
    assert!(response.body.contains("BODY_TOO_LARGE"), "{}", response.body);
    upload.join().unwrap();
}

#[test]
fn too_many_or_too_large_headers_are_rejected() {
    let gateway = Gateway::before(&Backend::echo(), &["--max-header-size", "16k"]);
    let many = "X: y\r\n".repeat(101);
    let large = format!("X: {}\r\n", "y".repeat(20_000));
    for headers in [many, large] {
        let mut client = gateway.connect();
        let response = client.request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n"));
        assert_eq!(response.status(), 431);
        assert!(client.0.is_closed());
    }
}

#[test]
fn a_connection_above_the_limit_gets_503_with_retry_after() {
    let gateway = Gateway::before(&Backend::says("hello"), &["--max-connections", "2"]);
    let (mut one, mut two) = (gateway.connect(), gateway.connect());
    assert_eq!((one.get("/").status(), two.get("/").status()), (200, 200));
    let mut third = gateway.connect();
    let response = third.get("/");
    assert_eq!((response.status(), response.head.get("retry-after").as_deref()), (503, Some("1")));
    assert!(third.0.is_closed());
    drop(one);
    wait_until("connections are accepted again", || gateway.connect().get("/").status() == 200);
    assert_eq!(two.get("/").status(), 200);
}

#[test]
fn a_disconnected_client_cancels_its_request() {
    let (gone, seen) = std::sync::mpsc::channel();
    let gone = std::sync::Mutex::new(gone);
    let backend = Backend::start(move |_, wire| {
        wire.is_closed();
        gone.lock().unwrap().send(()).unwrap();
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    let client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the request arrives", || backend.requests() == 1);
    drop(client);
    seen.recv_timeout(Duration::from_secs(10)).expect("the upstream's connection is closed");
}
