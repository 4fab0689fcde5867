//! Envoy in front of an upstream, with a rate limit service that decides every request.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::free_address;
use crate::process::{Process, temp_dir};
use crate::programs;
use crate::wait::TIMEOUT;

/// The upstream and the rate limit service of an Envoy.
#[derive(Clone, Debug)]
pub struct EnvoySetup {
    /// Address of the upstream.
    pub upstream: SocketAddr,
    /// Addresses of the rate limit service.
    pub services: Vec<SocketAddr>,
    /// Domain of the descriptors.
    pub domain: &'static str,
    /// `rate_limits` of the only route, as YAML in one line. They may refer to dynamic metadata: `own` in
    /// `ratekeeper.limits` is 2 a minute.
    pub rate_limits: &'static str,
    /// Whether requests are denied when the service does not respond.
    pub failure_mode_deny: bool,
}

/// A running Envoy, killed on drop.
pub struct Envoy {
    address: SocketAddr,
    admin: SocketAddr,
    process: Process,
    _dir: TempDir,
}

impl Envoy {
    /// Starts Envoy and waits until it accepts requests.
    pub fn start(setup: &EnvoySetup) -> Self {
        Self::start_with(|address, admin| setup.config(address, admin))
    }

    /// Starts Envoy with the configuration that `config` returns for its address and its admin address.
    pub fn start_with(config: impl FnOnce(SocketAddr, SocketAddr) -> String) -> Self {
        let dir = temp_dir();
        let [address, admin] = [free_address(), free_address()];
        let text = config(address, admin);
        let config = dir.path().join("envoy.yaml");
        fs::write(&config, text).expect("a file");
        let args = ["--disable-hot-restart", "--concurrency", "1", "-l", "warning", "-c"];
        let mut args: Vec<String> = args.map(String::from).into();
        args.push(config.display().to_string());
        let mut process = Process::spawn_in(dir.path(), &programs::envoy(), &args);
        process.wait_until_ready("Envoy", |_| {
            get(admin, "/ready").is_some_and(|response| response.contains("LIVE"))
        });
        Self { address, admin, process, _dir: dir }
    }

    /// Validates a configuration.
    ///
    /// # Panics
    ///
    /// If Envoy rejects it.
    pub fn validate(config: &str) {
        let dir = temp_dir();
        let file = dir.path().join("envoy.yaml");
        fs::write(&file, config).expect("a file");
        let mut command = Command::new(programs::envoy());
        let output = command.args(["--mode", "validate", "-c"]).arg(&file).output();
        let output = output.expect("Envoy starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its counters whose names contain `of`, a line each.
    pub fn stats(&self, of: &str) -> String {
        get(self.admin, &format!("/stats?filter={of}")).unwrap_or_default()
    }

    /// Returns the end of its log.
    pub fn log(&self) -> String {
        self.process.log_tail()
    }
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    Some(response)
}

impl EnvoySetup {
    fn config(&self, address: SocketAddr, admin: SocketAddr) -> String {
        let values = [
            ("@LISTEN@", socket(address)),
            ("@ADMIN@", socket(admin)),
            ("@UPSTREAM@", socket(self.upstream)),
            ("@SERVICES@", self.services.iter().map(endpoint).collect::<Vec<_>>().join(", ")),
            ("@DOMAIN@", self.domain.to_string()),
            ("@RATE_LIMITS@", self.rate_limits.to_string()),
            ("@DENY@", self.failure_mode_deny.to_string()),
        ];
        let fill = |text: String, (name, value): &(&str, String)| text.replace(name, value);
        values.iter().fold(include_str!("envoy.yaml").to_string(), fill)
    }
}

fn endpoint(address: &SocketAddr) -> String {
    format!("{{ endpoint: {{ address: {} }} }}", socket(*address))
}

fn socket(address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!("{{ socket_address: {{ address: \"{ip}\", port_value: {port} }} }}")
}
