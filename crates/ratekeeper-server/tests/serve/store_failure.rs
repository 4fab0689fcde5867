//! Decisions of the HTTP API while the store is unavailable, and afterwards.

use ratekeeper_testkit::{RedisServer, wait_until};
use serde_json::{Value, json};

use crate::process::{Server, path, policy};

fn server_over(redis: &RedisServer, settings: &str) -> (Server, tempfile::NamedTempFile) {
    let policy = policy(&format!("store: {{ url: '{}', {settings} }}\nlimits: []", redis.url()));
    (Server::start(&["--resp", "off", path(policy.path())]), policy)
}

fn check(server: &Server, cost: u64) -> (u16, Value) {
    server.post("/v1/check", json!({ "key": "k", "rate": "100/day burst 100", "cost": cost }))
}

/// Returns what remains of the limit by the store's own count.
fn remaining(server: &Server) -> u64 {
    let (_, peeked) = server.post("/v1/peek", json!({ "key": "k", "rate": "100/day burst 100" }));
    assert_eq!(peeked["degraded"], false, "{peeked}");
    peeked["remaining"].as_u64().unwrap()
}

fn wait_until_up(server: &Server) {
    wait_until("the store decides", || {
        server.post("/v1/peek", json!({ "key": "other", "rate": "1/s" })).1["degraded"] == false
    });
}

#[test]
fn a_store_that_fails_closed_denies_whatever_the_endpoint() {
    let redis = RedisServer::start();
    let (server, _policy) = server_over(&redis, "on_failure: closed");
    redis.kill();
    let one = json!({ "key": "k", "rate": "5/s" });
    let several = json!({ "checks": [one, { "key": "other", "rate": "5/s" }] });
    for (endpoint, body) in [
        ("/v1/check", one.clone()),
        ("/v1/check", several),
        ("/v1/reserve", one),
        ("/v1/acquire", json!({ "key": "k", "max": 5 })),
    ] {
        let (status, denied) = server.post(endpoint, body);
        assert_eq!((status, &denied["allowed"]), (429, &json!(false)), "{endpoint}: {denied}");
    }
}

#[test]
fn a_reservation_is_settled_where_it_was_charged() {
    let redis = RedisServer::start();
    let (server, _policy) = server_over(&redis, "deadline: 200ms");
    wait_until_up(&server);
    assert_eq!(check(&server, 10).0, 200);
    redis.pause();
    let (status, reserved) =
        server.post("/v1/reserve", json!({ "key": "k", "rate": "100/day burst 100", "cost": 40 }));
    assert_eq!((status, &reserved["degraded"]), (200, &json!(true)), "{reserved}");
    let settle = json!({ "reservation": reserved["reservation"], "cost": 15 });
    let (status, settled) = server.post("/v1/settle", settle);
    assert_eq!(status, 200, "{settled}");
    redis.resume();
    wait_until_up(&server);
    // 10 were charged by the store, and 15 without it after settling.
    wait_until("the store has been charged for the outage", || remaining(&server) == 75);
}

#[test]
fn a_reservation_that_cannot_be_settled_is_still_held() {
    let redis = RedisServer::start();
    let (server, _policy) = server_over(&redis, "deadline: 200ms");
    wait_until_up(&server);
    let (_, reserved) =
        server.post("/v1/reserve", json!({ "key": "k", "rate": "100/day burst 100", "cost": 40 }));
    assert_eq!(reserved["degraded"], false, "{reserved}");
    let settle = json!({ "reservation": reserved["reservation"], "cost": 15 });
    redis.pause();
    let (status, error) = server.post("/v1/settle", settle.clone());
    assert_eq!((status, &error["code"]), (503, &json!("STORE_UNAVAILABLE")), "{error}");
    redis.resume();
    wait_until_up(&server);
    let mut settled = 0;
    wait_until("it is settled", || {
        settled = server.post("/v1/settle", settle.clone()).0;
        settled != 503
    });
    assert_eq!(settled, 200);
    assert_eq!(server.post("/v1/settle", settle).0, 410, "only once");
}

#[test]
fn a_reset_that_the_store_cannot_make_changes_nothing() {
    let redis = RedisServer::start();
    let (server, _policy) = server_over(&redis, "deadline: 200ms");
    wait_until_up(&server);
    redis.pause();
    let check = json!({ "key": "k", "rate": "100/day burst 100", "cost": 40 });
    let (_, checked) = server.post("/v1/check", &check);
    assert_eq!(checked["degraded"], true, "{checked}");
    let (status, error) = server.post("/v1/reset", &check);
    assert_eq!((status, &error["code"]), (503, &json!("STORE_UNAVAILABLE")), "{error}");
    let (_, peeked) = server.post("/v1/peek", &check);
    assert_eq!(peeked["remaining"], checked["remaining"], "{peeked}");
    redis.resume();
}
