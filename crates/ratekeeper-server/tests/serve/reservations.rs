//! Reservations of a fleet: made at one server, settled at another, once.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;

use ratekeeper_testkit::{RedisCluster, RedisSentinel, RedisServer, TIMEOUT, wait_until};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::process::{Server, path, policy};

const QUOTA: u64 = 1_000_000;

/// Servers that share a store, and the policy with its address.
struct Fleet {
    servers: [Server; 2],
    policy: NamedTempFile,
}

impl Fleet {
    fn over(url: &str) -> Fleet {
        let policy = policy(&format!("store: {{ url: '{url}', deadline: 5s }}\nlimits: []"));
        Fleet { servers: [start(&policy), start(&policy)], policy }
    }

    fn remaining(&self) -> u64 {
        remaining(&self.servers[0], "user:42")
    }
}

fn start(policy: &NamedTempFile) -> Server {
    Server::start(&["--resp", "127.0.0.1:0", path(policy.path())])
}

fn limit(key: &str, cost: u64) -> Value {
    let rate = format!("{QUOTA}/day");
    json!({ "key": key, "rate": rate, "algorithm": "fixed_window", "name": "tokens", "cost": cost })
}

fn remaining(server: &Server, key: &str) -> u64 {
    let (_, peeked) = server.post("/v1/peek", limit(key, 1));
    assert_eq!(peeked["degraded"], false, "{peeked}");
    peeked["remaining"].as_u64().unwrap()
}

fn reserve(server: &Server, cost: u64) -> Value {
    let (status, reserved) = server.post("/v1/reserve", limit("user:42", cost));
    assert_eq!(status, 200, "{reserved}");
    reserved
}

fn reserve_id(server: &Server, cost: u64) -> String {
    reserve(server, cost)["reservation"].as_str().unwrap().to_string()
}

fn settle(server: &Server, id: &str, cost: u64) -> (u16, Value) {
    server.post("/v1/settle", json!({ "reservation": id, "cost": cost }))
}

/// Sends a command of the Redis protocol, and returns so many lines of the reply.
fn command(server: &Server, command: &str, lines: usize) -> Vec<String> {
    let mut stream = TcpStream::connect(server.resp()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    BufReader::new(stream).lines().take(lines).map(Result::unwrap).collect()
}

#[test]
fn a_reservation_is_settled_at_another_server_once() {
    let (redis, valkey, cluster) =
        (RedisServer::start(), RedisServer::valkey(), RedisCluster::start());
    for url in [redis.url(), valkey.url(), cluster.url()] {
        let fleet = Fleet::over(&url);
        let [one, other] = &fleet.servers;
        for (estimate, actual) in [(2_000, 700), (100, 5_000), (40, 40), (10, 0)] {
            let before = fleet.remaining();
            let id = reserve_id(one, estimate);
            assert_eq!(fleet.remaining(), before - estimate);
            let (status, settled) = settle(other, &id, actual);
            assert_eq!((status, &settled["limit_name"]), (200, &json!("tokens")), "{settled}");
            assert_eq!(settled["remaining"], before - actual);
            for server in [one, other] {
                let (status, gone) = settle(server, &id, 0);
                assert_eq!((status, &gone["code"]), (410, &json!("GONE")), "{gone}");
                assert!(gone["message"].as_str().unwrap().contains("it was settled"), "{gone}");
            }
            assert_eq!(fleet.remaining(), before - actual);
        }
    }
}

#[test]
fn an_id_is_random_and_says_nothing_about_the_key() {
    let redis = RedisServer::start();
    let fleet = Fleet::over(&redis.url());
    let [one, _] = &fleet.servers;
    let permit = || {
        let acquire = json!({ "key": "user:42", "max": 9, "name": "exports" });
        one.post("/v1/acquire", acquire).1["permit"].as_str().unwrap().to_string()
    };
    let ids = [reserve_id(one, 5), reserve_id(one, 5), permit(), permit()];
    let key_in_hex: String = "user:42".bytes().map(|byte| format!("{byte:02x}")).collect();
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(id.len(), 32, "128 bits: {id}");
        assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(!id.contains(&key_in_hex), "{id}");
        assert!(!ids[..i].contains(id));
    }
}

#[test]
fn what_two_servers_settle_at_the_same_time_is_corrected_once() {
    let (redis, cluster) = (RedisServer::start(), RedisCluster::start());
    for url in [redis.url(), cluster.url()] {
        let fleet = Fleet::over(&url);
        for _ in 0..20 {
            let before = fleet.remaining();
            let id = reserve_id(&fleet.servers[0], 100);
            let statuses: Vec<_> = thread::scope(|scope| {
                let settles: Vec<_> = (0..4)
                    .map(|i| (&fleet.servers[i % 2], &id))
                    .map(|(server, id)| scope.spawn(move || settle(server, id, 30).0))
                    .collect();
                settles.into_iter().map(|settle| settle.join().unwrap()).collect()
            });
            assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
            assert_eq!(statuses.iter().filter(|status| **status == 410).count(), 3, "{statuses:?}");
            assert_eq!(fleet.remaining(), before - 30);
        }
    }
}

#[test]
fn a_reservation_survives_the_servers_that_made_it() {
    let redis = RedisServer::start();
    let mut fleet = Fleet::over(&redis.url());
    let ids = [reserve_id(&fleet.servers[0], 100), reserve_id(&fleet.servers[1], 50)];
    for (server, signal) in fleet.servers.iter_mut().zip(["-KILL", "-TERM"]) {
        server.signal(signal);
        server.wait();
    }
    fleet.servers = [start(&fleet.policy), start(&fleet.policy)];
    for id in &ids {
        assert_eq!(settle(&fleet.servers[0], id, 1).0, 200);
        assert_eq!(settle(&fleet.servers[1], id, 1).0, 410);
    }
    assert_eq!(fleet.remaining(), QUOTA - 2);
}

#[test]
fn a_reservation_survives_a_failover() {
    let sentinel = RedisSentinel::start();
    let fleet = Fleet::over(&sentinel.url());
    let id = reserve_id(&fleet.servers[0], 100);
    sentinel.wait_until_replicated();
    sentinel.kill_master();
    let mut status = 0;
    wait_until("the new master has it", || {
        status = settle(&fleet.servers[1], &id, 30).0;
        status != 503
    });
    assert_eq!(status, 200);
    assert_eq!(fleet.remaining(), QUOTA - 30);
    assert_eq!(settle(&fleet.servers[0], &id, 30).0, 410);
}

#[test]
fn an_expired_reservation_keeps_its_charge() {
    let redis = RedisServer::start();
    let fleet = Fleet::over(&redis.url());
    let mut short = limit("user:42", 100);
    short["valid_ms"] = json!(300);
    let (_, reserved) = fleet.servers[0].post("/v1/reserve", short);
    let id = reserved["reservation"].as_str().unwrap();
    let records = || redis.command(&["KEYS", "*reservation*"]);
    assert!(records().contains(id));
    wait_until("it has expired", || records().is_empty());
    let (status, gone) = settle(&fleet.servers[1], id, 0);
    assert_eq!(status, 410);
    assert!(gone["message"].as_str().unwrap().contains("it has expired and its charge stays"));
    assert_eq!(fleet.remaining(), QUOTA - 100);
}

#[test]
fn a_reservation_made_without_the_store_is_settled_by_its_own_server() {
    let redis = RedisServer::start();
    let fleet = Fleet::over(&redis.url());
    let [one, other] = &fleet.servers;
    assert_eq!(fleet.remaining(), QUOTA);
    redis.kill();
    let reserved = [100, 50, 10].map(|estimate| reserve(one, estimate));
    let ids = reserved.map(|reserved| {
        assert_eq!(reserved["degraded"], true, "{reserved}");
        reserved["reservation"].as_str().unwrap().to_string()
    });
    assert!(ids.iter().all(|id| id.starts_with("degraded-")), "{ids:?}");
    let (status, gone) = settle(other, &ids[0], 30);
    assert_eq!((status, &gone["code"]), (410, &json!("GONE")));
    let message = gone["message"].as_str().unwrap();
    assert!(message.contains("made while the store was unavailable"), "{message}");
    assert_eq!(settle(one, &ids[0], 30).0, 200, "the other server has not removed it");
    assert_eq!(settle(one, &ids[0], 30).0, 410, "only once");
    assert_eq!(settle(one, &ids[1], 70).0, 200, "more than the estimate");
    redis.restart();
    let decided = || one.post("/v1/peek", limit("user:42", 1)).1;
    wait_until("the store decides again", || decided()["degraded"] == false);
    wait_until("what was settled is charged to it", || {
        decided()["remaining"].as_u64() == Some(QUOTA - 110)
    });
    assert_eq!(settle(other, &ids[2], 0).0, 410, "also when the store is available again");
    assert_eq!(settle(one, &ids[2], 4).0, 200);
    assert_eq!(fleet.remaining(), QUOTA - 104);
}

#[test]
fn http_and_the_redis_protocol_share_reservations_and_permits() {
    let redis = RedisServer::start();
    let fleet = Fleet::over(&redis.url());
    let [one, other] = &fleet.servers;
    let reserve =
        format!("RK.RESERVE user:42 {QUOTA}/day ALGORITHM fixed_window NAME tokens COST 500");
    let reserved = command(one, &reserve, 29);
    let id = reserved.last().unwrap();
    assert_eq!(id.len(), 32, "{reserved:?}");
    assert_eq!(settle(other, id, 200).0, 200);
    let id = reserve_id(other, 900);
    let settled = command(one, &format!("RK.SETTLE {id} 100"), 1);
    assert_eq!(settled, ["*16"]);
    assert!(command(other, &format!("RK.SETTLE {id} 100"), 1)[0].starts_with("-GONE "));
    assert_eq!(fleet.remaining(), QUOTA - 300);

    let held = command(one, "RK.ACQUIRE exports 1 VALID 60000", 11);
    let permit = held.last().unwrap();
    let acquire = json!({ "key": "exports", "max": 1 });
    assert_eq!(other.post("/v1/acquire", &acquire).0, 429, "{held:?}");
    assert_eq!(other.post("/v1/release", json!({ "permit": permit })).0, 200);
    let permit = other.post("/v1/acquire", &acquire).1["permit"].as_str().unwrap().to_string();
    assert_eq!(command(one, &format!("RK.RELEASE {permit}"), 1), ["+OK"]);
    assert!(command(one, &format!("RK.RELEASE {permit}"), 1)[0].starts_with("-GONE "));
}

/// Reserves and settles at random servers, also twice, on several threads. In the end, what is charged is the
/// sum of what was settled first, and of the estimates that were not settled.
#[test]
fn what_is_charged_in_the_end_is_the_sum_of_what_was_settled() {
    let (redis, cluster) = (RedisServer::start(), RedisCluster::start());
    for url in [redis.url(), cluster.url()] {
        let fleet = Fleet::over(&url);
        let charged: u64 = thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|seed| {
                    scope.spawn({
                        let fleet = &fleet;
                        move || run_client(fleet, seed)
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        assert_eq!(fleet.remaining(), QUOTA - charged);
    }
}

/// Returns what should be charged.
fn run_client(fleet: &Fleet, seed: u64) -> u64 {
    let mut random = Random(seed + 1);
    let (mut charged, mut open) = (0, Vec::new());
    for _ in 0..60 {
        let server = |random: &mut Random| &fleet.servers[random.below(2) as usize];
        let estimate = random.below(500) + 1;
        open.push((reserve_id(server(&mut random), estimate), estimate));
        while open.len() > random.below(4) as usize {
            let (id, _) = open.swap_remove(random.below(open.len() as u64) as usize);
            let actual = random.below(800);
            assert_eq!(settle(server(&mut random), &id, actual).0, 200);
            charged += actual;
            if random.below(3) == 0 {
                assert_eq!(settle(server(&mut random), &id, random.below(800)).0, 410);
            }
        }
    }
    charged + open.iter().map(|(_, estimate)| estimate).sum::<u64>()
}

/// A xorshift generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
