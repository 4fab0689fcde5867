//! `ratekeeper serve` for Envoy as a process, called by a gRPC client and by a real Envoy.

use ratekeeper_testkit::http1 as client;
use ratekeeper_testkit::upstream as backend;
mod docs;
mod environment;
mod grpc;
mod kuadrant;
#[path = "../deploy/manifests.rs"]
#[allow(dead_code, reason = "the tests of deploy use all of it")]
mod manifests;
mod over_redis;
mod process;
mod proxy;
mod reset;
mod service;
mod sidecar;
mod stream_done;
