//! The server process.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use ratekeeper_testkit::{ANY_PORT, Listener, ServerBuilder};
use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;

/// A running server with a folder of files, killed on drop.
pub(crate) struct Server {
    program: ratekeeper_testkit::Server,
    folder: TempDir,
}

impl Server {
    pub(crate) fn start(file: &str) -> Self {
        Self::start_at(ANY_PORT, file)
    }

    pub(crate) fn start_at(address: &str, file: &str) -> Self {
        Self::start_with(file, &["--grpc", address, "--envoy-headers", "all"])
    }

    /// Starts one without files.
    pub(crate) fn start_without_files(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let builder = serve().listen(&[Listener::Http, Listener::Admin]).args(args);
        Self { program: builder.start(), folder }
    }

    pub(crate) fn start_with(file: &str, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = [OsStr::new("--envoy-config"), folder.path().as_os_str()];
        let builder = serve().listen(&[Listener::Http]).args(args).args(config);
        Self::launch(&builder, folder, "", file)
    }

    /// Starts one that is configured by environment variables alone, as envoyproxy/ratelimit is.
    pub(crate) fn start_by_environment(file: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut builder = serve().args(["--resp", "off"]).env("RUNTIME_ROOT", folder.path());
        builder = builder.env("RUNTIME_SUBDIRECTORY", "ratelimit");
        let ports = [("GRPC_PORT", "0"), ("PORT", "0"), ("DEBUG_PORT", "0")];
        for (name, value) in ports.iter().chain(variables) {
            builder = builder.env(name, value);
        }
        Self::launch(&builder, folder, "ratelimit/config", file)
    }

    fn launch(builder: &ServerBuilder, folder: TempDir, below: &str, file: &str) -> Self {
        fs::create_dir_all(folder.path().join(below)).expect("a folder");
        fs::write(folder.path().join(below).join("limits.yaml"), file).expect("a file");
        Self { program: builder.start(), folder }
    }

    /// Sends a request to the HTTP API, and returns the status and the body of the response.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}");
        let response = Client::connect(self.http()).request(&request);
        (response.status(), serde_json::from_str(&response.body).expect("JSON"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.grpc()
    }

    /// Replaces one of the files.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it is below the folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
}

impl Deref for Server {
    type Target = ratekeeper_testkit::Server;

    fn deref(&self) -> &ratekeeper_testkit::Server {
        &self.program
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut ratekeeper_testkit::Server {
        &mut self.program
    }
}

pub(crate) fn serve() -> ServerBuilder {
    ServerBuilder::serve(env!("CARGO_BIN_EXE_ratekeeper"))
}
