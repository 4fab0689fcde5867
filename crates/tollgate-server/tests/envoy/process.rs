//! The server's process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;
use tollgate_testkit::wait_until;

use crate::client::Client;

/// A running server with a folder of files, gone when this is dropped.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    http: SocketAddr,
    log: Arc<Mutex<String>>,
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
        let mut child = command.spawn().expect("the server starts");
        let log = collect(child.stderr.take().expect("a pipe"));
        let mut address = None;
        wait_until("the server listens", || {
            let text = log.lock().unwrap().clone();
            address = found(&text, "grpc://").zip(found(&text, "try: curl -i http://"));
            let ended = child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "the server ended: {text}");
            address.is_some()
        });
        let (address, http) = address.unwrap();
        Self { child, address, http, log, folder }
    }

    /// Where those who run it can ask.
    pub(crate) fn admin(&self) -> SocketAddr {
        found(&self.log.lock().unwrap(), "admin: http://").expect("an admin side")
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

    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_until(&format!("the log says {text:?}"), || self.log.lock().unwrap().contains(text));
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().expect("kill starts");
        assert!(status.success(), "kill {signal} failed");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the server ends", || {
            status = self.child.try_wait().expect("a child can be asked");
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log.lock().unwrap());
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--resp", "off"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The address that follows this in a text.
fn found(text: &str, before: &str) -> Option<SocketAddr> {
    let (_, rest) = text.split_once(before)?;
    let (address, _) = rest.split_once([' ', '/'])?;
    Some(address.parse().expect("an address"))
}

fn collect(from: impl std::io::Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let into = Arc::clone(&text);
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut into = into.lock().unwrap();
            into.push_str(&line);
            into.push('\n');
        }
    });
    text
}
