//! nginx, with the configuration of a test.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};

use crate::port::free_port;
use crate::process::{Process, temp_dir};
use crate::programs;
use tempfile::TempDir;

/// A running nginx, killed on drop.
pub struct Nginx {
    _process: Process,
    _folder: TempDir,
    port: u16,
}

impl Nginx {
    /// Starts nginx on a free port, with these directives in its `server` block.
    pub fn start(server: &str) -> Nginx {
        let folder = temp_dir();
        let (port, dir) = (free_port(), folder.path().display().to_string());
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {dir}/{name};"))
            .join(" ");
        let text = format!(
            "daemon off; master_process off; pid {dir}/nginx.pid; error_log stderr;
             events {{ worker_connections 256; }}
             http {{ access_log off; {temporary}
               server {{ listen 127.0.0.1:{port}; {server} }} }}"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, text).expect("write the configuration");
        let args = ["-p", &dir, "-c", &file.display().to_string()].map(str::to_string);
        let mut process = Process::spawn_in(folder.path(), &programs::nginx(), &args);
        process
            .wait_until_ready("nginx", |_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        Nginx { _process: process, _folder: folder, port }
    }

    /// Returns its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }
}
