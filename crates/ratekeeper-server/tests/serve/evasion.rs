//! All spellings of a request are counted as one, whether it is described in JSON or by a proxy.

use ratekeeper_testkit::evasion::{POLICY, Spelling, count_as_one, malformed};
use serde_json::{Map, Value, json};

use crate::client::Response;
use crate::process::{Server, file, path, post};

/// Describes the request in JSON.
fn described(server: &Server, spelling: &Spelling) -> Response {
    let mut headers = Map::new();
    for (name, _) in &spelling.headers {
        headers.insert(name.to_string(), json!(spelling.header(name)));
    }
    let Spelling { method, target, host, .. } = spelling;
    let peer = "192.0.2.1";
    let request =
        json!({ "method": method, "path": target, "host": host, "headers": headers, "peer": peer });
    post(&mut server.connect(), "/v1/check", &json!({ "request": request }).to_string())
}

/// Describes the request as nginx does.
fn forwarded(server: &Server, spelling: &Spelling) -> Response {
    let Spelling { method, target, host, headers } = spelling;
    let lines: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    server.connect().request(&format!(
        "GET /v1/auth HTTP/1.1\r\nHost: ratekeeper\r\nX-Original-Method: {method}\r\nX-Original-URI: {target}\r\n\
         X-Original-Host: {host}\r\n{lines}\r\n"
    ))
}

#[test]
fn all_spellings_of_a_request_are_counted_as_one() {
    let policy = file(POLICY);
    for send in [described, forwarded] {
        let server = Server::start(&[path(policy.path())]);
        count_as_one(|spelling| {
            let response = send(&server, spelling);
            assert_eq!(response.status(), 200, "{spelling:?}: {}", response.body);
            response.head.get("ratelimit")
        });
    }
}

#[test]
fn an_invalid_host_is_rejected() {
    let policy = file(POLICY);
    let server = Server::start(&[path(policy.path())]);
    for spelling in malformed() {
        let invalid = described(&server, &spelling);
        assert_eq!(invalid.status(), 400, "{spelling:?}: {}", invalid.body);
        let error: Value = serde_json::from_str(&invalid.body).unwrap();
        assert!(error["message"].as_str().unwrap().contains("NAME:PORT"), "{error}");
        let denied = forwarded(&server, &spelling);
        assert_eq!(denied.status(), 403, "{spelling:?}: {}", denied.body);
        assert!(denied.body.contains("INVALID_HOST"), "{}", denied.body);
    }
}

/// nginx forwards the fragment of a target, but ignores it when it routes.
#[test]
fn a_target_is_parsed_as_a_server_parses_it() {
    let policy = file(POLICY);
    let server = Server::start(&[path(policy.path())]);
    let headers = vec![("x-case", "path")];
    let ratelimit = |target| {
        let spelling = Spelling { method: "GET", target, host: "", headers: headers.clone() };
        forwarded(&server, &spelling).head.get("ratelimit").unwrap_or_default()
    };
    assert!(ratelimit("/checkout#x").contains("r=99;"));
    assert!(ratelimit("http://shop.example/checkout").contains("r=98;"));
}
