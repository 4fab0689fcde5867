//! The gateway's process.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::Command;

use ratekeeper_testkit::Program;

use crate::backend::Backend;
use crate::client::Client;

/// A running gateway, gone when this is dropped.
pub(crate) struct Gateway {
    program: Program,
    address: SocketAddr,
}

impl Gateway {
    /// In front of one backend.
    pub(crate) fn before(backend: &Backend, args: &[&str]) -> Self {
        Self::start(&[&["--upstream", &backend.url()], args].concat())
    }

    /// In front of several.
    pub(crate) fn before_all(backends: &[&Backend], args: &[&str]) -> Self {
        let urls: Vec<String> = backends.iter().map(|backend| backend.url()).collect();
        let upstreams: Vec<&str> = urls.iter().flat_map(|url| ["--upstream", url]).collect();
        Self::start(&[&upstreams, args].concat())
    }

    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ratekeeper"));
        command.args(["gateway", "--listen", "127.0.0.1:0"]);
        command.args(if args.contains(&"--admin") { &[][..] } else { &["--admin", "off"] });
        let program = Program::start(command.args(args), "limits: ");
        let address = program.address_after("://").expect("it says where it listens");
        Self { program, address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }
}

impl Deref for Gateway {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl DerefMut for Gateway {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.program
    }
}
