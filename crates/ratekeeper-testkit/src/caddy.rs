//! Caddy, with the sites of a test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::port::free_port;
use crate::process::{Process, temp_dir};
use crate::programs;
use tempfile::TempDir;

/// A running Caddy, killed on drop.
pub struct Caddy {
    process: Process,
    _folder: TempDir,
    address: SocketAddr,
}

impl Caddy {
    /// Starts Caddy on a free port, with the sites that `sites` returns for its address.
    pub fn start(sites: impl FnOnce(SocketAddr) -> String) -> Caddy {
        let folder = temp_dir();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let (dir, sites) = (folder.path().display(), sites(address));
        let text = format!(
            "{{\nadmin off\npersist_config off\nstorage file_system {dir}/storage\n}}\n{sites}"
        );
        let file = folder.path().join("Caddyfile");
        fs::write(&file, text).expect("write the configuration");
        let args = ["run", "--adapter", "caddyfile", "--config", &file.display().to_string()]
            .map(str::to_string);
        let mut process = Process::spawn_in(folder.path(), &programs::caddy(), &args);
        process.wait_until_ready("Caddy", |_| TcpStream::connect(address).is_ok());
        Caddy { process, _folder: folder, address }
    }

    /// Returns what it has logged: also its access log, if the configuration has one.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
