//! Traefik, with the dynamic configuration of a test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::port::free_port;
use crate::process::{Process, temp_dir};
use crate::programs;
use tempfile::TempDir;

/// A running Traefik, killed on drop.
pub struct Traefik {
    process: Process,
    _folder: TempDir,
    address: SocketAddr,
}

impl Traefik {
    /// Starts Traefik on a free port, its only entry point, with these routers, services and middlewares.
    pub fn start(dynamic: &str) -> Traefik {
        let folder = temp_dir();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let file = folder.path().join("dynamic.yaml");
        fs::write(&file, dynamic).expect("write the configuration");
        let args = [
            format!("--entryPoints.web.address={address}"),
            format!("--providers.file.filename={}", file.display()),
            "--providers.file.watch=false".into(),
            "--global.checkNewVersion=false".into(),
            "--global.sendAnonymousUsage=false".into(),
            "--accessLog=true".into(),
            "--ping=true".into(),
            "--ping.entryPoint=web".into(),
        ];
        let mut process = Process::spawn_in(folder.path(), &programs::traefik(), &args);
        process.wait_until_ready("Traefik", |_| TcpStream::connect(address).is_ok());
        Traefik { process, _folder: folder, address }
    }

    /// Returns what it has logged: also its access log, if the configuration has one.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
