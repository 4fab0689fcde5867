//! `ratekeeper serve` as a process, with real clients.

use ratekeeper_testkit::http1 as client;

#[path = "../envoy/grpc.rs"]
#[allow(dead_code, reason = "the tests with Envoy use more of it")]
mod grpc;

mod bounds;
mod docs;
mod drain;
mod evasion;
mod http;
mod killed;
mod permits;
mod process;
mod refusals;
mod reload;
mod reservations;
mod resp_end;
mod store_failure;
mod tls;
mod tokens;
