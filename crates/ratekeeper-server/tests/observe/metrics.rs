//! The exported metrics, `/v1/top` and `/v1/envoy` after known traffic.

use std::fs;

use ratekeeper_testkit::wait_until;
use serde_json::Value;

use crate::client::Client;
use crate::page::Page;
use crate::process::{Gateway, Server};

fn requests(protocol: &str, page: &Page) -> [f64; 4] {
    ["allowed", "denied", "error", "other"].map(|outcome| {
        page.value(&format!(
            "ratekeeper_requests_total{{protocol=\"{protocol}\",outcome=\"{outcome}\"}}"
        ))
    })
}

#[test]
fn every_protocol_counts_and_times_its_requests() {
    let server = Server::start();
    server.send_to_every_listener();
    let page = server.page();
    assert_eq!(requests("http", &page), [3.0, 1.0, 1.0, 1.0]);
    assert_eq!(requests("forward_auth", &page), [6.0, 1.0, 0.0, 0.0]);
    assert_eq!(requests("resp", &page), [3.0, 1.0, 1.0, 2.0]);
    assert_eq!(requests("grpc", &page), [5.0, 1.0, 1.0, 0.0]);
    for (protocol, sent) in [("http", 6.0), ("forward_auth", 7.0), ("resp", 7.0), ("grpc", 7.0)] {
        let name = format!("ratekeeper_request_duration_seconds_count{{protocol=\"{protocol}\"}}");
        assert_eq!(page.value(&name), sent, "{protocol}");
    }
    assert!(page.value("ratekeeper_connections_accepted_total{listener=\"http\"}") >= 13.0);
    assert_eq!(page.value("ratekeeper_connections_accepted_total{listener=\"resp\"}"), 1.0);
    assert_eq!(page.value("ratekeeper_connections_accepted_total{listener=\"grpc\"}"), 1.0);
    wait_until("closed connections are no longer counted", || {
        server.page().value("ratekeeper_connections{listener=\"http\"}") == 0.0
    });
}

#[test]
fn a_forward_auth_request_that_is_not_described_is_an_error_and_no_denial() {
    let server = Server::start();
    assert_eq!(Client::connect(server.http).get("/v1/auth").status(), 403);
    assert_eq!(requests("forward_auth", &server.page()), [0.0, 0.0, 1.0, 0.0]);
}

#[test]
fn limits_of_policies_and_descriptors_are_counted_by_name() {
    let server = Server::start();
    server.send_to_every_listener();
    let page = server.page();
    for (series, value) in [
        ("ratekeeper_decisions_total{limit=\"checkout\",outcome=\"allowed\"}", 5.0),
        ("ratekeeper_decisions_total{limit=\"checkout\",outcome=\"denied\"}", 1.0),
        ("ratekeeper_decisions_total{limit=\"shadowed\",outcome=\"shadow_denied\"}", 3.0),
        ("ratekeeper_near_limit_total{limit=\"checkout\"}", 1.0),
        ("ratekeeper_exempt_total", 1.0),
        (
            "ratekeeper_envoy_decisions_total{domain=\"test\",limit=\"test.user\",outcome=\"allowed\"}",
            5.0,
        ),
        (
            "ratekeeper_envoy_decisions_total{domain=\"test\",limit=\"test.user\",outcome=\"denied\"}",
            1.0,
        ),
        ("ratekeeper_envoy_near_limit_total{domain=\"test\",limit=\"test.user\"}", 1.0),
        ("ratekeeper_envoy_requests_total{code=\"invalid\"}", 1.0),
        ("ratekeeper_envoy_limits", 1.0),
    ] {
        assert_eq!(page.value(series), value, "{series}");
    }
}

/// Returns the limit, key and count of each entry.
fn keys(list: &Value) -> Vec<(String, String, u64)> {
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let keys = list["keys"].as_array().unwrap().iter();
    keys.map(|key| (text(&key["limit"]), text(&key["key"]), key["count"].as_u64().unwrap()))
        .collect()
}

#[test]
fn requests_of_every_protocol_are_in_the_top_keys() {
    let server = Server::start();
    server.send_to_every_listener();
    let top = server.json("/v1/top?n=50");
    let mut hottest = keys(&top["hottest"]);
    hottest.sort();
    let expected = [
        ("api", "bob", 4),
        ("checkout", "*", 6),
        ("login", "ann", 4),
        ("shadowed", "*", 5),
        ("test.user", "user=eve", 6),
    ];
    let expected = expected.map(|(limit, key, count)| (limit.to_string(), key.to_string(), count));
    assert_eq!(hottest, expected);
    let denied = keys(&top["most_denied"]);
    assert_eq!(denied.len(), 4, "{denied:?}");
    assert!(denied.iter().all(|(_, _, count)| *count == 1), "{denied:?}");
    assert_eq!(keys(&server.json("/v1/top?n=1")["hottest"]).len(), 1);
    assert_eq!(server.admin_get("/v1/top?n=0").0, 400);
}

#[test]
fn the_gateway_has_the_same_metrics_and_top_keys() {
    let gateway = Gateway::start();
    let statuses: Vec<_> =
        (0..6).map(|_| Client::connect(gateway.listen).get("/checkout").status()).collect();
    assert_eq!(statuses.last(), Some(&429));
    let get = |path: &str| Client::connect(gateway.admin).get(path);
    let page = Page::new(get("/metrics").body);
    assert_eq!(page.value("ratekeeper_near_limit_total{limit=\"checkout\"}"), 1.0);
    let top: Value = serde_json::from_str(&get("/v1/top").body).unwrap();
    assert_eq!(keys(&top["most_denied"]), [("checkout".into(), "*".into(), 1)]);
    assert_eq!(get("/v1/envoy").status(), 404);
}

#[test]
fn invalid_descriptor_files_are_reported_until_they_are_valid() {
    let server = Server::start();
    let state = server.json("/v1/envoy");
    assert_eq!((&state["limits"], &state["error"]), (&1.into(), &Value::Null));
    let file = server.folder.path().join("envoy/limits.yaml");
    fs::write(&file, "domain: test\ndescriptors: [{ key: 1x, rte_limit: {} }]").unwrap();
    wait_until("the error is reported", || server.json("/v1/envoy")["error"].is_string());
    let page = server.page();
    assert_eq!(page.value("ratekeeper_envoy_config_ok"), 0.0);
    assert_eq!(page.value("ratekeeper_envoy_config_failures_total"), 1.0);
    let failed_at = page.value("ratekeeper_envoy_config_failed_timestamp_seconds");
    assert!(failed_at >= page.value("ratekeeper_envoy_config_loaded_timestamp_seconds"));
    assert_eq!(page.value("ratekeeper_envoy_limits"), 1.0, "the old limits stay");
    fs::write(&file, crate::process::DESCRIPTORS).unwrap();
    wait_until("the error is cleared", || server.page().value("ratekeeper_envoy_config_ok") == 1.0);
    assert_eq!(server.page().value("ratekeeper_envoy_config_failed_timestamp_seconds"), 0.0);
}

#[test]
fn store_time_is_measured_for_every_protocol() {
    let server = Server::start_with("", &["--workers", "1"]);
    let timed = || server.page().value("ratekeeper_store_duration_seconds_count{store=\"memory\"}");
    for _ in 0..64 {
        server.post("/v1/check", r#"{"key":"ann","rate":"1000/hour"}"#);
    }
    let over_http = timed();
    assert!(over_http >= 64.0, "one in 64 stands for all: {over_http}");
    server.commands(&["CL.THROTTLE bob 1000 1 3600"; 64]);
    let over_resp = timed();
    assert!(over_resp >= over_http + 64.0, "{over_resp} after {over_http}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut envoy = crate::grpc::Client::connect(server.grpc).await;
        for _ in 0..64 {
            envoy.check(&[("user", "eve")]).await;
        }
    });
    assert!(timed() >= over_resp + 64.0, "{} after {over_resp}", timed());
}
