//! Clients that spell a request differently to evade a limit.

use std::collections::HashMap;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use ratekeeper_testkit::evasion::{POLICY, Spelling, count_as_one, malformed};

use crate::backend::Backend;
use crate::client::Response;
use crate::http2::{connect, run, text};
use crate::process::Gateway;

fn policy(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn gateway(backend: &Backend, text: &str) -> (Gateway, tempfile::NamedTempFile) {
    let file = policy(text);
    (Gateway::before(backend, &[file.path().to_str().unwrap()]), file)
}

fn send_http1(gateway: &Gateway, spelling: &Spelling) -> Response {
    let Spelling { method, target, host, headers } = spelling;
    let lines: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    gateway.connect().request(&format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n"))
}

fn http2(spelling: &Spelling) -> Option<Request<Full<Bytes>>> {
    let uri = format!("http://{}{}", spelling.host, spelling.target);
    let mut request = Request::builder().method(spelling.method).uri(uri);
    for (name, value) in &spelling.headers {
        request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    request.body(Full::default()).ok()
}

/// Asserts that the upstream received the key that was counted.
fn assert_key_forwarded(spelling: &Spelling, seen: &str) {
    if !spelling.header("x-api-key").is_empty() {
        let lines = seen.lines().filter_map(|line| line.strip_prefix("x-api-key: "));
        let values: Vec<_> = lines.map(|value| value.trim_matches([',', ' '])).collect();
        assert!(!values.is_empty() && values.iter().all(|value| *value == "k"), "{seen}");
    }
}

#[test]
fn every_spelling_over_http1_shares_one_quota() {
    let (gateway, _file) = gateway(&Backend::echo(), POLICY);
    count_as_one(|spelling| {
        let response = send_http1(&gateway, spelling);
        assert_eq!(response.status(), 200, "{spelling:?}: {}", response.body);
        assert_key_forwarded(spelling, &response.body);
        response.head.get("ratelimit")
    });
}

#[test]
fn every_spelling_over_http2_shares_one_quota() {
    let (gateway, _file) = gateway(&Backend::echo(), POLICY);
    count_as_one(|spelling| {
        let request = http2(spelling)?;
        run(async {
            let response = connect(&gateway).await.send_request(request).await.unwrap();
            assert_eq!(response.status(), 200, "{spelling:?}");
            let ratelimit =
                response.headers().get("ratelimit").unwrap().to_str().unwrap().to_string();
            assert_key_forwarded(spelling, &text(response).await);
            Some(ratelimit)
        })
    });
}

#[test]
fn a_malformed_host_is_rejected() {
    let backend = Backend::echo();
    let (gateway, _file) = gateway(&backend, POLICY);
    for spelling in malformed() {
        assert_eq!(send_http1(&gateway, &spelling).status(), 400, "{spelling:?}");
        if let Some(request) = http2(&spelling) {
            run(async {
                let response = connect(&gateway).await.send_request(request).await.unwrap();
                assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{spelling:?}");
            });
        }
    }
    assert_eq!(backend.requests(), 0);
}

const PER_KEY: &str = "version: 1
identify: { key: { header: x-api-key } }
limits: [{ name: api, per: key, rate: 4/hour burst 4 }]
";

#[test]
fn ten_spellings_of_one_key_share_one_quota() {
    let backend = Backend::echo();
    let (gateway, _file) = gateway(&backend, PER_KEY);
    let keys = ["k", " k", "k ", "  k", "k  ", "\tk", "k\t", " k ", "\t k", "k \t"];
    let statuses = run(async {
        let mut sender = connect(&gateway).await;
        let mut statuses = Vec::new();
        for key in keys {
            let key = HeaderValue::from_bytes(key.as_bytes()).unwrap();
            let request = Request::get("http://a/").header("x-api-key", key);
            let response =
                sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
            statuses.push(response.status().as_u16());
        }
        statuses
    });
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429, 429, 429, 429, 429]);
    assert_eq!(backend.requests(), 4);
}

/// Tries every value of up to four of these characters.
#[test]
fn values_that_are_equal_to_the_upstream_share_one_quota() {
    let rate = PER_KEY.replace("4/hour burst 4", "1000/year burst 1000");
    let (gateway, _file) = gateway(&Backend::echo(), &rate);
    let mut values = vec![String::new()];
    for n in 0..340 {
        values.push(format!("{}{}", values[n / 4], [" ", "\t", "k", ","][n % 4]));
    }
    let mut left: HashMap<String, u32> = HashMap::new();
    run(async {
        let mut sender = connect(&gateway).await;
        for value in values {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            let request = Request::get("http://a/").header("x-api-key", &value);
            let response =
                sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
            let ratelimit = response.headers()["ratelimit"].to_str().unwrap();
            let now = ratelimit.split(['=', ';']).nth(2).unwrap().parse().unwrap();
            let body = text(response).await;
            let seen = body.lines().find_map(|line| line.strip_prefix("x-api-key:")).unwrap();
            let before = left.insert(seen.trim().to_string(), now);
            assert!(before.is_none_or(|before| now < before), "{value:?}: {before:?}, then {now}");
        }
    });
    assert!(left.len() > 10, "{left:?}");
}

/// Otherwise the policy would count the key, and the upstream would not receive it.
#[test]
fn a_request_that_removes_its_own_key_is_rejected() {
    let backend = Backend::echo();
    let (gateway, _file) = gateway(&backend, PER_KEY);
    let send = |headers: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: k\r\n{headers}\r\n\r\n");
        gateway.connect().request(&request)
    };
    for headers in [
        "Connection: x-api-key",
        "Connection: close, X-Api-Key",
        "Connection: close\r\nConnection: x-api-key",
        "Connection: authorization",
        "Connection: cookie",
        "Connection: x-forwarded-for",
        "Connection: x-request-id",
        "Connection: host",
        "X_Api_Key: other",
        "X_Forwarded_For: 192.0.2.1",
    ] {
        let refused = send(headers);
        assert_eq!(refused.status(), 400, "{headers}: {}", refused.body);
    }
    assert_eq!(backend.requests(), 0);
    for headers in [
        "Connection: keep-alive, x-mine\r\nX-Mine: 1",
        "Keep-Alive: x-api-key",
        "TE: x-api-key",
        "Upgrade: x-api-key\r\nConnection: upgrade",
    ] {
        let passed = send(headers);
        assert_eq!(passed.status(), 200, "{headers}: {}", passed.body);
        assert!(passed.body.contains("x-api-key: k\n"), "{headers}: {}", passed.body);
    }
}

#[test]
fn two_content_lengths_over_http2_are_rejected() {
    let backend = Backend::echo();
    let gateway = Gateway::before(&backend, &[]);
    run(async {
        let mut sender = connect(&gateway).await;
        let request = Request::post("http://a/").header("content-length", "3");
        let request = request.header("content-length", "3").body(Full::from("abc")).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert!(text(response).await.contains("more than one Content-Length"));
    });
    assert_eq!(backend.requests(), 0);
}

#[test]
fn a_request_without_a_host_is_counted_under_the_host_sent_upstream() {
    let backend = Backend::echo();
    let limits = "version: 1\nlimits: [{ name: host, match: { host: 127.0.0.1 }, rate: 3/hour }]\n";
    let (gateway, _file) = gateway(&backend, limits);
    let statuses = [(); 4].map(|()| gateway.connect().request("GET / HTTP/1.0\r\n\r\n").status());
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[test]
fn a_bare_line_feed_in_a_chunk_smuggles_no_request() {
    for chunk in ["3;\n\r\nabc\r\n0\r\n\r\n", "2;\nxx\r\n0\r\n\r\n", "3;x\n\r\nabc\r\n0\r\n\r\n"] {
        let backend = Backend::echo();
        let gateway = Gateway::before(&backend, &[]);
        let mut client = gateway.connect();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}\
             GET /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc"
        ));
        client.0.end();
        let responses = client.0.rest();
        assert!(!responses.contains("/smuggled"), "{chunk:?}: {responses}");
        assert!(responses.matches("HTTP/1.1 ").count() <= 1, "{chunk:?}: {responses}");
        assert!(!responses.contains("HTTP/1.1 200 "), "{chunk:?}: {responses}");
    }
}
