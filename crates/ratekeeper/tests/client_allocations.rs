//! The client layer allocates the future that it returns, and what a retry needs. The counts are of a request that need
//! not wait.
#![cfg(feature = "client")]

#[path = "support/counting_allocator.rs"]
mod counting_allocator;

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::Full;
use ratekeeper::client::Outbound;
use tower::{Layer, Service, service_fn};

use counting_allocator::ALLOCATIONS;

fn request(headers: Vec<(HeaderName, HeaderValue)>) -> Request<Full<Bytes>> {
    let mut request =
        Request::get("https://api.example.com/v1/items/17").body(Full::default()).unwrap();
    request.headers_mut().extend(headers);
    request
}

/// Returns how many allocations a request makes in the layer: the client beneath makes none.
fn allocations(outbound: &Outbound, headers: impl Fn() -> Vec<(HeaderName, HeaderValue)>) -> u64 {
    let client = service_fn(|_: Request<Full<Bytes>>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    });
    let mut client = outbound.layer(client);
    let mut send = || {
        let request = request(headers());
        let before = ALLOCATIONS.with(Cell::get);
        let mut sent = pin!(client.call(request));
        let Poll::Ready(response) = sent.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("it waits")
        };
        assert_eq!(response.unwrap().status(), 200);
        ALLOCATIONS.with(Cell::get) - before
    };
    // The quota and the key are made by the first request.
    send();
    let counts = [send(), send(), send()];
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    counts[0]
}

fn limited() -> Outbound {
    Outbound::new("1000/s burst 1000 per host").unwrap()
}

#[test]
fn a_request_without_headers_allocates_only_its_future() {
    let none = Vec::new;
    assert_eq!(allocations(&limited(), none), 1);
    assert_eq!(allocations(&limited().without_retries(), none), 1);
    assert_eq!(allocations(&limited().without_learning(), none), 1);
    assert_eq!(allocations(&Outbound::unlimited(), none), 1);
    let two = Outbound::lines(["1000/s burst 1000 per host", "100000/hour"]).unwrap();
    assert_eq!(allocations(&two, none), 1);
}

/// A request that may be sent again is kept, and a clone of it is sent. The clone of its headers takes an allocation for
/// names and values, and one for their index.
#[test]
fn a_request_that_may_be_sent_again_has_its_headers_cloned() {
    let headers = || vec![(ACCEPT, HeaderValue::from_static("*/*"))];
    assert_eq!(allocations(&limited(), headers), 1 + 2);
    assert_eq!(allocations(&limited().without_retries(), headers), 1);
}

/// A value that was made of text at runtime is not counted by references before it is cloned for the first time.
#[test]
fn the_first_clone_of_a_value_allocates() {
    let headers = || {
        let token = HeaderValue::from_str(&format!("Bearer {}", 123)).unwrap();
        vec![(ACCEPT, HeaderValue::from_static("*/*")), (AUTHORIZATION, token)]
    };
    assert_eq!(allocations(&limited(), headers), 1 + 2 + 1);
    assert_eq!(allocations(&limited().without_retries(), headers), 1);
}
