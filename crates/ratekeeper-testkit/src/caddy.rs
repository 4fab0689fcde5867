//! A real Caddy, with a site of the test's own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::port::free_port;
use crate::process::{Process, temp_dir};
use crate::programs;
use tempfile::TempDir;

/// A running Caddy, gone when this is dropped.
pub struct Caddy {
    _process: Process,
    _folder: TempDir,
    address: SocketAddr,
}

impl Caddy {
    /// Listens on a free port, with the sites that are made for that address.
    pub fn start(sites: impl FnOnce(SocketAddr) -> String) -> Caddy {
        let folder = temp_dir();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let (dir, sites) = (folder.path().display(), sites(address));
        let text = format!(
            "{{\nadmin off\npersist_config off\nstorage file_system {dir}/storage\n}}\n{sites}"
        );
        let file = folder.path().join("Caddyfile");
        fs::write(&file, text).expect("a configuration");
        let args = ["run", "--adapter", "caddyfile", "--config", &file.display().to_string()]
            .map(str::to_string);
        let mut process = Process::spawn_in(folder.path(), &programs::caddy(), &args);
        process.wait_until_ready("Caddy", |_| TcpStream::connect(address).is_ok());
        Caddy { _process: process, _folder: folder, address }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
