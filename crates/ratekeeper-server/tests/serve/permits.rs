//! Permits over a shared store: they belong to whoever took them, not to the server that gave them.

use ratekeeper_testkit::{RedisServer, wait_until};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::process::{Server, path, policy};

/// A store, the policy that names it, and two servers.
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

    /// The millisecond until which the only permit is held, and what time it is for the store.
    fn held_until(&self) -> (u64, u64) {
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
fn a_permit_outlives_the_server_that_gave_it() {
    for signal in ["-KILL", "-TERM"] {
        let mut fleet = Fleet::start();
        let (status, held) = acquire(&fleet.servers[0], HOUR_MS);
        assert_eq!(status, 200, "{held}");
        fleet.servers[0].signal(signal);
        fleet.servers[0].wait();
        // Nothing renews it and nothing shortens it.
        let (until, now) = fleet.held_until();
        assert!(until > now + HOUR_MS - 10 * MINUTE_MS, "{signal}: {until} at {now}");
        let other = &fleet.servers[1];
        assert_eq!(acquire(other, MINUTE_MS).0, 429, "{signal}");
        assert_eq!(release(other, &held["permit"]).0, 200, "{signal}");
        assert_eq!(acquire(other, MINUTE_MS).0, 200, "{signal}");
    }
}

#[test]
fn a_permit_is_held_until_its_time_is_over_and_no_longer() {
    let mut fleet = Fleet::start();
    assert_eq!(acquire(&fleet.servers[0], 1_500).0, 200);
    let (until, _) = fleet.held_until();
    fleet.servers[0].signal("-KILL");
    fleet.servers[0].wait();
    wait_until("it comes back", || acquire(&fleet.servers[1], MINUTE_MS).0 == 200);
    assert!(fleet.now_ms() >= until, "it came back before its time");
}

#[test]
fn a_permit_is_released_once_and_only_by_its_id() {
    let fleet = Fleet::start();
    let [one, other] = &fleet.servers;
    let held = acquire(one, HOUR_MS).1["permit"].clone();
    let id = held.as_str().unwrap();
    let (random, place) = id.split_once('-').unwrap();
    assert_eq!(random.len(), 32, "128 bits");
    let forged = [
        format!("{}-{place}", "0".repeat(32)),
        format!("{random}-{}-api", "61".repeat(7)),
        format!("{random}-{}-other", place.split_once('-').unwrap().0),
        "0".repeat(32),
    ];
    for forged in forged {
        let (status, why) = release(other, &json!(forged));
        assert_eq!((status, &why["code"]), (410, &json!("GONE")), "{forged}");
    }
    for malformed in [format!("{id}\n"), random.to_string() + "-", "-".into(), format!("x{id}")] {
        let (status, why) = release(other, &json!(malformed));
        let why = why["message"].as_str().unwrap();
        assert!(status == 400 && why.contains("what /v1/acquire answered"), "{malformed}: {why}");
    }
    assert_eq!(acquire(one, MINUTE_MS).0, 429, "it is still held");
    assert_eq!(release(other, &held), (200, json!({"released": true})));
    let again = acquire(other, HOUR_MS);
    assert_eq!(again.0, 200);
    for server in [one, other] {
        let (status, why) = release(server, &held);
        assert_eq!(status, 410);
        assert!(why["message"].as_str().unwrap().contains("was released before"), "{why}");
    }
    assert_eq!(acquire(one, MINUTE_MS).0, 429, "the second release took nothing from others");
}

#[test]
fn without_the_store_a_server_gives_permits_of_its_own() {
    let fleet = Fleet::start();
    let stored = acquire(&fleet.servers[0], HOUR_MS).1["permit"].clone();
    fleet.redis.kill();
    let (status, why) = release(&fleet.servers[0], &stored);
    assert_eq!((status, &why["code"]), (503, &json!("STORE")), "{why}");
    let fallback = policy(&format!("store: {{ url: '{}' }}\nlimits: []", fleet.redis.url()));
    let server = Server::start(&["--resp", "off", path(fallback.path())]);
    let local = acquire(&server, HOUR_MS);
    assert_eq!(local.0, 200);
    assert_eq!(acquire(&server, HOUR_MS).0, 429, "its share is used up");
    assert_eq!(release(&fleet.servers[1], &local.1["permit"]).0, 410, "another server's");
    assert_eq!(release(&server, &local.1["permit"]).0, 200);
    drop(fleet.policy);
}
