//! The layer for clients.
#![cfg(feature = "client")]
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]

#[cfg(feature = "tonic")]
mod grpc;
mod herd;
mod learning;
mod limits;
mod retries;
mod support;
