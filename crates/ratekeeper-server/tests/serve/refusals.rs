//! Why a request was refused: its id, the refusal log, and `ratekeeper why`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};

use ratekeeper_testkit::{CA, CERTIFICATE, KEY, write_certificates};
use serde_json::{Value, json};

use crate::client::Client;
use crate::process::{Server, file, path, policy, request};

const DESCRIBED: &str = r#"{"request":{"method":"GET","path":"/","peer":"192.0.2.1"}}"#;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn admin(server: &Server, path: &str) -> (u16, String) {
    let response = Client::connect(server.admin()).get(path);
    (response.status(), response.body)
}

fn why(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ratekeeper")).arg("why").args(args).output().unwrap()
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

/// Sends requests until one is refused, and returns the response to that one.
fn refused(server: &Server, headers: &str, body: &str) -> (String, Value) {
    let mut client = server.connect();
    for _ in 0..100 {
        let response = client.request(&request("/v1/check", headers, body));
        if response.status() == 429 {
            return (response.head.get("x-request-id").unwrap(), json(&response.body));
        }
    }
    panic!("no request was refused");
}

#[test]
fn a_refusal_by_the_policy_is_explained_with_its_rule() {
    let file = policy("limits:\n  - { name: api, per: ip, rate: 2/hour, algorithm: sliding_log }");
    let server = Server::start(&[path(file.path())]);
    let (id, body) = refused(&server, "", DESCRIBED);
    assert_eq!(body["request_id"], id.as_str());
    let (status, found) = admin(&server, &format!("/v1/refusals/{id}?rate=3/hour"));
    let found = &json(&found)["refusals"][0];
    assert_eq!(status, 200);
    assert_eq!(found["rule"], json!({ "file": path(file.path()), "line": 3 }));
    assert_eq!((&found["key"], &found["protocol"]), (&json!("ip=192.0.2.1"), &json!("http")));
    assert_eq!(found["state"]["words"], "2 of 2 in the last hour, 1 asked");
    assert_eq!(found["again"]["same"], true);
    assert_eq!(found["again"]["decision"], found["decision"]);
    assert_eq!(found["what_if"]["decision"]["allowed"], true);
    let wait = found["decision"]["retry_after_us"].as_u64().unwrap();
    assert_eq!(found["passes_at_us"], found["at_us"].as_u64().unwrap() + wait);
}

#[test]
fn every_protocol_records_its_refusals_under_the_id_that_the_client_got() {
    let config = crate::process::envoy_config(1);
    let server = Server::start(&[
        "--resp",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--envoy-config",
        path(config.path()),
    ]);
    let own = "X-Request-Id: abc-1\r\n";
    let (id, body) = refused(&server, own, r#"{"key":"k","rate":"1/hour","cost":1}"#);
    assert_eq!((id.as_str(), &body["request_id"]), ("abc-1", &json!("abc-1")));

    let mut resp = TcpStream::connect(server.resp()).unwrap();
    resp.write_all(b"RK.CHECK r 1/day\r\nRK.CHECK r 1/day\r\nQUIT\r\n").unwrap();
    let mut replies = String::new();
    resp.read_to_string(&mut replies).unwrap();
    let of_resp = replies.split("request_id\r\n$32\r\n").nth(1).expect(&replies)[..32].to_string();

    let mut of_envoy = None;
    let descriptors =
        r#"{"domain":"test","descriptors":[{"entries":[{"key":"user","value":"u"}]}]}"#;
    for _ in 0..2 {
        let response = server.connect().request(&request("/json", "", descriptors));
        let headers = json(&response.body)["responseHeadersToAdd"].clone();
        let header =
            headers.as_array().into_iter().flatten().find(|one| one["key"] == "x-request-id");
        of_envoy = header.map(|header| header["value"].as_str().unwrap().to_string());
    }
    for (id, protocol) in [("abc-1", "http"), (&of_resp, "resp"), (&of_envoy.unwrap(), "envoy")] {
        let (status, found) = admin(&server, &format!("/v1/refusals/{id}"));
        assert_eq!(status, 200, "{protocol}: {found}");
        let found = &json(&found)["refusals"][0];
        assert_eq!((&found["protocol"], &found["again"]["same"]), (&json!(protocol), &json!(true)));
    }
    let metrics = server.metrics();
    let (_, all) = admin(&server, "/v1/refusals");
    assert_eq!(json(&all)["matching"], 3);
    assert!(metrics.contains("ratekeeper_refusal_log_total{result=\"dropped\"} 0"), "{metrics}");
}

#[test]
fn refusals_are_listed_by_key_limit_and_time() {
    let file = policy(
        "limits:\n  - { name: api, per: ip, rate: 1/hour }\n  - { name: new, per: ip, rate: 1/day, mode: shadow }",
    );
    let server = Server::start(&[path(file.path())]);
    let described = |ip: &str| json!({"request": {"method": "GET", "path": "/", "peer": ip}});
    for ip in ["192.0.2.1", "192.0.2.1", "192.0.2.2"] {
        server.post("/v1/check", described(ip));
    }
    server.post("/v1/reset", described("192.0.2.2"));
    server.post("/v1/check", json!({"key": "192.0.2.2", "rate": "1/hour", "name": "other"}));
    let matching = |query: &str| {
        let (status, found) = admin(&server, &format!("/v1/refusals?{query}"));
        assert_eq!(status, 200, "{found}");
        json(&found)["matching"].as_u64().unwrap()
    };
    assert_eq!(matching("key=192.0.2.1"), 1);
    assert_eq!(matching("key=192.0.2.1&limit=new"), 0);
    assert_eq!((matching("limit=api&since=1h"), matching("since=2099-01-01T00:00:00Z")), (1, 0));
    for (query, hint) in [("kay=1", "key, limit"), ("since=x", "5m"), ("n=0", "1 to 1000")] {
        let (status, why) = admin(&server, &format!("/v1/refusals?{query}"));
        assert!(status == 400 && why.contains(hint), "{query}: {why}");
    }
    assert_eq!(admin(&server, "/v1/refusals/none").0, 404);
}

#[test]
fn shadow_mode_says_who_would_have_been_refused() {
    let file = policy("limits:\n  - { name: new, per: ip, rate: 1/day, mode: shadow }");
    let server = Server::start(&[path(file.path())]);
    for _ in 0..3 {
        let (status, _) = server.post("/v1/check", json(DESCRIBED));
        assert_eq!(status, 200);
    }
    let (_, found) = admin(&server, "/v1/refusals?outcome=shadow_denied&key=192.0.2.1");
    let found = &json(&found)["refusals"];
    assert_eq!(found.as_array().unwrap().len(), 2);
    assert_eq!(
        (&found[0]["limit"], &found[0]["outcome"]),
        (&json!("new"), &json!("shadow_denied"))
    );
    let (_, top) = admin(&server, "/v1/top");
    let key = &json(&top)["most_shadow_denied"]["keys"][0];
    assert_eq!((&key["key"], &key["count"]), (&json!("ip=192.0.2.1"), &json!(2)));
}

#[test]
fn keys_are_hashed_if_the_policy_says_so() {
    let file =
        policy("refusals: { keys: hashed }\nlimits:\n  - { name: api, per: ip, rate: 1/hour }");
    let server = Server::start(&[path(file.path())]);
    refused(&server, "", DESCRIBED);
    let (_, all) = admin(&server, "/v1/refusals?key=ip%3D192.0.2.1");
    assert!(!all.contains("192.0.2.1"), "{all}");
    assert_eq!(json(&all)["refusals"][0]["key_hashed"], true);
}

#[test]
fn why_prints_the_explanation_over_tls_with_a_token() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let of = |name: &str| folder.path().join(name).display().to_string();
    let (tokens, policy) =
        (file("omega\n"), policy("limits:\n  - { name: api, per: ip, rate: 1/hour }"));
    let (certificate, key) = (of(CERTIFICATE), of(KEY));
    let server = Server::start(&[
        path(policy.path()),
        "--admin-tokens",
        path(tokens.path()),
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--plaintext",
        "http",
    ]);
    let (id, _) = refused(&server, "", DESCRIBED);
    let (admin, ca) = (format!("https://localhost:{}", server.admin().port()), of(CA));
    let options = ["--admin", &admin, "--ca", &ca];
    let with_token = [&options[..], &["--token", path(tokens.path())]].concat();
    let ask = |args: &[&str]| why(&[args, &with_token[..]].concat());

    let explained = ask(&[&id, "--rate", "5/hour"]);
    let shown = text(&explained.stdout);
    for part in [
        "was refused by api",
        "state     0 of 1 left, refilled at 1/h, 1 asked",
        "the same decision, bit for bit",
        "With 5/h, it would have passed",
        &format!("{}:3", path(policy.path())),
    ] {
        assert!(shown.contains(part), "{part}: {shown}{}", text(&explained.stderr));
    }
    let listed = ask(&["--key", "192.0.2.1", "--format", "json"]);
    assert_eq!(json(&text(&listed.stdout))["matching"], 1);
    let unknown = ask(&["none"]);
    assert!(unknown.status.code() == Some(1) && text(&unknown.stderr).contains("--key"));
    let without_token = why(&[&[id.as_str()], &options[..]].concat());
    assert!(text(&without_token.stderr).contains("--token"), "{}", text(&without_token.stderr));
}
