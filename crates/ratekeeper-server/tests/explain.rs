//! `explain --state` against a real Redis.

use std::fs;
use std::process::Command;

use ratekeeper_testkit::RedisServer;

fn ratekeeper(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ratekeeper")).args(args).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(told).unwrap())
}

/// What Redis holds after a request: a program that serves would have put it there.
fn charge(url: &str, policy: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let policy = policy.replace("DEADLINE", "5s").replace("URL", url);
        let policy =
            ratekeeper::Policy::parse("p", &policy, &ratekeeper::policy::NoSources).unwrap();
        let gate = ratekeeper::PolicyLimiter::new(policy).unwrap();
        let peer = Some([203, 0, 113, 9].into());
        let request = ratekeeper::policy::RequestAttributes {
            peer,
            ..ratekeeper::policy::RequestAttributes::new("GET", "/")
        };
        for _ in 0..3 {
            assert!(gate.decide(&request).await.is_admitted());
        }
    });
}

#[test]
fn a_host_that_a_server_refuses_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    fs::write(&file, "version: 1\nlimits: []\n").unwrap();
    let explain =
        |args: &[&str]| ratekeeper(&[&["explain", file.to_str().unwrap()], args].concat());
    assert_eq!(explain(&["--host", "a:80"]).0, Some(0));
    let (code, told) = explain(&["--host", "a:80:80"]);
    assert!(code == Some(2) && told.contains("NAME:PORT"), "{code:?} {told}");
    let (code, told) = explain(&["--path", "http://a/", "--header", "host: b"]);
    assert!(code == Some(2) && told.contains("is not the host"), "{code:?} {told}");
}

const POLICY: &str = "version: 1
store: { url: URL, deadline: DEADLINE }
limits:
  - { name: api, per: ip, rate: 10/hour burst 10 }
";

#[test]
fn the_state_is_that_of_the_store() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    fs::write(&file, POLICY.replace("URL", &server.url()).replace("DEADLINE", "5ms")).unwrap();
    charge(&server.url(), POLICY);
    let explain = ["explain", file.to_str().unwrap(), "--peer", "203.0.113.9", "--state"];
    // Asked twice: to look charges nothing.
    for _ in 0..2 {
        let (code, told) = ratekeeper(&explain);
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("7 of 10"), "{told}");
    }
    let (_, told) = ratekeeper(&[&explain[..], &["--format", "json"]].concat());
    assert!(told.contains("\"remaining\": 7") && told.contains("\"known\": true"), "{told}");
    server.kill();
    let (code, told) = ratekeeper(&explain);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("the store did not respond"), "{told}");
}
