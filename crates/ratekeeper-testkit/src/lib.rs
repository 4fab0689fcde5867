//! Real servers for tests. Each is started by its constructor, ready when that returns, and gone
//! when it is dropped or when the test's process ends, however it ends.
//!
//! Everything blocks and nothing needs a runtime, so that any test can use it. A server that does
//! not come up is a panic that shows the end of its log.
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]

mod caddy;
mod cluster;
mod envoy;
pub mod evasion;
mod nginx;
mod program;
mod programs;
mod prometheus;
mod proxy;
mod redis;
mod resp;
mod sentinel;
mod servers;
mod tls;
mod traefik;

pub use caddy::Caddy;
pub use cluster::RedisCluster;
pub use envoy::{Envoy, EnvoySetup};
pub use nginx::Nginx;
pub use program::Program;
pub use prometheus::{Prometheus, promtool};
pub use proxy::{Fault, FaultProxy};
pub use redis::RedisServer;
pub use sentinel::RedisSentinel;
pub use servers::{LIMIT, wait_until};
pub use tls::{CA, CERTIFICATE, KEY, write_certificates};
pub use traefik::Traefik;
