//! A fleet of clients in real processes and in real time. Apart from other tests, which would take the processors from it.
#![cfg(all(feature = "redis", feature = "client"))]
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]

mod fleet;
#[path = "../client_servers/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;
