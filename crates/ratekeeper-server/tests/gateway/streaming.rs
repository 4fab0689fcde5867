//! Streaming of bodies in both directions, upgrades and tunnels.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use ratekeeper_testkit::{TIMEOUT, wait_until};

use crate::backend::{Backend, respond};
use crate::process::Gateway;

#[test]
fn server_sent_events_are_forwarded_one_by_one() {
    let (arrived, next) = channel();
    let next = Mutex::new(next);
    let backend = Backend::start(move |_, wire| {
        wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        wire.send("9\r\ndata: 1\n\n\r\n");
        next.lock().unwrap().recv_timeout(TIMEOUT).expect("the first event arrives");
        wire.send("9\r\ndata: 2\n\n\r\n0\r\n\r\n");
        true
    });
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.0.head().get("content-type").unwrap(), "text/event-stream");
    assert_eq!(client.0.chunk().unwrap(), b"data: 1\n\n");
    arrived.send(()).unwrap();
    assert_eq!(client.0.chunk().unwrap(), b"data: 2\n\n");
    assert_eq!(client.0.chunk().unwrap(), b"");
}

#[test]
fn an_upload_is_streamed_to_the_upstream() {
    let (got, seen) = channel();
    let got = Mutex::new(got);
    let backend = Backend::start(move |_, wire| {
        got.lock().unwrap().send(wire.chunk().unwrap()).unwrap();
        let rest = (wire.chunk().unwrap(), wire.chunk().unwrap());
        wire.fields().unwrap();
        respond(wire, &format!("{:?}", rest.0))
    });
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    assert_eq!(seen.recv_timeout(TIMEOUT).unwrap(), b"abc");
    client.send("1\r\nd\r\n0\r\n\r\n");
    assert_eq!(client.response().body, "[100]");
}

#[test]
fn both_directions_stream_at_once() {
    let backend = Backend::start(|_, wire| {
        wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        loop {
            let chunk = wire.chunk().unwrap();
            wire.send(format!("{:x}\r\n", chunk.len()));
            wire.send([&chunk[..], b"\r\n"].concat());
            if chunk.is_empty() {
                return true;
            }
        }
    });
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(client.0.head().status(), 200);
    for _ in 0..10 {
        client.send("4\r\nping\r\n");
        assert_eq!(client.0.chunk().unwrap(), b"ping");
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.0.chunk().unwrap(), b"");
}

#[test]
fn trailers_are_forwarded_in_both_directions() {
    let backend = Backend::start(|head, wire| {
        assert_eq!(head.get("te").as_deref(), Some("trailers"));
        assert_eq!((wire.chunk().unwrap(), wire.chunk().unwrap()), (b"abc".to_vec(), vec![]));
        let sum = wire.fields().unwrap();
        wire.send("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n");
        wire.send(format!("2\r\nok\r\n0\r\nX-Sum: {}\r\n\r\n", sum[0].1));
        true
    });
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTrailer: X-Sum\r\n");
    client.send("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 17\r\n\r\n");
    assert_eq!(client.0.head().status(), 200);
    assert_eq!((client.0.chunk().unwrap(), client.0.chunk().unwrap()), (b"ok".to_vec(), vec![]));
    assert_eq!(client.0.fields().unwrap(), [("x-sum".to_string(), "17".to_string())]);
}

#[test]
fn a_websocket_is_tunnelled_in_both_directions() {
    let backend = Backend::start(|head, wire| {
        assert_eq!(head.get("upgrade").as_deref(), Some("websocket"));
        assert_eq!(head.get("connection").as_deref(), Some("upgrade"));
        // The rest of the packet belongs to the tunnel, and has bare line feeds.
        wire.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi\n\n");
        let mut bytes = [0; 4];
        while wire.stream().read_exact(&mut bytes).is_ok() {
            wire.stream().write_all(&bytes).unwrap();
        }
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n");
    let head = client.0.head();
    assert_eq!((head.status(), head.get("upgrade").as_deref()), (101, Some("websocket")));
    assert_eq!(client.0.exactly(4), b"hi\n\n");
    for message in [b"\0\n\n\xff", b"ping", b"GET "] {
        client.send(message);
        assert_eq!(client.0.exactly(4), message);
    }
    client.0.end();
    assert!(client.0.is_closed(), "a half close is forwarded, and the upstream closes");
}

const UPGRADE: &str =
    "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Returns every byte value, and text that is invalid as HTTP.
fn arbitrary_bytes() -> Vec<u8> {
    let every: Vec<u8> = (0..=255).collect();
    [b"\n\r\n\0 GET / HTTP/1.1\nA: b\r\n c\r\n\r\n", &every[..], b"\n\n"].concat()
}

#[test]
fn bytes_sent_before_the_upgrade_reach_the_upstream_unchanged() {
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let length = 3 * arbitrary_bytes().len();
    let backend = Backend::start(move |head, wire| {
        if head.get("upgrade").is_none() {
            return respond(wire, "hello");
        }
        held.lock().unwrap().recv().unwrap();
        wire.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        let bytes = wire.exactly(length);
        wire.stream().write_all(&bytes).unwrap();
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    for first in ["", "GET /before HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let mut client = gateway.connect();
        let before = backend.requests();
        // Bytes with the request, between it and the upgrade, and after the upgrade.
        client.send([first.as_bytes(), UPGRADE.as_bytes(), &arbitrary_bytes()].concat());
        let expected = before + 1 + usize::from(!first.is_empty());
        wait_until("the request arrives", || backend.requests() == expected);
        client.send(arbitrary_bytes());
        release.send(()).unwrap();
        if !first.is_empty() {
            assert_eq!(client.response().body, "hello");
        }
        assert_eq!(client.0.head().status(), 101);
        client.send(arbitrary_bytes());
        let is_unchanged = client.0.exactly(length) == arbitrary_bytes().repeat(3);
        assert!(is_unchanged);
    }
}

#[test]
fn bytes_after_a_declined_upgrade_are_validated_as_the_next_request() {
    let backend = Backend::echo();
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    let next = "POST /next HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na\nb";
    let bad = "GET /smuggled HTTP/1.1\nHost: a\r\n\r\n";
    client.send([UPGRADE, next, UPGRADE, bad].concat());
    assert!(client.response().body.starts_with("GET /chat "));
    let second = client.response().body;
    assert!(second.starts_with("POST /next ") && second.ends_with("\n\na\nb"), "{second}");
    assert!(client.response().body.starts_with("GET /chat "));
    assert_eq!(client.response().status(), 400);
    assert!(client.0.is_closed());
    assert_eq!(backend.requests(), 3);
}

#[test]
fn a_client_that_disconnects_before_the_upgrade_cancels_its_request() {
    let (gone, seen) = channel();
    let gone = Mutex::new(gone);
    let backend = Backend::start(move |_, wire| {
        gone.lock().unwrap().send(wire.is_closed()).unwrap();
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    let client = gateway.connect();
    client.send([UPGRADE.as_bytes(), &arbitrary_bytes()].concat());
    wait_until("the request arrives", || backend.requests() == 1);
    drop(client);
    assert_eq!(seen.recv_timeout(TIMEOUT), Ok(true), "the upstream's connection is closed");
}

#[test]
fn a_declined_upgrade_is_an_ordinary_response() {
    let backend = Backend::says("no");
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(client.request(request).body, "no");
    assert_eq!(client.get("/").body, "no");
}

#[test]
fn an_upgrade_to_h2c_is_not_forwarded() {
    let gateway = Gateway::before(&Backend::echo(), &[]);
    let seen = gateway.connect().request(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n\r\n",
    );
    let seen = seen.body.to_lowercase();
    assert!(!seen.contains("upgrade") && !seen.contains("http2-settings"), "{seen}");
}

#[test]
fn an_idle_tunnel_is_closed() {
    let backend = Backend::start(|_, wire| {
        wire.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        wire.is_closed();
        false
    });
    let gateway = Gateway::before(&backend, &["--tunnel-timeout", "1s"]);
    let mut client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.0.head().status(), 101);
    assert!(client.0.is_closed());
}

#[test]
fn expect_100_continue_gets_an_interim_response() {
    let gateway = Gateway::before(&Backend::echo(), &[]);
    let mut client = gateway.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.0.line().unwrap(), "HTTP/1.1 100 Continue");
    assert_eq!(client.0.line().unwrap(), "");
    client.send("abc");
    let response = client.response();
    assert!(response.status() == 200 && response.body.ends_with("\n\nabc"), "{}", response.body);
}

#[test]
fn responses_without_a_body_keep_their_headers_and_the_connection() {
    let backend = Backend::start(|head, wire| {
        let response = match head.line.as_str() {
            "HEAD / HTTP/1.1" => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: h\r\n\r\n",
            "HEAD /chunked HTTP/1.1" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET /204 HTTP/1.1" => "HTTP/1.1 204 No Content\r\nETag: n\r\n\r\n",
            _ => "HTTP/1.1 304 Not Modified\r\nETag: m\r\n\r\n",
        };
        wire.try_send(response).is_ok()
    });
    let gateway = Gateway::before(&backend, &["--workers", "1"]);
    let mut client = gateway.connect();
    let mut head_of = |request: &str| {
        client.send(format!("{request} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let head = client.0.head();
        (head.status(), head.get("content-length"), head.get("etag"))
    };
    let text = |text: &str| Some(text.to_string());
    assert_eq!(head_of("HEAD /"), (200, text("1000"), text("h")));
    assert_eq!(head_of("HEAD /chunked"), (200, None, None));
    assert_eq!(head_of("GET /204"), (204, None, text("n")));
    assert_eq!(head_of("GET /304"), (304, None, text("m")));
    assert_eq!(backend.connections(), 1, "the upstream's connection is used again");
}

#[test]
fn a_response_delimited_by_close_is_complete() {
    let backend = Backend::start(|_, wire| {
        wire.send("HTTP/1.0 200 OK\r\n\r\nhello");
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    for _ in 0..3 {
        assert_eq!(gateway.connect().get("/").body, "hello");
    }
}

#[test]
fn a_truncated_response_is_not_completed() {
    let backend = Backend::start(|_, wire| {
        wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!client.0.rest().ends_with("0\r\n\r\n"));
}

#[test]
fn an_early_response_during_an_upload_is_forwarded() {
    const LENGTH: usize = 20 << 20;
    let backend = Backend::start(|_, wire| {
        wire.send("HTTP/1.1 413 Too Much\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!");
        // The upstream closes without reading the body.
        false
    });
    let gateway = Gateway::before(&backend, &[]);
    for _ in 0..20 {
        let mut client = gateway.connect();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n"));
        let mut stream = client.0.stream().try_clone().unwrap();
        let upload = std::thread::spawn(move || _ = stream.write_all(&vec![1; LENGTH]));
        let response = client.response();
        assert_eq!((response.status(), response.body.as_str()), (413, "no!"));
        drop(client);
        upload.join().unwrap();
    }
}

/// More than the kernel buffers on two connections, and less than the bodies below.
const BUFFERED_MAX: usize = 40 << 20;
const LENGTH: usize = 50 << 20;

/// Writes until the stream blocks, and returns how much was written.
fn write_until_blocked(mut stream: &TcpStream, bytes: &[u8]) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(taken) => written += taken,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("after {written} bytes: {error}"),
        }
    }
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    written
}

#[test]
fn an_upload_is_held_by_back_pressure_of_the_upstream() {
    let (go, may_read) = channel();
    let may_read = Mutex::new(may_read);
    let backend = Backend::start(move |_, wire| {
        may_read.lock().unwrap().recv_timeout(TIMEOUT).unwrap();
        let body = wire.exactly(LENGTH);
        respond(wire, &body.iter().map(|byte| u64::from(*byte)).sum::<u64>().to_string())
    });
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n"));
    let mut stream = client.0.stream().try_clone().unwrap();
    let body = vec![1; LENGTH];
    let taken = write_until_blocked(&stream, &body);
    assert!(taken < BUFFERED_MAX, "{taken} bytes were buffered");
    wait_until("the request arrives", || backend.requests() == 1);
    go.send(()).unwrap();
    let upload = std::thread::spawn(move || stream.write_all(&body[taken..]).unwrap());
    assert_eq!(client.response().body, LENGTH.to_string());
    upload.join().unwrap();
}

#[test]
fn a_response_is_held_by_back_pressure_of_the_client() {
    let (blocked, taken) = channel();
    let backend = Backend::start(move |_, wire| {
        wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"));
        let body = vec![b'x'; LENGTH];
        let taken = write_until_blocked(wire.stream(), &body);
        blocked.send(taken).unwrap();
        wire.try_send(&body[taken..]).is_ok()
    });
    let gateway = Gateway::before(&backend, &[]);
    let mut client = gateway.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let taken = taken.recv_timeout(TIMEOUT).unwrap();
    assert!(taken < BUFFERED_MAX, "{taken} bytes were buffered");
    let head = client.0.head();
    assert_eq!(client.0.try_body(&head).unwrap().len(), LENGTH);
}
