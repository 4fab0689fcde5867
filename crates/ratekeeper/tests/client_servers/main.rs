//! The layer for clients against real servers, over real sockets and in real time.
#![cfg(all(feature = "redis", feature = "reqwest"))]
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]

mod faults;
mod llm;
mod nginx;
mod reqwest;
mod shared_pause;
mod support;
