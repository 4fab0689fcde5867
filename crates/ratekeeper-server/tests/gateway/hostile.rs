//! Clients that mean no good, or cannot do better.

use std::thread;
use std::time::Duration;

use ratekeeper_testkit::wait_until;

use crate::backend::Backend;
use crate::process::Gateway;

/// Each of these is refused and its connection closed, and nothing reaches the upstream.
fn are_refused(requests: &[&str]) {
    let backend = Backend::echo();
    let gateway = Gateway::before(&backend, &[]);
    for request in requests {
        let mut client = gateway.connect();
        client.send(format!("{request}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.0.end();
        let answer = client.0.rest();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?} gave {answer:?}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{request:?} gave {answer:?}");
    }
    assert_eq!(backend.requests(), 0);
}

#[test]
fn a_request_with_two_lengths_is_refused() {
    are_refused(&[
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        "GET /first HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ]);
}

#[test]
fn a_length_that_is_no_number_is_refused() {
    are_refused(&[
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
    ]);
}

#[test]
fn a_coding_that_only_looks_like_chunked_is_refused() {
    are_refused(&[
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
fn a_tab_before_a_coding_is_only_a_space() {
    let gateway = Gateway::before(&Backend::echo(), &[]);
    let ask =
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\t chunked \r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let mut client = gateway.connect();
    let answer = client.ask(ask);
    assert!(answer.status() == 200 && answer.body.ends_with("\n\nabc"), "{}", answer.body);
    assert_eq!(client.get("/").status(), 200);
}

#[test]
fn lines_that_end_without_a_carriage_return_are_refused() {
    are_refused(&[
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n folded\r\n\r\n",
    ]);
}

#[test]
fn a_request_without_one_good_host_is_refused() {
    are_refused(&[
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
fn a_chunk_that_is_not_well_formed_ends_the_connection() {
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
        let answer = client.0.rest();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{chunk:?} gave {answer:?}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{chunk:?} gave {answer:?}");
    }
}

#[test]
fn requests_sent_ahead_are_answered_in_order_and_checked_like_the_first() {
    let backend = Backend::echo();
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    let one = "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na\n\nb";
    let two =
        "POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\n\n\r\n0\r\n\r\n";
    let bad = "GET /3 HTTP/1.1\r\nHost: a\nX: y\r\n\r\n";
    client.send([one, two, bad].concat());
    assert!(client.answer().body.ends_with("\n\na\n\nb"));
    assert!(client.answer().body.ends_with("\n\n\n\n"));
    assert_eq!(client.answer().status(), 400);
    assert!(client.0.is_closed());
}

#[test]
fn a_client_that_is_slow_with_its_headers_is_cut_off() {
    let gateway = Gateway::before(&Backend::echo(), &["--header-timeout", "1s"]);
    let mut silent = gateway.connect();
    assert!(silent.0.is_closed(), "not a byte");

    let mut halting = gateway.connect();
    halting.send("GET / HT");
    assert!(halting.0.is_closed(), "half a head");

    let mut dripping = gateway.connect();
    assert_eq!(dripping.get("/").status(), 200, "a head in time");
    dripping.send("GET / HTTP/1.1\r\nX:");
    let stream = dripping.0.stream().try_clone().unwrap();
    // A byte now and then does not help.
    wait_until("the connection is closed", || {
        use std::io::Write;
        (&stream).write_all(b"x").is_err()
    });
    assert!(dripping.0.is_closed());
}

#[test]
fn a_client_that_is_slow_with_its_body_is_cut_off() {
    let backend = Backend::start(|head, wire| wire.try_body(&head).is_ok());
    let gateway = Gateway::before(&backend, &["--body-timeout", "1s"]);
    let mut client = gateway.connect();
    let answer = client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!(answer.status(), 408);
    assert!(answer.body.contains("BODY_TIMEOUT"), "{}", answer.body);
    assert!(client.0.is_closed());
}

#[test]
fn a_body_that_comes_in_drops_is_cut_off() {
    let backend = Backend::start(|head, wire| wire.try_body(&head).is_ok());
    let gateway = Gateway::before(&backend, &["--body-timeout", "1s"]);
    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    let stream = client.0.stream().try_clone().unwrap();
    let drip = thread::spawn(move || {
        // A byte now and then is never a pause of a second, and does not help.
        wait_until("the connection is closed", || {
            use std::io::Write;
            (&stream).write_all(b"x").is_err()
        });
    });
    let answer = client.answer();
    assert_eq!(answer.status(), 408);
    assert!(answer.body.contains("BODY_TIMEOUT"), "{}", answer.body);
    assert!(client.0.is_closed());
    drop(client);
    drip.join().unwrap();
}

#[test]
fn a_client_that_says_only_that_it_speaks_http2_is_cut_off() {
    let gateway = Gateway::before(&Backend::echo(), &["--header-timeout", "1s"]);
    for greeting in ["PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut client = gateway.connect();
        client.send(greeting);
        // The settings that the gateway sends, and then the end.
        client.0.rest();
        assert!(client.0.is_closed(), "{greeting:?}");
    }
}

#[test]
fn a_client_that_does_not_take_its_answer_is_cut_off() {
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
    wait_until("there is room for another", || {
        gateway.connect().ask("OPTIONS * HTTP/1.1\r\n\r\n").status() == 400
    });
}

#[test]
fn a_body_that_is_too_large_is_refused_with_and_without_a_length() {
    let backend = Backend::start(|head, wire| wire.try_body(&head).is_ok());
    let gateway = Gateway::before(&backend, &["--max-body", "100k"]);
    let mut client = gateway.connect();
    let answer = client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 102401\r\n\r\n");
    assert_eq!(answer.status(), 413);
    assert!(client.0.is_closed());
    assert_eq!(backend.requests(), 0);

    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let stream = client.0.stream().try_clone().unwrap();
    let upload = thread::spawn(move || {
        use std::io::Write;
        let chunk = [b"10000\r\n", &vec![b'x'; 1 << 16][..], b"\r\n"].concat();
        // Far more than is read before the answer, which must arrive all the same.
        (0..64).all(|_| (&stream).write_all(&chunk).is_ok())
    });
    let answer = client.answer();
    assert_eq!(answer.status(), 413);
    assert!(answer.body.contains("BODY_TOO_LARGE"), "{}", answer.body);
    upload.join().unwrap();
}

#[test]
fn headers_that_are_too_many_or_too_large_are_refused() {
    let gateway = Gateway::before(&Backend::echo(), &["--max-header-size", "16k"]);
    let many = "X: y\r\n".repeat(101);
    let large = format!("X: {}\r\n", "y".repeat(20_000));
    for headers in [many, large] {
        let mut client = gateway.connect();
        let answer = client.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n"));
        assert_eq!(answer.status(), 431);
        assert!(client.0.is_closed());
    }
}

#[test]
fn one_connection_too_many_is_told_to_come_back() {
    let gateway = Gateway::before(&Backend::says("hello"), &["--max-connections", "2"]);
    let (mut one, mut two) = (gateway.connect(), gateway.connect());
    assert_eq!((one.get("/").status(), two.get("/").status()), (200, 200));
    let mut third = gateway.connect();
    let answer = third.get("/");
    assert_eq!((answer.status(), answer.head.get("retry-after").as_deref()), (503, Some("1")));
    assert!(third.0.is_closed());
    drop(one);
    wait_until("there is room again", || gateway.connect().get("/").status() == 200);
    assert_eq!(two.get("/").status(), 200);
}

#[test]
fn a_client_that_goes_away_ends_its_request() {
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
