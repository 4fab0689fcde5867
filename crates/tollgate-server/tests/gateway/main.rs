//! `tollgate gateway` as a process, between real sockets.

mod backend;
mod client;
mod drain;
mod headers;
mod hostile;
mod http2;
mod process;
mod streaming;
mod tls;
mod upstreams;
