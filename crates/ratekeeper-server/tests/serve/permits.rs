//! Permits of a shared store: they do not depend on the server that granted them.

use ratekeeper_testkit::{RedisServer, wait_until};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::process::{Server, path, policy};

/// A store, the policy with its address, and two servers.
struct Fleet {
    redis: RedisServer,
    policy: NamedTempFile,
    servers: [Server; 2],
}

impl Fleet {
    fn start() -> Fleet {
        let redis = RedisServer::start();
        let policy =
            policy(&format!("store: {{ url: '{}', deadline: 5s }}\nlimits: []", redis.url()));
        let start = || Server::start(&["--resp", "off", path(policy.path())]);
        let servers = [start(), start()];
        Fleet { redis, servers, policy }
    }

    /// Returns the deadline of the only permit and the store's time, in milliseconds.
    fn deadline_and_now_ms(&self) -> (u64, u64) {
        let script = "local key = redis.call('KEYS', '*callers*')[1]
            return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')[2]";
        let until = self.redis.command(&["EVAL", script, "0"]).parse().unwrap();
        (until, self.now_ms())
    }

    fn now_ms(&self) -> u64 {
        let time = self.redis.command(&["TIME"]);
        let (secs, micros) = time.split_once('\n').unwrap();
        secs.trim().parse::<u64>().unwrap() * 1_000 + micros.trim().parse::<u64>().unwrap() / 1_000
    }
}

fn acquire(server: &Server, valid_ms: u64) -> (u16, Value) {
    server.post("/v1/acquire", json!({"key": "exports", "max": 1, "valid_ms": valid_ms}))
}

fn release(server: &Server, permit: &Value) -> (u16, Value) {
    server.post("/v1/release", json!({ "permit": permit }))
}

const HOUR_MS: u64 = 3_600_000;
const MINUTE_MS: u64 = 60_000;

#[test]
fn a_permit_outlives_the_server_that_granted_it() {
    for signal in ["-KILL", "-TERM"] {
        let mut fleet = Fleet::start();
        let (status, held) = acquire(&fleet.servers[0], HOUR_MS);
        assert_eq!(status, 200, "{held}");
        fleet.servers[0].signal(signal);
        fleet.servers[0].wait();
        // Neither end of the server has changed its deadline.
        let (until, now) = fleet.deadline_and_now_ms();
        assert!(until > now + HOUR_MS - 10 * MINUTE_MS, "{signal}: {until} at {now}");
        let other = &fleet.servers[1];
        assert_eq!(acquire(other, MINUTE_MS).0, 429, "{signal}");
        assert_eq!(release(other, &held["permit"]).0, 200, "{signal}");
        assert_eq!(acquire(other, MINUTE_MS).0, 200, "{signal}");
    }
}

#[test]
fn a_permit_is_held_until_it_expires() {
    let mut fleet = Fleet::start();
    assert_eq!(acquire(&fleet.servers[0], 1_500).0, 200);
    let (until, _) = fleet.deadline_and_now_ms();
    fleet.servers[0].signal("-KILL");
    fleet.servers[0].wait();
    wait_until("the permit has expired", || acquire(&fleet.servers[1], MINUTE_MS).0 == 200);
    assert!(fleet.now_ms() >= until, "it expired too early");
}

#[test]
fn a_permit_is_released_once_and_only_by_its_own_id() {
    let fleet = Fleet::start();
    let [one, other] = &fleet.servers;
    let held = acquire(one, HOUR_MS).1["permit"].clone();
    let id = held.as_str().unwrap();
    assert_eq!(id.len(), 32, "128 bits");
    for forged in ["0".repeat(32), format!("degraded-{id}")] {
        let (status, body) = release(other, &json!(forged));
        assert_eq!((status, &body["code"]), (410, &json!("GONE")), "{forged}");
    }
    for malformed in [format!("{id}\n"), format!("{id}-61-api"), "-".into(), format!("x{id}")] {
        let (status, body) = release(other, &json!(malformed));
        let message = body["message"].as_str().unwrap();
        assert!(
            status == 400 && message.contains("that /v1/acquire returned"),
            "{malformed}: {message}"
        );
    }
    assert_eq!(acquire(one, MINUTE_MS).0, 429, "it is still held");
    assert_eq!(release(other, &held), (200, json!({"released": true})));
    let again = acquire(other, HOUR_MS);
    assert_eq!(again.0, 200);
    for server in [one, other] {
        let (status, body) = release(server, &held);
        assert_eq!(status, 410);
        assert!(body["message"].as_str().unwrap().contains("was released before"), "{body}");
    }
    assert_eq!(acquire(one, MINUTE_MS).0, 429, "the second release freed nothing");
}

#[test]
fn without_the_store_a_server_grants_permits_of_its_own() {
    let fleet = Fleet::start();
    let stored = acquire(&fleet.servers[0], HOUR_MS).1["permit"].clone();
    fleet.redis.kill();
    let (status, body) = release(&fleet.servers[0], &stored);
    assert_eq!((status, &body["code"]), (503, &json!("STORE_UNAVAILABLE")), "{body}");
    let fallback = policy(&format!("store: {{ url: '{}' }}\nlimits: []", fleet.redis.url()));
    let server = Server::start(&["--resp", "off", path(fallback.path())]);
    let local = acquire(&server, HOUR_MS);
    assert_eq!(local.0, 200);
    assert_eq!(acquire(&server, HOUR_MS).0, 429, "its share is used up");
    let (status, body) = release(&fleet.servers[1], &local.1["permit"]);
    assert_eq!(status, 410, "granted by another server");
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("granted while the store was unavailable"), "{message}");
    assert_eq!(release(&server, &local.1["permit"]).0, 200);
    drop(fleet.policy);
}
