//! The server's process.

use std::fs;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::Command;

use ratekeeper_testkit::Program;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;

/// A running server with a folder of files, gone when this is dropped.
pub(crate) struct Server {
    program: Program,
    address: SocketAddr,
    http: SocketAddr,
    folder: TempDir,
}

impl Server {
    pub(crate) fn start(file: &str) -> Self {
        Self::start_at("127.0.0.1:0", file)
    }

    pub(crate) fn start_at(address: &str, file: &str) -> Self {
        Self::start_with(file, &["--grpc", address, "--envoy-headers", "all"])
    }

    pub(crate) fn start_with(file: &str, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = command();
        command.args(["--http", "127.0.0.1:0", "--admin", "off"]).args(args);
        command.arg("--envoy-config").arg(folder.path());
        Self::launch(command, folder, "", file)
    }

    /// Set up by variables alone, as envoyproxy/ratelimit is.
    pub(crate) fn start_by_environment(file: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = command();
        command.env("RUNTIME_ROOT", folder.path()).env("RUNTIME_SUBDIRECTORY", "ratelimit");
        command.envs([("GRPC_PORT", "0"), ("PORT", "0"), ("DEBUG_PORT", "0")]);
        command.envs(variables.iter().copied());
        Self::launch(command, folder, "ratelimit/config", file)
    }

    fn launch(mut command: Command, folder: TempDir, below: &str, file: &str) -> Self {
        fs::create_dir_all(folder.path().join(below)).expect("a folder");
        fs::write(folder.path().join(below).join("limits.yaml"), file).expect("a file");
        let program = Program::start(&mut command, "policy: ");
        let door = |before| program.address_after(before).expect("it says where it listens");
        let (address, http) = (door("envoy: grpc://"), door("http: http://"));
        Self { program, address, http, folder }
    }

    /// Where those who run it can ask.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.program.address_after("admin: http://").expect("an admin side")
    }

    /// Asks the HTTP door, and has the status and the body of its answer.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}");
        let answer = Client::connect(self.http).ask(&request);
        (answer.status(), serde_json::from_str(&answer.body).expect("JSON"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it can be asked in JSON.
    pub(crate) fn http(&self) -> SocketAddr {
        self.http
    }

    /// Writes one of the files anew.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).expect("a file");
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

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratekeeper"));
    command.args(["serve", "--resp", "off"]);
    command
}
