//! Opens the doors: a listener each, and workers that share it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, available_parallelism};

use tokio::runtime::Builder;

use super::options::{DoorName, Serve};
use super::resp::{self, Bounds, Passwords, RespDoor};
use super::{Server, bind, envoy, http};
use crate::accept::{self, Door, Port, Room, Seats};
use crate::failure::Failure;

/// Where the doors are that are open.
pub(super) struct Doors {
    pub(super) http: Option<SocketAddr>,
    pub(super) grpc: Option<SocketAddr>,
    pub(super) resp: Option<SocketAddr>,
}

impl Serve {
    pub(super) fn open_doors(
        &self,
        server: &Server,
        grpc: Option<SocketAddr>,
    ) -> Result<Doors, Failure> {
        Ok(Doors {
            http: self.http().map(|address| self.open_http(server, address)).transpose()?,
            grpc: grpc.map(|address| self.open_grpc(server, address)).transpose()?.flatten(),
            resp: self.resp.0.map(|address| self.open_resp(server, address)).transpose()?,
        })
    }

    fn open_http(&self, server: &Server, address: SocketAddr) -> Result<SocketAddr, Failure> {
        let port = self.port(server, DoorName::Http);
        self.open(DoorName::Http, address, &port, || {
            let (door, room) = (Arc::clone(&server.http), Room::new(self.max_in_flight));
            let worker = http::Worker::new(door, room, server.drain.clone());
            async { Ok(worker) }
        })
    }

    /// Only if there is something to answer.
    fn open_grpc(
        &self,
        server: &Server,
        address: SocketAddr,
    ) -> Result<Option<SocketAddr>, Failure> {
        let Some(door) = &server.envoy else { return Ok(None) };
        let port = self.port(server, DoorName::Grpc);
        let opened = self.open(DoorName::Grpc, address, &port, || {
            let (door, tokens) = (Arc::clone(door), Arc::clone(&server.tokens));
            envoy::Worker::new(door, tokens, Room::new(self.max_in_flight), server.drain.clone())
        });
        opened.map(Some)
    }

    fn open_resp(&self, server: &Server, address: SocketAddr) -> Result<SocketAddr, Failure> {
        let port = self.port(server, DoorName::Resp);
        let bounds = Bounds { idle: self.resp_idle_timeout, stuck: self.resp_write_timeout };
        let passwords = Passwords::new(Arc::clone(&server.resp_passwords));
        let gate = server.policy.gate().clone();
        let door = RespDoor::new(gate, passwords, bounds, Arc::clone(&port.seats));
        let door = Arc::new(door.watched_by(&server.meters));
        self.open(DoorName::Resp, address, &port, || {
            let worker = resp::Worker::new(Arc::clone(&door), server.drain.clone());
            async { Ok(worker) }
        })
    }

    fn port(&self, server: &Server, door: DoorName) -> Port {
        let seats = Seats::new(self.max_connections);
        server.meters.seated(door.name(), &seats);
        Port {
            tls: server.tls.clone().filter(|_| self.is_tls(door)),
            seats,
            descriptors: Arc::clone(&server.descriptors.connections),
            drain: server.drain.clone(),
        }
    }

    fn open<D, F>(
        &self,
        name: DoorName,
        address: SocketAddr,
        port: &Port,
        worker: impl Fn() -> F,
    ) -> Result<SocketAddr, Failure>
    where
        D: Door,
        F: Future<Output = io::Result<D>> + Send + 'static,
    {
        let listener = bind(name, address)?;
        for index in 0..self.workers() {
            let listener = listener.try_clone().map_err(Failure::io)?;
            let (port, worker) = (port.clone(), worker());
            let serve = async move { accept::serve(listener, Arc::new(worker.await?), port).await };
            work(format!("{}-{index}", name.name()), serve).map_err(Failure::io)?;
        }
        listener.local_addr().map_err(Failure::io)
    }

    pub(super) fn workers(&self) -> usize {
        let cores = || available_parallelism().map_or(1, usize::from);
        self.workers.map_or_else(cores, usize::from)
    }
}

/// Runs a door's worker on a thread of its own. Its connections go on when it has returned.
fn work(
    name: String,
    serve: impl Future<Output = io::Result<()>> + Send + 'static,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let run = async move {
        if let Err(error) = serve.await {
            tracing::error!(%error, "a worker cannot listen");
        }
        std::future::pending::<()>().await;
    };
    thread::Builder::new().name(name).spawn(move || runtime.block_on(run)).map(drop)
}
