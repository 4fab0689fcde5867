//! A real Prometheus that scrapes what a test runs, and promtool.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

use crate::port::free_port;
use crate::process::{Process, temp_dir};
use crate::programs;
use tempfile::TempDir;

/// A running Prometheus, gone when this is dropped.
pub struct Prometheus {
    _process: Process,
    _folder: TempDir,
    port: u16,
}

impl Prometheus {
    /// Scrapes these addresses as the job `ratekeeper`, a few times a second, and keeps these rules.
    pub fn start(targets: &[SocketAddr], rules: &str) -> Prometheus {
        let folder = temp_dir();
        let (port, dir) = (free_port(), folder.path().display().to_string());
        let targets: Vec<_> = targets.iter().map(|target| format!("'{target}'")).collect();
        let config = format!(
            "global: {{ scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms }}
rule_files: [rules.yaml]
scrape_configs:
  - {{ job_name: ratekeeper, static_configs: [{{ targets: [{}] }}] }}
",
            targets.join(", ")
        );
        fs::write(folder.path().join("rules.yaml"), rules).expect("rules");
        fs::write(folder.path().join("prometheus.yml"), config).expect("a configuration");
        let args = [
            format!("--config.file={dir}/prometheus.yml"),
            format!("--storage.tsdb.path={dir}/data"),
            format!("--web.listen-address=127.0.0.1:{port}"),
        ];
        let mut process = Process::spawn_in(folder.path(), &programs::prometheus(), &args);
        process.wait_until_ready("Prometheus", |_| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        Prometheus { _process: process, _folder: folder, port }
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

/// Runs promtool with what comes from standard input, and tells what it says, or complains of.
pub fn promtool(args: &[&str], input: &str) -> Result<String, String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), input).expect("what it is to read");
    let output = Command::new(programs::promtool())
        .args(args)
        .stdin(file.reopen().expect("the same file"))
        .output()
        .expect("promtool starts");
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    if output.status.success() { Ok(told) } else { Err(told) }
}
