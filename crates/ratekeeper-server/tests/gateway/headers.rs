//! Forwarded, removed and added headers, and the access log.

use std::fs;
use std::process::Command;
use std::time::Duration;

use ratekeeper_testkit::wait_until;

use crate::backend::Backend;
use crate::process::Gateway;

/// Returns what the upstream received for this request.
fn seen(args: &[&str], request: &str) -> String {
    let gateway = Gateway::before(&Backend::echo(), args);
    let response = gateway.connect().request(request);
    assert_eq!(response.status(), 200, "{}", response.body);
    response.body
}

#[test]
fn hop_by_hop_headers_of_a_request_are_removed() {
    let seen = seen(
        &[],
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\nX-Theirs: 2\r\n\
         Keep-Alive: timeout=5\r\nProxy-Authorization: x\r\nProxy-Connection: x\r\nTE: gzip\r\n\r\n",
    );
    assert!(seen.contains("x-theirs: 2\n"), "{seen}");
    for name in ["connection", "x-mine", "keep-alive", "proxy-", "\nte:"] {
        assert!(!seen.contains(name), "{name} was forwarded: {seen}");
    }
}

#[test]
fn hop_by_hop_headers_of_a_response_are_removed() {
    let backend = Backend::start(|_, wire| {
        wire.send(
            "HTTP/1.1 200 OK\r\nConnection: X-Mine\r\nX-Mine: 1\r\nX-Theirs: 2\r\nKeep-Alive: timeout=5\r\n\
             Proxy-Authenticate: x\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        );
        true
    });
    let gateway = Gateway::before(&backend, &[]);
    let response = gateway.connect().get("/");
    assert_eq!(
        (response.body.as_str(), response.head.get("x-theirs").as_deref()),
        ("ok", Some("2"))
    );
    for name in ["connection", "x-mine", "keep-alive", "proxy-authenticate", "upgrade"] {
        assert_eq!(response.head.get(name), None, "{name} was forwarded");
    }
}

const FORWARDED: &str = "GET / HTTP/1.1\r\nHost: a.example:81\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\n\
    X-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nForwarded: for=1.2.3.4\r\nX-Request-Id: mine-1\r\n\r\n";

#[test]
fn forwarding_headers_of_an_untrusted_client_are_replaced() {
    let seen = seen(&["--trusted-proxy", "10.0.0.0/8"], FORWARDED);
    assert!(seen.contains("x-forwarded-for: 127.0.0.1\n"), "{seen}");
    assert!(seen.contains("x-forwarded-proto: http\n"), "{seen}");
    assert!(seen.contains("x-forwarded-host: a.example:81\n"), "{seen}");
    assert!(!seen.contains("\nforwarded:") && !seen.contains("1.2.3.4"), "{seen}");
    assert!(seen.contains("x-request-id: ") && !seen.contains("mine-1"), "{seen}");
}

#[test]
fn forwarding_headers_of_a_trusted_proxy_are_kept() {
    let seen = seen(&["--trusted-proxy", "127.0.0.0/8"], FORWARDED);
    assert!(seen.contains("x-forwarded-for: 1.2.3.4, 5.6.7.8, 127.0.0.1\n"), "{seen}");
    assert!(seen.contains("x-forwarded-proto: https\n"), "{seen}");
    assert!(seen.contains("x-forwarded-host: b\n"), "{seen}");
    assert!(seen.contains("\nforwarded: for=1.2.3.4\n"), "{seen}");
    assert!(seen.contains("x-request-id: mine-1\n"), "{seen}");
}

#[test]
fn every_response_has_a_request_id() {
    let gateway = Gateway::before(&Backend::echo(), &["--request-id-header", "X-Trace"]);
    let mut client = gateway.connect();
    let response = client.get("/");
    let id = response.head.get("x-trace").expect("an id");
    assert!(response.body.contains(&format!("x-trace: {id}\n")), "{}", response.body);
    let refused = client.request("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
    assert!(refused.status() == 400 && refused.head.get("x-trace").is_some_and(|next| next != id));
}

#[test]
fn the_host_is_forwarded_unchanged() {
    assert!(
        seen(&[], "GET / HTTP/1.1\r\nHost: Shop.example:81\r\n\r\n")
            .contains("host: Shop.example:81\n")
    );
}

#[test]
fn the_host_of_an_absolute_target_overrides_the_host_header() {
    let seen = seen(&[], "GET http://a.example/x?y HTTP/1.1\r\nHost: b\r\n\r\n");
    assert!(seen.starts_with("GET /x?y HTTP/1.1\n"), "{seen}");
    assert!(seen.contains("host: a.example\n") && !seen.contains("host: b\n"), "{seen}");
}

#[test]
fn the_path_is_forwarded_byte_for_byte() {
    for path in ["/a/../b//c/./%2e%2F?x=%20&y=//", "/?", "/%00", "/a;b=c:@!$&'()*+,=~", "//host/x"]
    {
        let seen = seen(&[], &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(seen.starts_with(&format!("GET {path} HTTP/1.1\n")), "{path}: {seen}");
    }
}

#[test]
fn an_http_1_0_client_is_served() {
    let gateway = Gateway::before(&Backend::echo(), &[]);
    let mut client = gateway.connect();
    let response = client.request("GET / HTTP/1.0\r\n\r\n");
    assert!(response.body.starts_with("GET / HTTP/1.1\n"), "{}", response.body);
    assert!(response.body.contains("\nhost: 127.0.0.1:"), "{}", response.body);
    assert!(client.0.is_closed());
}

#[test]
fn connect_is_rejected() {
    let gateway = Gateway::before(&Backend::echo(), &[]);
    let response = gateway.connect().request("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n");
    assert_eq!(response.status(), 405);
    assert!(response.body.contains("\"code\":\"METHOD_NOT_ALLOWED\""), "{}", response.body);
}

#[test]
fn each_request_is_one_line_in_the_access_log() {
    let backend = Backend::says("hello");
    let gateway = Gateway::before(&backend, &["--access-log", "json"]);
    let id = gateway.connect().get("/a?b=c").head.get("x-request-id").unwrap();
    wait_until("a line is written", || gateway.output().ends_with("}\n"));
    let line = gateway.output();
    assert!(line.contains("\"target\":\"/a?b=c\",\"status\":200,\"bytes\":5"), "{line}");
    assert!(
        line.contains(&format!("\"upstream\":\"{}\",\"id\":\"{id}\"", backend.address())),
        "{line}"
    );

    let gateway = Gateway::before(&backend, &["--access-log", "text"]);
    gateway.connect().get("/a");
    wait_until("a line is written", || gateway.output().ends_with('\n'));
    assert!(gateway.output().contains(" 127.0.0.1 GET /a 200 5 "), "{}", gateway.output());
}

#[test]
fn the_access_log_is_replayed() {
    let (backend, folder) = (Backend::says("hello"), tempfile::tempdir().unwrap());
    let (log, policy) = (folder.path().join("access.log"), folder.path().join("policy.yaml"));
    fs::write(&policy, "version: 1\nlimits: [{ name: api, per: ip, rate: 5/minute }]\n").unwrap();
    for (format, name) in [("text", "gateway"), ("json", "gateway-json")] {
        let gateway = Gateway::before(&backend, &["--access-log", format]);
        let mut client = gateway.connect();
        (0..12).for_each(|number| drop(client.get(&format!("/items/{number}?a=b"))));
        wait_until("12 lines are written", || gateway.output().matches('\n').count() == 12);
        fs::write(&log, gateway.output()).unwrap();
        let mut replay = Command::new(env!("CARGO_BIN_EXE_ratekeeper"));
        let output = replay.arg("replay").args([&log, &policy]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for expected in [
            &format!("access.log ({name}), 12 requests in"),
            "admitted 5 (41.7%) refused 7 (58.3%)",
        ] {
            assert!(words.contains(expected), "{text}");
        }
    }
}

#[test]
fn an_idle_connection_is_closed() {
    let gateway = Gateway::before(&Backend::says("hello"), &["--idle-timeout", "1s"]);
    let mut client = gateway.connect();
    client.0.stream().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(client.get("/").body, "hello");
    assert!(client.0.is_closed());
}
