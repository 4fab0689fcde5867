//! HAProxy, with the frontend of a test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::port::free_port;
use crate::process::{Process, temp_dir};
use crate::programs;
use tempfile::TempDir;

/// A running HAProxy, killed on drop.
pub struct HaProxy {
    process: Process,
    _folder: TempDir,
    address: SocketAddr,
}

impl HaProxy {
    /// Starts HAProxy on a free port, with these lines in its only frontend, `web`.
    pub fn start(frontend: &[&str]) -> HaProxy {
        let folder = temp_dir();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let text = format!(
            "defaults\n  mode http\n  timeout client 10s\n  timeout connect 10s\n  timeout server 10s\n\
             frontend web\n  bind {address}\n  {}\n",
            frontend.join("\n  ")
        );
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, text).expect("write the configuration");
        let args = ["-db", "-f", &file.display().to_string()].map(str::to_string);
        let mut process = Process::spawn_in(folder.path(), &programs::haproxy(), &args);
        process.wait_until_ready("HAProxy", |_| TcpStream::connect(address).is_ok());
        HaProxy { process, _folder: folder, address }
    }

    /// Returns what it has written to standard output: its access log, if the frontend logs to `stdout`.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
