//! The server's process.

use std::borrow::Borrow;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Output};

use ratekeeper_testkit::Program;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::client::{Answer, Client};

/// A running server, gone when this is dropped.
pub(crate) struct Server {
    program: Program,
    doors: [Option<SocketAddr>; 4],
}

const BEFORE: [&str; 4] = ["http: http", "admin: http", "redis: redis", "envoy: grpc"];

impl Server {
    /// With the HTTP door and the admin side, and others if they are asked for.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = command(args);
        let program = Program::start(&mut command, "policy: ");
        let after = |before: &str| {
            let [plain, secure] = ["://", "s://"].map(|rest| format!("{before}{rest}"));
            program.address_after(&secure).or_else(|| program.address_after(&plain))
        };
        Self { doors: BEFORE.map(after), program }
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.doors[0].expect("a door for HTTP")
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.doors[1].expect("an admin side")
    }

    pub(crate) fn resp(&self) -> SocketAddr {
        self.doors[2].expect("a door for Redis' protocol")
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        self.doors[3].expect("a door for Envoy")
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.http())
    }

    pub(crate) fn post(&self, path: &str, body: impl Borrow<Value>) -> (u16, Value) {
        let answer = post(&mut self.connect(), path, &body.borrow().to_string());
        (answer.status(), serde_json::from_str(&answer.body).unwrap_or(Value::Null))
    }
}

impl Server {
    /// What comes back for a question in plain text.
    pub(crate) fn post_plain(&self) -> String {
        let mut client = self.connect();
        client.send(request("/v1/check", "Connection: close\r\n", "{}"));
        client.0.rest()
    }
}

impl Deref for Server {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.program
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratekeeper"));
    command.arg("serve");
    for (door, address) in
        [("--http", "127.0.0.1:0"), ("--admin", "127.0.0.1:0"), ("--resp", "off")]
    {
        if !args.contains(&door) {
            command.args([door, address]);
        }
    }
    command.args(args);
    command
}

/// Runs it to its end, for what cannot be served.
pub(crate) fn run(args: &[&str]) -> Output {
    command(args).output().expect("the server starts")
}

pub(crate) fn post(client: &mut Client, path: &str, body: &str) -> Answer {
    client.ask(&request(path, "", body))
}

/// A question with more headers.
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
