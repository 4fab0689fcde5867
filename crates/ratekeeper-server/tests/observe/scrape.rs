//! A real Prometheus that scrapes a running server.

use ratekeeper_testkit::{Prometheus, wait_until};
use serde_json::Value;

use crate::alerts::deploy;
use crate::client::Client;
use crate::process::Server;

/// Returns the first value that Prometheus has for an expression.
fn query(prometheus: &Prometheus, expr: &str) -> Option<String> {
    let body = Client::connect(prometheus.address())
        .get(&format!("/api/v1/query?query={}", escaped(expr)))
        .body;
    let response: Value = serde_json::from_str(&body).ok()?;
    Some(response["data"]["result"][0]["value"][1].as_str()?.to_string())
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn prometheus_scrapes_a_server_and_evaluates_its_alerts() {
    let server = Server::start();
    server.send_to_every_listener();
    let rules = std::fs::read_to_string(deploy("prometheus/alerts.yaml")).unwrap();
    let prometheus = Prometheus::start(&[server.admin], &rules);
    for (expr, value) in [
        ("ratekeeper_requests_total{protocol='resp',outcome='denied'}", "1"),
        ("sum(ratekeeper_envoy_decisions_total)", "6"),
        ("ratekeeper_request_duration_seconds_count{protocol='grpc'}", "7"),
        ("sum(ratekeeper_request_duration_seconds_bucket{protocol='grpc',le='+Inf'})", "7"),
        ("up{job='ratekeeper'}", "1"),
    ] {
        wait_until(&format!("Prometheus has {expr}"), || {
            query(&prometheus, expr).as_deref() == Some(value)
        });
    }
    wait_until("the rules are evaluated", || {
        let rules = Client::connect(prometheus.address()).get("/api/v1/rules").body;
        let rules: Value = serde_json::from_str(&rules).unwrap_or_default();
        let rules = rules["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        !rules.is_empty() && rules.iter().all(|rule| rule["health"] == "ok")
    });
    let alerts = Client::connect(prometheus.address()).get("/api/v1/alerts").body;
    assert!(!alerts.contains("firing"), "{alerts}");
}
