//! Bearer tokens on the HTTP, gRPC and admin listeners.

use std::fs;
use std::time::Duration;

use ratekeeper_testkit::wait_until;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

use crate::client::Client;
use crate::grpc;
use crate::process::{Server, envoy_config, file, path, request};

const CHECK: &str = r#"{"key":"k","rate":"9/s"}"#;

fn check(server: &Server, header: &str) -> u16 {
    server.connect().request(&request("/v1/check", header, CHECK)).status()
}

#[test]
fn a_request_without_a_valid_token_is_rejected() {
    let tokens = file("# callers\nalpha\nbeta\n");
    let server = Server::start(&["--tokens", path(tokens.path())]);
    assert_eq!(check(&server, "Authorization: Bearer beta\r\n"), 200);
    assert_eq!(check(&server, "Authorization: Bearer gamma\r\n"), 401);
    assert_eq!(check(&server, ""), 401);
    assert_eq!(server.connect().get("/healthz").status(), 200);
}

#[test]
fn changed_tokens_are_reloaded_and_a_file_without_any_is_rejected() {
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
    assert_eq!(check(&server, "Authorization: Bearer alpha\r\n"), 200);
    write("alpha\nbeta\n", 20);
    wait_until("the new token is accepted", || {
        check(&server, "Authorization: Bearer beta\r\n") == 200
    });
    write("beta\n", 30);
    wait_until("the old token is rejected", || {
        check(&server, "Authorization: Bearer alpha\r\n") == 401
    });
}

#[test]
fn the_admin_listener_has_its_own_tokens() {
    let (callers, operators) = (file("alpha\n"), file("omega\n"));
    let server = Server::start(&[
        "--tokens",
        path(callers.path()),
        "--admin-tokens",
        path(operators.path()),
    ]);
    let get = |path: &str, header: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{header}\r\n");
        Client::connect(server.admin()).request(&request)
    };
    assert_eq!(get("/metrics", "Authorization: Bearer omega\r\n").status(), 200);
    for header in ["", "Authorization: Bearer alpha\r\n"] {
        let rejected = get("/metrics", header);
        assert_eq!(rejected.status(), 401);
        assert_eq!(rejected.head.get("www-authenticate").as_deref(), Some("Bearer"));
    }
    for probe in ["/healthz", "/readyz"] {
        assert_eq!(get(probe, "").status(), 200, "{probe} needs no token");
    }
}

#[tokio::test]
async fn a_grpc_request_without_a_valid_token_is_rejected() {
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
    let message = || grpc::request(&[("user", "ann")]);
    let rejected = client.send(message()).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unauthenticated);
    for (token, is_valid) in [("Bearer alpha", true), ("Bearer omega", false)] {
        let mut request = Request::new(message());
        request.metadata_mut().insert("authorization", MetadataValue::from_static(token));
        assert_eq!(client.send(request).await.is_ok(), is_valid, "{token}");
    }
}
