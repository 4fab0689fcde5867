//! Bytes a key, as the server counts them.

use std::time::Duration;

use ratekeeper_core::{Limit, Micros};
use ratekeeper_stores::{Charge, Op, RedisConfig, RedisStore, Store};

use super::library::runtime;
use super::scripts;
use super::server::Server;

/// The caller's key.
const KEY: &str = "customer:00000001";
/// When the logs begin.
const EPOCH_US: u64 = 1_700_000_000_000_000;
const ENTRIES: u64 = 100;

pub const HASH: &str = "naive token bucket: a hash of two fields";
pub const BUCKET: &str = "**ratekeeper**, token bucket";
pub const LOG: &str = "**ratekeeper**, sliding log of 100 (100/day)";

/// Names and bytes.
pub fn measure(server: &mut Server) -> Vec<(&'static str, u64)> {
    server.flush_all();
    let hash = by_script(server, scripts::TOKEN_HASH, &scripts::TOKEN_HASH_ARGS);
    let two_keys = by_script(server, scripts::TWO_KEYS, &scripts::TWO_KEYS_ARGS);
    vec![
        (HASH, hash),
        (BUCKET, by_library(server, &scripts::bucket())),
        ("**ratekeeper**, token bucket with fractions (99/s)", {
            by_library(server, &bucket("99/s burst 1000").named("api"))
        }),
        ("**ratekeeper**, token bucket without a name", {
            by_library(server, &bucket("100/s burst 1000"))
        }),
        ("**ratekeeper**, fixed window", by_library(server, &scripts::window())),
        // One window is stored; the next one takes the same again.
        ("naive sliding counter: two keys", 2 * two_keys),
        ("**ratekeeper**, sliding counter", by_library(server, &scripts::counter())),
        ("naive sliding log: a sorted set of 100", sorted_set(server)),
        ("**ratekeeper**, sliding log of 100 (100/minute)", log(server, "100/minute", 60_000_000)),
        (LOG, log(server, "100/day", 86_400_000_000)),
    ]
}

fn bucket(rate: &str) -> Limit {
    Limit::token_bucket(rate).expect("a rate")
}

/// Returns the bytes of the only key, and deletes it.
fn bytes(server: &mut Server) -> u64 {
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert_eq!(keys.len(), 1, "{keys:?}");
    let bytes = server.command(&["MEMORY", "USAGE", &keys[0]]);
    server.flush_all();
    bytes
}

/// After three calls, so that tokens are no longer whole.
fn by_script(server: &mut Server, source: &str, args: &[&str]) -> u64 {
    let key = format!("ratelimit:api:{KEY}");
    for _ in 0..3 {
        server.command::<Vec<u64>>(&[&["EVAL", source, "1", &key], args].concat());
        std::thread::sleep(Duration::from_millis(3));
    }
    bytes(server)
}

fn by_library(server: &mut Server, limit: &Limit) -> u64 {
    let config = RedisConfig::new(&server.url()).with_deadline(Duration::from_secs(5));
    let store = config.open().expect("an address");
    let moments = [0; 3].map(Micros::new);
    charge(&store, limit, moments);
    bytes(server)
}

/// A log whose entries are spread over its window.
fn log(server: &mut Server, rate: &str, window_us: u64) -> u64 {
    let config = RedisConfig::new(&server.url()).with_deadline(Duration::from_secs(5));
    let store = config.with_given_time().open().expect("an address");
    let limit = Limit::sliding_log(rate).expect("a rate").named("api");
    charge(&store, &limit, moments(window_us).map(Micros::new));
    bytes(server)
}

fn sorted_set(server: &mut Server) -> u64 {
    for moment in moments(86_400_000_000) {
        let member = format!("{moment}-{:012}", moment % 10_007);
        server.command::<u64>(&[
            "ZADD",
            &format!("ratelimit:api:{KEY}"),
            &moment.to_string(),
            &member,
        ]);
    }
    bytes(server)
}

fn moments(window_us: u64) -> impl Iterator<Item = u64> {
    (0..ENTRIES).map(move |i| EPOCH_US + i * (window_us / ENTRIES) + i * i % 97)
}

fn charge(store: &RedisStore, limit: &Limit, moments: impl IntoIterator<Item = Micros>) {
    runtime().block_on(async {
        for now in moments {
            let verdict = store.apply(Op::Check, &[Charge::new(limit, KEY)], now).await;
            assert!(verdict.expect("a verdict").allowed());
        }
    });
}
