//! The alerts and the dashboard, checked with promtool and against what a server really tells.

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

/// The pages of a server with counts in memory, of one with leases, and of a gateway.
pub(crate) fn pages() -> [Page; 3] {
    let here = Server::start();
    here.ask_everywhere();
    let redis = RedisServer::start();
    let store = format!("store: {{ url: '{}', deadline: 2s, leased: true }}", redis.url());
    let shared = Server::start_with(&store, &[]);
    wait_until("the store answers", || shared.page().value("ratekeeper_store_up") == 1.0);
    shared.ask_everywhere();
    let gateway = Gateway::start();
    let of_gateway = Page::new(Client::connect(gateway.admin).get("/metrics").body);
    [here.page(), shared.page(), of_gateway]
}

/// Every metric that is told somewhere, and its kind.
fn kinds() -> BTreeMap<String, String> {
    pages().iter().flat_map(Page::kinds).collect()
}

/// Every expression of the dashboard, as Grafana would send it.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("grafana/ratekeeper.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    targets
        .map(|target| target["expr"].as_str().unwrap())
        .map(|expr| expr.replace("$__rate_interval", "5m").replace("$instance", ".*"))
        .collect()
}

/// Names of ours in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("ratekeeper_")).collect()
}

#[test]
fn what_a_server_tells_is_what_prometheus_wants_it_to_be() {
    for page in pages() {
        promtool(&["check", "metrics"], &page.0).unwrap_or_else(|why| panic!("{why}\n{}", page.0));
    }
}

#[test]
fn the_alerts_are_well_formed_and_fire_when_they_should() {
    let (rules, tests) = (deploy("prometheus/alerts.yaml"), deploy("prometheus/alerts_test.yaml"));
    promtool(&["check", "rules", rules.to_str().unwrap()], "").unwrap();
    promtool(&["test", "rules", tests.to_str().unwrap()], "").unwrap();
    let told = read("prometheus/alerts_test.yaml");
    for line in read("prometheus/alerts.yaml").lines() {
        if let Some((_, name)) = line.split_once("- alert: ") {
            let fires = format!("alertname: {name}\n");
            assert!(told.contains(&fires), "no test sees {name} fire");
        }
    }
}

#[test]
fn the_dashboard_asks_in_words_that_prometheus_understands() {
    let expressions = expressions();
    assert!(expressions.len() > 30, "{}", expressions.len());
    let rule = |(i, expr): (usize, &String)| json!({"record": format!("panel:{i}"), "expr": expr});
    let rules: Vec<_> = expressions.iter().enumerate().map(rule).collect();
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    let file = tempfile::NamedTempFile::new().unwrap();
    // What is JSON is YAML too.
    std::fs::write(file.path(), rules.to_string()).unwrap();
    promtool(&["check", "rules", file.path().to_str().unwrap()], "").unwrap();
}

#[test]
fn alerts_and_dashboard_name_only_what_is_really_told() {
    let kinds = kinds();
    let alerts = read("prometheus/alerts.yaml");
    let dashboard = expressions().join("\n");
    let named = &names(&alerts) | &names(&dashboard);
    for name in &named {
        let known = kinds.contains_key(&metric(name, &kinds));
        assert!(known, "nobody tells {name}");
    }
    let shown: BTreeSet<_> = named.iter().map(|name| metric(name, &kinds)).collect();
    let is_detail = |name: &str| name.ends_with("failed_timestamp_seconds");
    let unseen = kinds.keys().filter(|name| !shown.contains(*name) && !is_detail(name));
    let unseen: Vec<_> = unseen.collect();
    assert!(unseen.is_empty(), "neither an alert nor the dashboard shows {unseen:?}");
}
