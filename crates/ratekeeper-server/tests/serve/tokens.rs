//! Who may ask: bearer tokens at the doors that are for programs, and on the admin side.

use std::fs;
use std::time::Duration;

use ratekeeper_testkit::wait_until;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

use crate::client::Client;
use crate::grpc;
use crate::process::{Server, envoy_config, file, path, request};

const CHECK: &str = r#"{"key":"k","rate":"9/s"}"#;

fn ask(server: &Server, header: &str) -> u16 {
    server.connect().ask(&request("/v1/check", header, CHECK)).status()
}

#[test]
fn only_those_who_have_a_token_are_answered() {
    let tokens = file("# callers\nalpha\nbeta\n");
    let server = Server::start(&["--tokens", path(tokens.path())]);
    assert_eq!(ask(&server, "Authorization: Bearer beta\r\n"), 200);
    assert_eq!(ask(&server, "Authorization: Bearer gamma\r\n"), 401);
    assert_eq!(ask(&server, ""), 401);
    assert_eq!(server.connect().get("/healthz").status(), 200);
}

#[test]
fn changed_tokens_are_taken_up_and_a_file_without_any_is_not() {
    let tokens = file("alpha\n");
    let server = Server::start(&["--tokens", path(tokens.path())]);
    let write = |text: &str, ahead_s: u64| {
        fs::write(tokens.path(), text).unwrap();
        let at = fs::metadata(tokens.path()).unwrap().modified().unwrap();
        let at = at + Duration::from_secs(ahead_s);
        fs::File::options().write(true).open(tokens.path()).unwrap().set_modified(at).unwrap();
    };
    write("# none\n", 10);
    server.wait_for_log("tokens not reloaded");
    assert_eq!(ask(&server, "Authorization: Bearer alpha\r\n"), 200);
    write("alpha\nbeta\n", 20);
    wait_until("the new one will do", || ask(&server, "Authorization: Bearer beta\r\n") == 200);
    write("beta\n", 30);
    wait_until("the old one is over", || ask(&server, "Authorization: Bearer alpha\r\n") == 401);
}

#[test]
fn the_admin_side_has_tokens_of_its_own() {
    let (callers, operators) = (file("alpha\n"), file("omega\n"));
    let server = Server::start(&[
        "--tokens",
        path(callers.path()),
        "--admin-tokens",
        path(operators.path()),
    ]);
    let ask = |path: &str, header: &str| {
        let get = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{header}\r\n");
        Client::connect(server.admin()).ask(&get)
    };
    assert_eq!(ask("/metrics", "Authorization: Bearer omega\r\n").status(), 200);
    for header in ["", "Authorization: Bearer alpha\r\n"] {
        let refused = ask("/metrics", header);
        assert_eq!(refused.status(), 401);
        assert_eq!(refused.head.get("www-authenticate").as_deref(), Some("Bearer"));
    }
    for probe in ["/healthz", "/readyz"] {
        assert_eq!(ask(probe, "").status(), 200, "{probe} is for those who have no token");
    }
}

#[tokio::test]
async fn envoy_has_to_show_a_token_too() {
    let (tokens, config) = (file("alpha\n"), envoy_config(100));
    let server = Server::start(&[
        "--tokens",
        path(tokens.path()),
        "--grpc",
        "127.0.0.1:0",
        "--envoy-config",
        path(config.path()),
    ]);
    let mut client = grpc::Client::connect(server.grpc()).await;
    let question = || grpc::request(&[("user", "ann")]);
    let refused = client.send(question()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    for (token, is_known) in [("Bearer alpha", true), ("Bearer omega", false)] {
        let mut asked = Request::new(question());
        asked.metadata_mut().insert("authorization", MetadataValue::from_static(token));
        assert_eq!(client.send(asked).await.is_ok(), is_known, "{token}");
    }
}
