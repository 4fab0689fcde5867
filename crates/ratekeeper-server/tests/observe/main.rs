//! Metrics: the exported pages, the alerts and the dashboard that use them, and a real Prometheus that
//! scrapes them.

use ratekeeper_testkit::http1 as client;
mod alerts;
mod docs;
#[path = "../envoy/grpc.rs"]
#[allow(dead_code, reason = "the tests of the gRPC service use all of it")]
mod grpc;
mod metrics;
mod page;
mod process;
mod scrape;
