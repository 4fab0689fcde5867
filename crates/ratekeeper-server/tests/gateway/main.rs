//! `ratekeeper gateway` as a process, between real sockets.

mod backend;
mod bounds;
mod client;
mod drain;
mod evasion;
mod flash_sale;
mod headers;
mod hostile;
mod http2;
mod limits;
mod process;
mod streaming;
mod tls;
mod upstreams;
