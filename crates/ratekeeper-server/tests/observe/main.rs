//! The numbers to run a server by: what it tells, what alerts and dashboards make of it, and a real
//! Prometheus that scrapes it.

use ratekeeper_testkit::http1 as client;
mod docs;
mod files;
#[path = "../envoy/grpc.rs"]
#[allow(dead_code, reason = "the tests of Envoy's door use all of it")]
mod grpc;
mod page;
mod process;
mod scrape;
mod tell;
