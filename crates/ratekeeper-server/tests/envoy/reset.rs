//! Limits of descriptors made as good as new, and files read again when asked.

use serde_json::{Value, json};

use crate::process::Server;

const FILE: &str = "
domain: test
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: plan, rate_limits: [{ name: slow, rate: 2/year }, { rate: 1/day }] }
  - { key: free, rate_limit: { unlimited: true } }
";

fn about(keys: &[&str]) -> Value {
    let descriptor = |key: &&str| json!({ "entries": [{ "key": key, "value": "ann" }] });
    let descriptors: Vec<_> = keys.iter().map(descriptor).collect();
    json!({ "domain": "test", "descriptors": descriptors })
}

#[test]
fn descriptors_can_be_reset() {
    let server = Server::start(FILE);
    let ask = |keys: &[&str]| server.post("/json", &about(keys)).0;
    assert_eq!((ask(&["user"]), ask(&["user"])), (200, 429));
    assert_eq!((ask(&["plan"]), ask(&["plan"])), (200, 429));
    let (status, told) = server.post("/v1/reset", &about(&["user", "plan", "free", "other"]));
    assert_eq!(status, 200);
    assert_eq!(told, json!({ "reset": true, "limits": ["test.user", "slow", "test.plan#2"] }));
    assert_eq!((ask(&["user", "plan"]), ask(&["user"])), (200, 429));
}

#[test]
fn a_limit_that_the_request_brought_can_be_reset() {
    let server = Server::start(FILE);
    let mut own = about(&["own"]);
    own["descriptors"][0]["limit"] = json!({ "requestsPerUnit": 1, "unit": "YEAR" });
    let ask = || server.post("/json", &own).0;
    assert_eq!((ask(), ask()), (200, 429));
    assert_eq!(server.post("/v1/reset", &own).1["reset"], true);
    assert_eq!(ask(), 200);
}

#[test]
fn what_cannot_be_reset_is_told() {
    let server = Server::start(FILE);
    let nothing = json!({ "reset": false, "limits": [] });
    assert_eq!(server.post("/v1/reset", &about(&["other"])), (200, nothing));
    let (status, told) = server.post("/v1/reset", &json!({ "descriptors": [] }));
    assert_eq!(status, 400);
    assert!(told["message"].as_str().unwrap().contains("domain is empty"), "{told}");
}

#[test]
fn a_hang_up_reads_the_files_again() {
    let server = Server::start(FILE);
    server.signal("-HUP");
    server.wait_for_log("Envoy rate limits reloaded");
}
