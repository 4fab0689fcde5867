//! Prometheus, which scrapes the servers of a test, and promtool.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

use crate::port::free_port;
use crate::process::{CommandError, Process, temp_dir};
use crate::programs;
use tempfile::TempDir;

/// A running Prometheus, killed on drop.
pub struct Prometheus {
    _process: Process,
    _folder: TempDir,
    port: u16,
}

impl Prometheus {
    /// Starts Prometheus with these rules. It scrapes the targets as the job `ratekeeper`, five times a second.
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
        fs::write(folder.path().join("rules.yaml"), rules).expect("write the rules");
        fs::write(folder.path().join("prometheus.yml"), config).expect("write the configuration");
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

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

/// Runs promtool with this standard input, and returns its output.
///
/// # Errors
///
/// With its output, if it fails.
pub fn promtool(args: &[&str], input: &str) -> Result<String, CommandError> {
    let file = tempfile::NamedTempFile::new().expect("create a file");
    fs::write(file.path(), input).expect("write its input");
    let output = Command::new(programs::promtool())
        .args(args)
        .stdin(file.reopen().expect("open its input"))
        .output()
        .expect("promtool starts");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() { Ok(text) } else { Err(CommandError::Failed { output: text }) }
}
