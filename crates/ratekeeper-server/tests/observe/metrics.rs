//! What a server tells of what it was asked.

use std::fs;

use ratekeeper_testkit::wait_until;
use serde_json::Value;

use crate::client::Client;
use crate::page::Page;
use crate::process::{Gateway, Server};

fn requests(door: &str, page: &Page) -> [f64; 4] {
    ["allowed", "denied", "error", "other"].map(|outcome| {
        page.value(&format!("ratekeeper_requests_total{{door=\"{door}\",outcome=\"{outcome}\"}}"))
    })
}

#[test]
fn every_door_counts_and_times_what_it_is_asked() {
    let server = Server::start();
    server.ask_everywhere();
    let page = server.page();
    assert_eq!(requests("http", &page), [3.0, 1.0, 1.0, 1.0]);
    assert_eq!(requests("auth", &page), [6.0, 1.0, 0.0, 0.0]);
    assert_eq!(requests("resp", &page), [3.0, 1.0, 1.0, 2.0]);
    assert_eq!(requests("grpc", &page), [5.0, 1.0, 1.0, 0.0]);
    for (door, asked) in [("http", 6.0), ("auth", 7.0), ("resp", 7.0), ("grpc", 7.0)] {
        let name = format!("ratekeeper_request_duration_seconds_count{{door=\"{door}\"}}");
        assert_eq!(page.value(&name), asked, "{door}");
    }
    assert!(page.value("ratekeeper_connections_accepted_total{door=\"http\"}") >= 13.0);
    assert_eq!(page.value("ratekeeper_connections_accepted_total{door=\"resp\"}"), 1.0);
    assert_eq!(page.value("ratekeeper_connections_accepted_total{door=\"grpc\"}"), 1.0);
    wait_until("closed connections are no longer counted", || {
        server.page().value("ratekeeper_connections{door=\"http\"}") == 0.0
    });
}

#[test]
fn limits_of_policies_and_of_files_are_counted_by_name_with_near_and_shadow() {
    let server = Server::start();
    server.ask_everywhere();
    let page = server.page();
    for (series, value) in [
        ("ratekeeper_decisions_total{limit=\"checkout\",outcome=\"allowed\"}", 5.0),
        ("ratekeeper_decisions_total{limit=\"checkout\",outcome=\"denied\"}", 1.0),
        ("ratekeeper_decisions_total{limit=\"watched\",outcome=\"shadow_denied\"}", 3.0),
        ("ratekeeper_near_limit_total{limit=\"checkout\"}", 1.0),
        ("ratekeeper_exempt_total", 1.0),
        ("ratekeeper_envoy_decisions_total{limit=\"test.user\",outcome=\"allowed\"}", 5.0),
        ("ratekeeper_envoy_decisions_total{limit=\"test.user\",outcome=\"denied\"}", 1.0),
        ("ratekeeper_envoy_near_limit_total{limit=\"test.user\"}", 1.0),
        ("ratekeeper_envoy_requests_total{code=\"invalid\"}", 1.0),
        ("ratekeeper_envoy_limits", 1.0),
    ] {
        assert_eq!(page.value(series), value, "{series}");
    }
}

/// Names of limits, keys and counts.
fn keys(list: &Value) -> Vec<(String, String, u64)> {
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let keys = list["keys"].as_array().unwrap().iter();
    keys.map(|key| (text(&key["limit"]), text(&key["key"]), key["count"].as_u64().unwrap()))
        .collect()
}

#[test]
fn every_door_feeds_the_list_of_the_hottest_and_most_denied_keys() {
    let server = Server::start();
    server.ask_everywhere();
    let top = server.json("/v1/top?n=50");
    let mut hottest = keys(&top["hottest"]);
    hottest.sort();
    let expected = [
        ("api", "bob", 4),
        ("checkout", "*", 6),
        ("login", "ann", 4),
        ("test.user", "user=eve", 6),
        ("watched", "*", 5),
    ];
    let expected = expected.map(|(limit, key, count)| (limit.to_string(), key.to_string(), count));
    assert_eq!(hottest, expected);
    let denied = keys(&top["most_denied"]);
    assert_eq!(denied.len(), 4, "{denied:?}");
    assert!(denied.iter().all(|(_, _, count)| *count == 1), "{denied:?}");
    assert_eq!(keys(&server.json("/v1/top?n=1")["hottest"]).len(), 1);
    assert_eq!(server.tell("/v1/top?n=0").0, 400);
}

#[test]
fn the_gateway_has_the_same_numbers_and_the_same_list() {
    let gateway = Gateway::start();
    let statuses: Vec<_> =
        (0..6).map(|_| Client::connect(gateway.listen).get("/checkout").status()).collect();
    assert_eq!(statuses.last(), Some(&429));
    let tell = |path: &str| Client::connect(gateway.admin).get(path);
    let page = Page::new(tell("/metrics").body);
    assert_eq!(page.value("ratekeeper_near_limit_total{limit=\"checkout\"}"), 1.0);
    let top: Value = serde_json::from_str(&tell("/v1/top").body).unwrap();
    assert_eq!(keys(&top["most_denied"]), [("checkout".into(), "*".into(), 1)]);
    assert_eq!(tell("/v1/envoy").status(), 404);
}

#[test]
fn files_that_cannot_be_used_are_told_until_they_can() {
    let server = Server::start();
    let told = server.json("/v1/envoy");
    assert_eq!((&told["limits"], &told["error"]), (&1.into(), &Value::Null));
    let file = server.folder.path().join("envoy/limits.yaml");
    fs::write(&file, "domain: test\ndescriptors: [{ key: 1x, rte_limit: {} }]").unwrap();
    wait_until("the error is told", || server.json("/v1/envoy")["error"].is_string());
    let page = server.page();
    assert_eq!(page.value("ratekeeper_envoy_config_ok"), 0.0);
    assert_eq!(page.value("ratekeeper_envoy_config_failures_total"), 1.0);
    let failed_at = page.value("ratekeeper_envoy_config_failed_timestamp_seconds");
    assert!(failed_at >= page.value("ratekeeper_envoy_config_loaded_timestamp_seconds"));
    assert_eq!(page.value("ratekeeper_envoy_limits"), 1.0, "the old limits stay");
    fs::write(&file, crate::process::DESCRIPTORS).unwrap();
    wait_until("it is gone", || server.page().value("ratekeeper_envoy_config_ok") == 1.0);
    assert_eq!(server.page().value("ratekeeper_envoy_config_failed_timestamp_seconds"), 0.0);
}

#[test]
fn the_time_of_the_store_is_told_whichever_door_is_asked() {
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
