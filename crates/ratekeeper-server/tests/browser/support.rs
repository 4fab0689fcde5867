//! Servers with a console, requests to them, and what holds on every page.

use std::io::Write;

use ratekeeper_testkit::http1::Client;
use ratekeeper_testkit::{Browser, Listener, Server, ServerBuilder};
use serde_json::json;
use tempfile::NamedTempFile;

pub(super) const POLICY: &str = "\
version: 1
identify:
  user: { header: x-user }
limits:
  - { name: search, per: user, match: { path: /search }, rate: 5/hour }
  - { name: trial, per: user, rate: 3/hour, mode: shadow }
";

pub(super) fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

pub(super) fn serve(policy: &NamedTempFile, more: &[&str]) -> Server {
    ServerBuilder::serve(env!("CARGO_BIN_EXE_ratekeeper"))
        .listen(&[Listener::Http, Listener::Admin])
        .args([policy.path().to_str().unwrap()])
        .args(more.iter().copied())
        .start()
}

/// Asks the server about so many requests of a user.
pub(super) fn send(server: &Server, user: &str, path: &str, times: u32) {
    let mut client = Client::connect(server.http());
    let request =
        json!({ "request": { "method": "GET", "path": path, "headers": { "x-user": user } } });
    let body = request.to_string();
    for _ in 0..times {
        let response = client.request(&format!(
            "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert!([200, 429].contains(&response.status()), "{}", response.body);
    }
}

pub(super) fn open(browser: &Browser, server: &Server, page: &str) {
    browser.open(&format!("http://{}/#/{page}", server.admin()));
}

/// The console wrote no error and requested nothing from elsewhere.
pub(super) fn assert_clean(browser: &Browser, server: &Server) {
    assert_eq!(browser.problems(), [""; 0]);
    let own = format!("http://{}/", server.admin());
    let requests = browser.requests();
    assert!(requests.iter().all(|url| url.starts_with(&own)), "{requests:?}");
}
