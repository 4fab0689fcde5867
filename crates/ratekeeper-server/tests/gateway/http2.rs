//! HTTP/2 from clients.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ratekeeper_testkit::TIMEOUT;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_stream::StreamExt;

use crate::backend::{Backend, respond};
use crate::process::Gateway;

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, future).await.expect("in time") })
}

pub(crate) async fn http2_client(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> SendRequest<Full<Bytes>> {
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(crate) async fn connect(gateway: &Gateway) -> SendRequest<Full<Bytes>> {
    http2_client(TcpStream::connect(gateway.address()).await.unwrap()).await
}

pub(crate) fn get(uri: &str) -> Request<Full<Bytes>> {
    Request::get(uri).body(Full::default()).unwrap()
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[test]
fn the_authority_of_an_http2_request_is_forwarded_as_host() {
    let gateway = Gateway::before(&Backend::echo(), &[]);
    run(async {
        let mut sender = connect(&gateway).await;
        let seen =
            text(sender.send_request(get("http://shop.example/a/../b?c")).await.unwrap()).await;
        assert!(seen.starts_with("GET /a/../b?c HTTP/1.1\n"), "{seen}");
        assert!(seen.contains("host: shop.example\n"), "{seen}");
        assert!(seen.contains("x-forwarded-host: shop.example\n"), "{seen}");

        let post = Request::post("http://a/").body(Full::from("abc")).unwrap();
        let seen = text(sender.send_request(post).await.unwrap()).await;
        assert!(seen.contains("content-length: 3\n") && seen.ends_with("\n\nabc"), "{seen}");
    });
}

#[test]
fn a_large_upload_is_held_by_back_pressure_and_arrives_complete() {
    const CHUNK: usize = 64 << 10;
    const CHUNKS: usize = 800;
    /// More than the kernel buffers on two connections.
    const BUFFERED_MAX: usize = 40 << 20;
    let (go, may_read) = channel();
    let may_read = Mutex::new(may_read);
    let backend = Backend::start(move |head, wire| {
        may_read.lock().unwrap().recv_timeout(TIMEOUT).unwrap();
        let body = wire.try_body(&head).unwrap();
        respond(wire, &body.len().to_string())
    });
    let gateway = Gateway::before(&backend, &[]);
    let taken = Arc::new(AtomicUsize::new(0));
    let chunks = tokio_stream::iter(0..CHUNKS).map({
        let taken = Arc::clone(&taken);
        move |_| {
            taken.fetch_add(CHUNK, Ordering::Relaxed);
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[1; CHUNK])))
        }
    });
    run(async {
        let stream = TcpStream::connect(gateway.address()).await.unwrap();
        let handshake = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.unwrap();
        tokio::spawn(connection);
        let post = Request::post("http://a/").body(StreamBody::new(chunks)).unwrap();
        let mut response = pin!(sender.send_request(post));
        let mut before = usize::MAX;
        while taken.load(Ordering::Relaxed) != before {
            before = taken.load(Ordering::Relaxed);
            let pause = tokio::time::timeout(Duration::from_millis(500), &mut response);
            assert!(pause.await.is_err(), "the upstream has not read anything");
        }
        assert!(before < BUFFERED_MAX, "{before} bytes were buffered");
        go.send(()).unwrap();
        assert_eq!(text(response.await.unwrap()).await, (CHUNK * CHUNKS).to_string());
    });
}

#[test]
fn streams_of_one_connection_do_not_block_each_other() {
    let (go, wait) = channel();
    let wait = Mutex::new(wait);
    let backend = Backend::start(move |head, wire| {
        if head.line.contains("/slow") {
            _ = wait.lock().unwrap().recv_timeout(TIMEOUT);
        }
        respond(wire, "done")
    });
    let gateway = Gateway::before(&backend, &[]);
    run(async {
        let mut sender = connect(&gateway).await;
        let slow = sender.send_request(get("http://a/slow"));
        let quick = sender.send_request(get("http://a/quick")).await.unwrap();
        assert_eq!(text(quick).await, "done");
        go.send(()).unwrap();
        assert_eq!(text(slow.await.unwrap()).await, "done");
    });
}

#[test]
fn a_host_that_contradicts_the_authority_is_rejected() {
    let gateway = Gateway::before(&Backend::echo(), &[]);
    run(async {
        let mut sender = connect(&gateway).await;
        let request = Request::get("http://a/").header("host", "b").body(Full::default()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(
            text(sender.send_request(get("http://a/")).await.unwrap()).await.lines().count(),
            7
        );
    });
}

#[test]
fn cookies_are_joined_into_one_header() {
    let gateway = Gateway::before(&Backend::echo(), &[]);
    run(async {
        let mut sender = connect(&gateway).await;
        let request = Request::get("http://a/").header("cookie", "a=1").header("cookie", "b=2");
        let seen = sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
        assert!(text(seen).await.contains("\ncookie: a=1; b=2\n"));
    });
}

#[test]
fn a_client_that_does_not_read_its_response_is_disconnected() {
    let backend = Backend::start(|_, wire| {
        wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1 << 24));
        wire.try_send(vec![0; 1 << 24]).is_ok()
    });
    let gateway = Gateway::before(&backend, &["--body-timeout", "1s"]);
    run(async {
        let mut sender = connect(&gateway).await;
        // The connection is open, but the body is never read.
        let response = sender.send_request(get("http://a/")).await.unwrap();
        while !sender.is_closed() {
            tokio::task::yield_now().await;
        }
        drop(response);
    });
}

#[test]
fn a_drain_sends_goaway_and_finishes_requests_in_flight() {
    let (go, wait) = channel();
    let wait = Mutex::new(wait);
    let backend = Backend::start(move |_, wire| {
        _ = wait.lock().unwrap().recv_timeout(TIMEOUT);
        respond(wire, "at last")
    });
    let mut gateway = Gateway::before(&backend, &[]);
    run(async {
        let mut sender = connect(&gateway).await;
        let slow = tokio::spawn(sender.send_request(get("http://a/")));
        while backend.requests() == 0 {
            tokio::task::yield_now().await;
        }
        gateway.signal("-TERM");
        gateway.wait_for_log("shutting down");
        go.send(()).unwrap();
        assert_eq!(text(slow.await.unwrap().unwrap()).await, "at last");
        while !sender.is_closed() {
            tokio::task::yield_now().await;
        }
    });
    assert!(gateway.wait().success());
}
