//! `explain --state` against a real Redis.

use std::fs;
use std::process::Command;

use ratekeeper_testkit::RedisServer;

fn ratekeeper(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ratekeeper")).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Charges three requests in Redis, as a running server would.
fn charge(url: &str, policy: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let policy = policy.replace("DEADLINE", "5s").replace("URL", url);
        let policy =
            ratekeeper::Policy::parse("p", &policy, &ratekeeper::policy::NoSources).unwrap();
        let limiter = ratekeeper::PolicyLimiter::new(policy).unwrap();
        let peer = Some([203, 0, 113, 9].into());
        let request = ratekeeper::policy::RequestAttributes {
            peer,
            ..ratekeeper::policy::RequestAttributes::new("GET", "/")
        };
        for _ in 0..3 {
            assert!(limiter.decide(&request).await.is_admitted());
        }
    });
}

#[test]
fn an_invalid_host_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    fs::write(&file, "version: 1\nlimits: []\n").unwrap();
    let explain =
        |args: &[&str]| ratekeeper(&[&["explain", file.to_str().unwrap()], args].concat());
    assert_eq!(explain(&["--host", "a:80"]).0, Some(0));
    let (code, output) = explain(&["--host", "a:80:80"]);
    assert!(code == Some(2) && output.contains("NAME:PORT"), "{code:?} {output}");
    let (code, output) = explain(&["--path", "http://a/", "--header", "host: b"]);
    assert!(code == Some(2) && output.contains("is not the host"), "{code:?} {output}");
}

const POLICY: &str = "version: 1
store: { url: URL, deadline: DEADLINE }
limits:
  - { name: api, per: ip, rate: 10/hour burst 10 }
";

#[test]
fn state_is_read_from_the_store() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    fs::write(&file, POLICY.replace("URL", &server.url()).replace("DEADLINE", "5ms")).unwrap();
    charge(&server.url(), POLICY);
    let explain = ["explain", file.to_str().unwrap(), "--peer", "203.0.113.9", "--state"];
    // Twice, because explain charges nothing.
    for _ in 0..2 {
        let (code, output) = ratekeeper(&explain);
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("7 of 10"), "{output}");
    }
    let (_, output) = ratekeeper(&[&explain[..], &["--format", "json"]].concat());
    assert!(output.contains("\"remaining\": 7") && output.contains("\"known\": true"), "{output}");
    server.kill();
    let (code, output) = ratekeeper(&explain);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("the store did not respond"), "{output}");
}
