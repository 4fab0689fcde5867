//! Servers for tests: the `ratekeeper` binary, the real servers and proxies that it works with, and HTTP
//! servers with quotas, for clients that have to stay under them. A browser and a terminal for what they show to people.
//!
//! Each is started by its constructor, ready when that returns, and killed when it is dropped or
//! when the test's process ends in any way. Everything blocks and needs no runtime. A server that
//! does not start is a panic with the end of its log.
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]

mod bounded_log;
mod browser;
mod caddy;
mod cluster;
mod envoy;
pub mod evasion;
mod haproxy;
mod helper;
pub mod http1;
mod http_server;
pub mod llm;
mod llm_server;
mod nginx;
mod port;
mod postgres;
mod process;
mod programs;
mod prometheus;
mod proxy;
mod quota;
mod quota_server;
mod redis;
mod resp;
mod scripted_server;
mod sentinel;
mod server;
mod terminal;
mod tls;
mod traefik;
pub mod upstream;
mod wait;

pub use browser::{ARROW_RIGHT, Browser, ENTER, ESCAPE, TAB};
pub use caddy::Caddy;
pub use cluster::RedisCluster;
pub use envoy::{Envoy, EnvoySetup};
pub use haproxy::HaProxy;
pub use helper::Helper;
pub use llm_server::{LlmServer, LlmServerBuilder};
pub use nginx::{Nginx, NginxLimit, NginxLimitCounts};
pub use postgres::{PostgresConnection, PostgresServer};
pub use process::{CommandError, Process};
pub use programs::{node, python, schemathesis};
pub use prometheus::{Prometheus, promtool};
pub use proxy::{Fault, FaultProxy};
pub use quota::Quota;
pub use quota_server::{Arrival, QuotaHeader, QuotaServer, QuotaServerBuilder};
pub use redis::RedisServer;
pub use scripted_server::{ReceivedRequest, ScriptedResponse, ScriptedServer};
pub use sentinel::RedisSentinel;
pub use server::{ANY_PORT, Listener, Server, ServerBuilder};
pub use terminal::{Terminal, TerminalMode};
pub use tls::{CA, CERTIFICATE, KEY, write_certificates};
pub use traefik::Traefik;
pub use wait::{TIMEOUT, wait_until};
