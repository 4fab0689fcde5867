//! Opens the listeners, and starts the workers of each.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use super::grpc::GrpcHandler;
use super::options::{ListenerName, Serve};
use super::resp::{self, Passwords, RespHandler, RespServer};
use super::{Server, http};
use crate::choices::LocalAddress;
use crate::failure::Failure;
use crate::listener::{
    self, ConnectionHandler, ConnectionLimit, InFlightLimit, ListenerConfig, ListeningSocket,
    SocketFile, available_workers, bind_unix, start_workers,
};

/// The addresses of the listeners that are open.
pub(super) struct Listening {
    pub(super) http: Option<SocketAddr>,
    pub(super) grpc: LocalAddress,
    pub(super) resp: Option<SocketAddr>,
    /// Removed when the server has shut down.
    _socket: Option<SocketFile>,
}

impl Serve {
    pub(super) fn open_listeners(
        &self,
        server: &Server,
        grpc: &LocalAddress,
    ) -> Result<Listening, Failure> {
        let http = self.http().map(|address| self.open_http(server, address)).transpose()?;
        let (grpc, _socket) = self.open_grpc(server, grpc)?;
        let resp = self.resp.0.map(|address| self.open_resp(server, address)).transpose()?;
        Ok(Listening { http, grpc, resp, _socket })
    }

    fn open_http(&self, server: &Server, address: SocketAddr) -> Result<SocketAddr, Failure> {
        let config = self.listener_config(server, ListenerName::Http);
        self.open(ListenerName::Http, address, &config, || {
            let in_flight = InFlightLimit::new(self.max_in_flight);
            let (api, drain) = (Arc::clone(&server.http), server.drain.clone());
            async { Ok(http::HttpApiHandler::new(api, in_flight, drain)) }
        })
    }

    /// Opens the gRPC listener, if there is a service for it. Returns its address and, of a Unix domain
    /// socket, its file.
    fn open_grpc(
        &self,
        server: &Server,
        address: &LocalAddress,
    ) -> Result<(LocalAddress, Option<SocketFile>), Failure> {
        let Some(service) = &server.envoy else { return Ok((LocalAddress::Off, None)) };
        let config = self.listener_config(server, ListenerName::Grpc);
        let handler = || {
            let in_flight = InFlightLimit::new(self.max_in_flight);
            let (service, tokens) = (Arc::clone(service), Arc::clone(&server.tokens));
            GrpcHandler::new(service, tokens, in_flight, server.drain.clone())
        };
        match address {
            LocalAddress::Off => Ok((LocalAddress::Off, None)),
            LocalAddress::Tcp(address) => {
                let opened = self.open(ListenerName::Grpc, *address, &config, handler)?;
                Ok((LocalAddress::Tcp(opened), None))
            }
            LocalAddress::Unix(path) => {
                let (listener, file) = bind_unix(path).map_err(|error| {
                    let remedy = "is another server using it? Choose another with --grpc unix:PATH";
                    Failure::io(format!("cannot listen on {address}: {error}; {remedy}"))
                })?;
                self.start(ListenerName::Grpc, &listener, &config, handler)?;
                Ok((address.clone(), Some(file)))
            }
        }
    }

    fn open_resp(&self, server: &Server, address: SocketAddr) -> Result<SocketAddr, Failure> {
        let config = self.listener_config(server, ListenerName::Resp);
        let timeouts = resp::timeouts(self.resp_idle_timeout, self.resp_write_timeout);
        let passwords = Passwords::new(Arc::clone(&server.resp_passwords));
        let limiter = server.policy.limiter().clone();
        let resp = RespServer::new(limiter, passwords, timeouts, Arc::clone(&config.connections));
        let resp = Arc::new(resp.with_metrics(&server.metrics));
        self.open(ListenerName::Resp, address, &config, || {
            let (resp, drain) = (Arc::clone(&resp), server.drain.clone());
            async { Ok(RespHandler::new(resp, drain)) }
        })
    }

    fn listener_config(&self, server: &Server, name: ListenerName) -> ListenerConfig {
        let connections = ConnectionLimit::new(self.max_connections);
        server.metrics.set_connections(name.name(), &connections);
        let config =
            ListenerConfig::new(connections, &server.descriptors.connections, &server.drain);
        let own = server.grpc_tls.clone().filter(|_| name == ListenerName::Grpc);
        config.with_tls(own.or_else(|| server.tls.clone()).filter(|_| self.is_tls(name)))
    }

    fn open<H, F>(
        &self,
        name: ListenerName,
        address: SocketAddr,
        config: &ListenerConfig,
        handler: impl Fn() -> F,
    ) -> Result<SocketAddr, Failure>
    where
        H: ConnectionHandler,
        F: Future<Output = io::Result<H>> + Send + 'static,
    {
        let listener = bind(name, address)?;
        self.start(name, &listener, config, handler)?;
        listener.local_addr().map_err(Failure::io)
    }

    fn start<H, F, L>(
        &self,
        name: ListenerName,
        listener: &L,
        config: &ListenerConfig,
        handler: impl Fn() -> F,
    ) -> Result<(), Failure>
    where
        H: ConnectionHandler,
        F: Future<Output = io::Result<H>> + Send + 'static,
        L: ListeningSocket,
    {
        let workers = available_workers(self.workers);
        start_workers(name.name(), workers, listener, config, |_| handler()).map_err(Failure::io)
    }
}

pub(super) fn bind(name: ListenerName, address: SocketAddr) -> Result<TcpListener, Failure> {
    listener::bind(address).map_err(|error| {
        let option = name.name();
        let remedy = format!("choose another with --{option}, or disable it with --{option} off");
        listener::listen_failure(address, &error, &remedy)
    })
}
