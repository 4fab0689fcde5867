//! The gateway's process.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use ratekeeper_testkit::{Server, ServerBuilder};

use crate::backend::Backend;
use crate::client::Client;

/// A running gateway, killed on drop.
pub(crate) struct Gateway(Server);

impl Gateway {
    /// Starts one in front of an upstream.
    pub(crate) fn before(backend: &Backend, args: &[&str]) -> Self {
        Self::start(&[&["--upstream", &backend.url()], args].concat())
    }

    /// Starts one in front of several upstreams.
    pub(crate) fn before_all(backends: &[&Backend], args: &[&str]) -> Self {
        let urls: Vec<String> = backends.iter().map(|backend| backend.url()).collect();
        let upstreams: Vec<&str> = urls.iter().flat_map(|url| ["--upstream", url]).collect();
        Self::start(&[&upstreams, args].concat())
    }

    pub(crate) fn start(args: &[&str]) -> Self {
        Self(Self::builder().args(args).start())
    }

    /// Prepares one without an admin listener, unless an argument sets its address.
    pub(crate) fn builder() -> ServerBuilder {
        ServerBuilder::gateway(env!("CARGO_BIN_EXE_ratekeeper"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway()
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address())
    }
}

impl Deref for Gateway {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for Gateway {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}
