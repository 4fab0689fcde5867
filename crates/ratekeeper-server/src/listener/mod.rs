//! Connections of every listener: accepting, limits, TLS, timeouts, graceful shutdown and worker threads.
//!
//! `accept` takes connections from a listening socket (`socket`) within the `limits`, performs the `tls` handshake
//! and passes them to a [`ConnectionHandler`], one task each. The handler reads and writes through a
//! [`ClientStream`], which records in the connection's [`ConnState`] what it waits for, and runs the
//! protocol in [`drive`], which closes the connection at a timeout (`timeouts`) and when the server
//! drains. `worker` starts the threads, and `supervisor` runs the process until a signal ends it.

mod accept;
mod drain;
mod drive;
mod http1;
mod limits;
mod signals;
mod socket;
mod stream;
mod supervisor;
#[cfg(test)]
mod tests;
mod ticks;
mod timeouts;
pub(crate) mod tls;
mod worker;

pub(crate) use accept::{Accepted, ConnectionHandler, ConnectionPermits, ListenerConfig, serve};
pub(crate) use drain::{Drain, Stage, StageWatch};
pub(crate) use drive::{GracefulShutdown, drive};
pub(crate) use http1::{serve_http1, too_many_connections};
pub(crate) use limits::{
    ConnectionLimit, FileDescriptors, InFlightLimit, OwnedInFlightPermit, raise_file_limit,
};
pub(crate) use signals::Termination;
pub(crate) use socket::{KEEP_ALIVE, ListeningSocket, SocketFile, bind, bind_unix, listen_failure};
pub(crate) use stream::ClientStream;
pub(crate) use supervisor::{AdminListener, Supervised, Supervisor};
pub(crate) use ticks::Ticks;
pub(crate) use timeouts::{ConnState, Timeouts};
pub(crate) use worker::{available_workers, start_workers};
