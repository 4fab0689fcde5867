//! The alerts and the dashboard, checked with promtool and against the exported metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ratekeeper_testkit::{RedisServer, promtool, wait_until};
use serde_json::{Value, json};

use crate::client::Client;
use crate::page::{Page, metric};
use crate::process::{Gateway, Server};

pub(crate) fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(deploy(file)).unwrap()
}

/// Returns the metrics pages of a server with the memory store, of one with leases, and of a gateway.
pub(crate) fn pages() -> [Page; 3] {
    let local = Server::start();
    local.send_to_every_listener();
    let redis = RedisServer::start();
    let store = format!("store: {{ url: '{}', deadline: 2s, leased: true }}", redis.url());
    let shared = Server::start_with(&store, &[]);
    wait_until("the store is up", || shared.page().value("ratekeeper_store_up") == 1.0);
    shared.send_to_every_listener();
    let gateway = Gateway::start();
    let of_gateway = Page::new(Client::connect(gateway.admin).get("/metrics").body);
    [local.page(), shared.page(), of_gateway]
}

/// Returns every exported metric and its kind.
fn kinds() -> BTreeMap<String, String> {
    pages().iter().flat_map(Page::kinds).collect()
}

/// Returns every expression of the dashboard, as Grafana would send it.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("grafana/ratekeeper.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    targets
        .map(|target| target["expr"].as_str().unwrap())
        .map(|expr| expr.replace("$__rate_interval", "5m").replace("$instance", ".*"))
        .collect()
}

/// Returns the metric names in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("ratekeeper_")).collect()
}

#[test]
fn the_exported_metrics_pass_promtool() {
    for page in pages() {
        promtool(&["check", "metrics"], &page.0).unwrap_or_else(|why| panic!("{why}\n{}", page.0));
    }
}

#[test]
fn the_alerts_are_valid_and_each_fires_in_a_test() {
    let (rules, tests) = (deploy("prometheus/alerts.yaml"), deploy("prometheus/alerts_test.yaml"));
    promtool(&["check", "rules", rules.to_str().unwrap()], "").unwrap();
    promtool(&["test", "rules", tests.to_str().unwrap()], "").unwrap();
    let tests = read("prometheus/alerts_test.yaml");
    for line in read("prometheus/alerts.yaml").lines() {
        if let Some((_, name)) = line.split_once("- alert: ") {
            let fires = format!("alertname: {name}\n");
            assert!(tests.contains(&fires), "{name} fires in no test");
        }
    }
}

#[test]
fn the_expressions_of_the_dashboard_are_valid() {
    let expressions = expressions();
    assert!(expressions.len() > 30, "{}", expressions.len());
    assert_valid(&expressions);
}

/// Asserts that Prometheus can parse these expressions.
pub(crate) fn assert_valid(expressions: &[String]) {
    let rule = |(i, expr): (usize, &String)| json!({"record": format!("panel:{i}"), "expr": expr});
    let rules: Vec<_> = expressions.iter().enumerate().map(rule).collect();
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    let file = tempfile::NamedTempFile::new().unwrap();
    // JSON is valid YAML.
    std::fs::write(file.path(), rules.to_string()).unwrap();
    promtool(&["check", "rules", file.path().to_str().unwrap()], "").unwrap();
}

#[test]
fn alerts_and_dashboard_use_exactly_the_exported_metrics() {
    let kinds = kinds();
    let alerts = read("prometheus/alerts.yaml");
    let dashboard = expressions().join("\n");
    let named = &names(&alerts) | &names(&dashboard);
    for name in &named {
        let known = kinds.contains_key(&metric(name, &kinds));
        assert!(known, "{name} is not exported");
    }
    let shown: BTreeSet<_> = named.iter().map(|name| metric(name, &kinds)).collect();
    let is_detail = |name: &str| name.ends_with("failed_timestamp_seconds");
    let unused = kinds.keys().filter(|name| !shown.contains(*name) && !is_detail(name));
    let unused: Vec<_> = unused.collect();
    assert!(unused.is_empty(), "neither an alert nor the dashboard uses {unused:?}");
}
