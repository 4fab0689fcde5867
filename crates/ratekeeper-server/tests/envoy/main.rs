//! `ratekeeper serve` for Envoy: as a process, asked by a gRPC client and by a real Envoy.

#[path = "../gateway/backend.rs"]
#[allow(dead_code, reason = "the gateway's tests use all of it")]
mod backend;
#[path = "../gateway/client.rs"]
#[allow(dead_code, reason = "the gateway's tests use all of it")]
mod client;
mod environment;
mod grpc;
#[path = "../deploy/manifests.rs"]
#[allow(dead_code, reason = "the tests of deploy use all of it")]
mod manifests;
mod over_redis;
mod process;
mod proxy;
mod reset;
mod service;
mod sidecar;
