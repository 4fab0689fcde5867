//! Different spellings of one request share a quota in an axum app behind the layer.
#![cfg(feature = "tower")]

use axum::Router;
use axum::body::Body;
use http::{HeaderValue, Request, Response};
use ratekeeper::policy::NoSources;
use ratekeeper::{Policy, PolicyLimiter, RatekeeperLayer};
use ratekeeper_testkit::evasion::{POLICY, Spelling, count_as_one, malformed};
use tower::ServiceExt;

fn app() -> Router {
    let policy = Policy::parse("evasion", POLICY, &NoSources).unwrap_or_else(|e| panic!("{e}"));
    Router::new()
        .fallback(async || "served")
        .layer(RatekeeperLayer::new(PolicyLimiter::new(policy).unwrap()))
}

fn request(uri: &str, host: Option<&str>, spelling: &Spelling) -> Option<Request<Body>> {
    let mut request = Request::builder().method(spelling.method).uri(uri);
    for (name, value) in host.map(|host| ("host", host)).iter().chain(&spelling.headers) {
        request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    request.body(Body::empty()).ok()
}

/// With a Host header, as in HTTP/1.
fn with_header(spelling: &Spelling) -> Option<Request<Body>> {
    request(spelling.target, Some(spelling.host), spelling)
}

/// With an authority, as in HTTP/2.
fn with_authority(spelling: &Spelling) -> Option<Request<Body>> {
    request(&format!("http://{}{}", spelling.host, spelling.target), None, spelling)
}

fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(app.clone().oneshot(request)).unwrap()
}

#[test]
fn every_spelling_shares_one_quota() {
    for write in [with_header, with_authority] {
        let app = app();
        count_as_one(|spelling| {
            let response = send(&app, write(spelling)?);
            Some(response.headers().get("ratelimit")?.to_str().unwrap().to_string())
        });
    }
}

#[test]
fn a_request_with_an_ambiguous_host_is_rejected() {
    let app = app();
    for spelling in malformed() {
        for request in [with_header(&spelling), with_authority(&spelling)].into_iter().flatten() {
            assert_eq!(send(&app, request).status(), 400, "{spelling:?}");
        }
    }
    let plain = Spelling { method: "GET", target: "/", host: "a", headers: Vec::new() };
    let status = |host| send(&app, request("http://a/", Some(host), &plain).unwrap()).status();
    assert_eq!([status("b"), status("A:80")], [400, 200]);
    let mut twice = with_header(&plain).unwrap();
    twice.headers_mut().append("host", HeaderValue::from_static("a"));
    assert_eq!(send(&app, twice).status(), 400);
    let mut none = with_header(&plain).unwrap();
    none.headers_mut().remove("host");
    assert_eq!(send(&app, none).status(), 200);
}
