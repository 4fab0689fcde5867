//! The server's process.

use std::borrow::Borrow;
use std::ops::{Deref, DerefMut};
use std::process::Output;

use ratekeeper_testkit::{Listener, ServerBuilder};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::client::{Client, Response};

/// A running server, killed on drop.
pub(crate) struct Server(ratekeeper_testkit::Server);

impl Server {
    /// Starts one with the HTTP API and the admin listener, and others that the arguments enable.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self(serve(args).start())
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.http())
    }

    pub(crate) fn post(&self, path: &str, body: impl Borrow<Value>) -> (u16, Value) {
        let response = post(&mut self.connect(), path, &body.borrow().to_string());
        (response.status(), serde_json::from_str(&response.body).unwrap_or(Value::Null))
    }
}

impl Server {
    /// Sends a check without TLS, and returns all that comes back.
    pub(crate) fn post_plain(&self) -> String {
        let mut client = self.connect();
        client.send(request("/v1/check", "Connection: close\r\n", "{}"));
        client.0.rest()
    }
}

impl Deref for Server {
    type Target = ratekeeper_testkit::Server;

    fn deref(&self) -> &ratekeeper_testkit::Server {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut ratekeeper_testkit::Server {
        &mut self.0
    }
}

fn serve(args: &[&str]) -> ServerBuilder {
    let builder = ServerBuilder::serve(env!("CARGO_BIN_EXE_ratekeeper"));
    builder.listen(&[Listener::Http, Listener::Admin]).args(args)
}

/// Runs it until it exits, with a configuration that is rejected.
pub(crate) fn run(args: &[&str]) -> Output {
    serve(args).run()
}

pub(crate) fn post(client: &mut Client, path: &str, body: &str) -> Response {
    client.request(&request(path, "", body))
}

/// Formats a POST request with more headers.
pub(crate) fn request(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
}

/// A file with this text, gone when this is dropped.
pub(crate) fn file(text: &str) -> NamedTempFile {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

pub(crate) fn policy(text: &str) -> NamedTempFile {
    file(&format!("version: 1\n{text}\n"))
}

/// Limits for Envoy: so many a year for each user.
pub(crate) fn envoy_config(limit: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "domain: test\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: year, requests_per_unit: {limit} }}\n"
    );
    std::fs::write(folder.path().join("limits.yaml"), text).unwrap();
    folder
}

pub(crate) fn path(file: &std::path::Path) -> &str {
    file.to_str().expect("a path that is text")
}
