//! Resets of descriptors, and reloads on a signal.

use serde_json::{Value, json};

use crate::process::Server;

const FILE: &str = "
domain: test
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: plan, rate_limits: [{ name: slow, rate: 2/year }, { rate: 1/day }] }
  - { key: free, rate_limit: { unlimited: true } }
";

fn request_of(keys: &[&str]) -> Value {
    let descriptor = |key: &&str| json!({ "entries": [{ "key": key, "value": "ann" }] });
    let descriptors: Vec<_> = keys.iter().map(descriptor).collect();
    json!({ "domain": "test", "descriptors": descriptors })
}

#[test]
fn descriptors_can_be_reset() {
    let server = Server::start(FILE);
    let check = |keys: &[&str]| server.post("/json", &request_of(keys)).0;
    assert_eq!((check(&["user"]), check(&["user"])), (200, 429));
    assert_eq!((check(&["plan"]), check(&["plan"])), (200, 429));
    let (status, body) = server.post("/v1/reset", &request_of(&["user", "plan", "free", "other"]));
    assert_eq!(status, 200);
    assert_eq!(body, json!({ "reset": true, "limits": ["test.user", "slow", "test.plan#2"] }));
    assert_eq!((check(&["user", "plan"]), check(&["user"])), (200, 429));
}

#[test]
fn a_limit_that_the_request_brings_can_be_reset() {
    let server = Server::start(FILE);
    let mut own = request_of(&["own"]);
    own["descriptors"][0]["limit"] = json!({ "requestsPerUnit": 1, "unit": "YEAR" });
    let check = || server.post("/json", &own).0;
    assert_eq!((check(), check()), (200, 429));
    assert_eq!(server.post("/v1/reset", &own).1["reset"], true);
    assert_eq!(check(), 200);
}

#[test]
fn unknown_descriptors_and_invalid_requests_reset_nothing() {
    let server = Server::start(FILE);
    let nothing = json!({ "reset": false, "limits": [] });
    assert_eq!(server.post("/v1/reset", &request_of(&["other"])), (200, nothing));
    let (status, body) = server.post("/v1/reset", &json!({ "descriptors": [] }));
    assert_eq!(status, 400);
    assert!(body["message"].as_str().unwrap().contains("domain is empty"), "{body}");
}

#[test]
fn sighup_reloads_the_files() {
    let server = Server::start(FILE);
    server.signal("-HUP");
    server.wait_for_log("Envoy rate limits reloaded");
}
