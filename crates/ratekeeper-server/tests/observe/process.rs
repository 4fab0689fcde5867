//! A server with every listener, and a gateway.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use ratekeeper_testkit::{Listener, ServerBuilder, TIMEOUT};
use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;
use crate::page::Page;

const LIMITS: &str = "
priorities: [ { class: partner, match: { path: /partner } }, { class: others } ]
shedding: { queue_time: 20ms }
dependencies:
  inventory: { match: { path: /stock }, rate: 5/s, concurrency: 5, breaker: true }
  upstreams: { per: upstream, concurrency: 5, breaker: true }
limits:
  - { name: guaranteed, match: { path: /partner }, rate: 350/hour, guarantees: { partner: 200/hour } }
  - { name: checkout, match: { path: /checkout }, rate: 5/hour }
  - { name: shadowed, match: { path: /checkout }, rate: 2/hour, mode: shadow }
  - { name: tokens, match: { path: /tokens }, rate: 1000/hour, cost: { usage: openai } }
  - { name: search, match: { path: /search }, concurrency: { adaptive: true, queue: { max: 10, wait: 1s } } }
exempt: [ { path: /healthz } ]
";

pub(crate) const DESCRIPTORS: &str = "
domain: test
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 5 }
";

/// A running server with every listener, killed on drop.
pub(crate) struct Server {
    #[allow(dead_code, reason = "used by the tests of traces")]
    pub(crate) program: ratekeeper_testkit::Server,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) folder: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with("", &[])
    }

    /// Starts one with this text in its policy in addition to the limits, and these options.
    pub(crate) fn start_with(store: &str, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let policy = write_policy(&folder, store);
        let descriptors = folder.path().join("envoy");
        fs::create_dir(&descriptors).unwrap();
        fs::write(descriptors.join("limits.yaml"), DESCRIPTORS).unwrap();
        let listeners = [Listener::Http, Listener::Grpc, Listener::Resp, Listener::Admin];
        let program = ServerBuilder::serve(env!("CARGO_BIN_EXE_ratekeeper"))
            .listen(&listeners)
            .args(args)
            .args([OsStr::new("--envoy-config"), descriptors.as_os_str(), policy.as_os_str()])
            .start();
        let [http, grpc, resp, admin] = listeners.map(|listener| program.address(listener));
        Self { program, http, grpc, resp, admin, folder }
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> u16 {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        Client::connect(self.http).request(&format!("{head}{body}")).status()
    }

    /// Sends a forward-auth request for this path, as a proxy does.
    pub(crate) fn auth(&self, path: &str) -> u16 {
        let head = format!(
            "GET /v1/auth?deny=403 HTTP/1.1\r\nHost: a\r\nX-Original-URI: {path}\r\nX-Original-Method: GET\r\n\r\n"
        );
        Client::connect(self.http).request(&head).status()
    }

    /// Sends inline commands, and returns the replies.
    pub(crate) fn commands(&self, lines: &[&str]) -> String {
        let mut stream = TcpStream::connect(self.resp).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let text: String =
            lines.iter().chain(&["QUIT"]).map(|line| format!("{line}\r\n")).collect();
        stream.write_all(text.as_bytes()).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        replies
    }

    pub(crate) fn admin_get(&self, path: &str) -> (u16, String) {
        let response = Client::connect(self.admin).get(path);
        (response.status(), response.body)
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        let (status, body) = self.admin_get(path);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) fn page(&self) -> Page {
        Page::new(self.admin_get("/metrics").1)
    }

    /// Sends requests over every protocol: allowed, denied and invalid ones.
    pub(crate) fn send_to_every_listener(&self) {
        let check = r#"{"key":"ann","rate":"3/hour","name":"login"}"#;
        let statuses: Vec<_> = (0..4).map(|_| self.post("/v1/check", check)).collect();
        assert_eq!(statuses, [200, 200, 200, 429]);
        assert_eq!(self.post("/v1/check", "{}"), 400);
        assert_eq!(self.post("/v1/peek", check), 200);
        let throttle = ["CL.THROTTLE bob 2 1 3600"; 4];
        let replies = self.commands(&[&throttle[..], &["NONSENSE", "PING"]].concat());
        assert!(replies.contains("PONG"), "{replies}");
        let statuses: Vec<_> = (0..6).map(|_| self.auth("/checkout")).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 403]);
        assert_eq!(self.auth("/healthz"), 200);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut envoy = crate::grpc::Client::connect(self.grpc).await;
            for i in 0..6 {
                assert_eq!(envoy.is_over(&[("user", "eve")]).await, i == 5);
            }
            assert!(envoy.send(crate::grpc::request(&[])).await.is_err());
        });
    }
}

/// A gateway with the same policy and an admin listener, whose upstream is down.
pub(crate) struct Gateway {
    _program: ratekeeper_testkit::Server,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    _folder: TempDir,
}

impl Gateway {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let policy = write_policy(&folder, "");
        let program = ServerBuilder::gateway(env!("CARGO_BIN_EXE_ratekeeper"))
            .listen(&[Listener::Gateway, Listener::Admin])
            .args(["--upstream", "http://127.0.0.1:9"])
            .args([&policy])
            .start();
        let (listen, admin) = (program.gateway(), program.admin());
        Self { _program: program, listen, admin, _folder: folder }
    }
}

fn write_policy(folder: &TempDir, store: &str) -> PathBuf {
    let policy = folder.path().join("policy.yaml");
    fs::write(&policy, format!("version: 1\n{store}\n{LIMITS}")).unwrap();
    policy
}
