//! Spellings of one request count as one, however the server is asked about it.

use ratekeeper_testkit::evasion::{POLICY, Spelling, count_as_one, malformed};
use serde_json::{Map, Value, json};

use crate::client::Answer;
use crate::process::{Server, file, path, post};

/// As a program describes it.
fn described(server: &Server, spelling: &Spelling) -> Answer {
    let mut headers = Map::new();
    for (name, _) in &spelling.headers {
        headers.insert(name.to_string(), json!(spelling.header(name)));
    }
    let Spelling { method, target, host, .. } = spelling;
    let request = json!({ "method": method, "path": target, "host": host, "headers": headers });
    post(&mut server.connect(), "/v1/check", &json!({ "request": request }).to_string())
}

/// As nginx describes it.
fn forwarded(server: &Server, spelling: &Spelling) -> Answer {
    let Spelling { method, target, host, headers } = spelling;
    let lines: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    server.connect().ask(&format!(
        "GET /v1/auth HTTP/1.1\r\nHost: ratekeeper\r\nX-Original-Method: {method}\r\nX-Original-URI: {target}\r\n\
         X-Original-Host: {host}\r\n{lines}\r\n"
    ))
}

#[test]
fn every_spelling_is_counted_as_the_same() {
    let policy = file(POLICY);
    for ask in [described, forwarded] {
        let server = Server::start(&[path(policy.path())]);
        count_as_one(|spelling| {
            let answer = ask(&server, spelling);
            assert_eq!(answer.status(), 200, "{spelling:?}: {}", answer.body);
            answer.head.get("ratelimit")
        });
    }
}

#[test]
fn a_host_that_is_none_is_an_error() {
    let policy = file(POLICY);
    let server = Server::start(&[path(policy.path())]);
    for spelling in malformed() {
        let wrong = described(&server, &spelling);
        assert_eq!(wrong.status(), 400, "{spelling:?}: {}", wrong.body);
        let told: Value = serde_json::from_str(&wrong.body).unwrap();
        assert!(told["message"].as_str().unwrap().contains("NAME:PORT"), "{told}");
        let refused = forwarded(&server, &spelling);
        assert_eq!(refused.status(), 403, "{spelling:?}: {}", refused.body);
        assert!(refused.body.contains("INVALID_HOST"), "{}", refused.body);
    }
}

/// nginx passes on what follows `#`, and routes without it.
#[test]
fn a_target_is_read_as_a_server_reads_it() {
    let policy = file(POLICY);
    let server = Server::start(&[path(policy.path())]);
    let headers = vec![("x-case", "path")];
    let ask = |target| {
        let spelling = Spelling { method: "GET", target, host: "", headers: headers.clone() };
        forwarded(&server, &spelling).head.get("ratelimit").unwrap_or_default()
    };
    assert!(ask("/checkout#x").contains("r=99;"));
    assert!(ask("http://shop.example/checkout").contains("r=98;"));
}
