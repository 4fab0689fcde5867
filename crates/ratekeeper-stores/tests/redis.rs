//! The Redis store against real servers.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_stores::{RedisConfig, RedisStore};
use ratekeeper_testkit::{RedisCluster, RedisServer};

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);
static VALKEY: LazyLock<RedisServer> = LazyLock::new(RedisServer::valkey);
static CLUSTER: LazyLock<RedisCluster> = LazyLock::new(RedisCluster::start);

/// Opens a store with its own key prefix, whose time the test sets.
fn fresh(url: &str) -> RedisStore {
    static STORES: AtomicU64 = AtomicU64::new(0);
    let number = STORES.fetch_add(1, Ordering::Relaxed);
    let config = RedisConfig::new(url).with_prefix(&format!("test{number}")).with_given_time();
    config.with_deadline(Duration::from_secs(10)).open().unwrap()
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

ratekeeper_stores::conformance!(redis, fresh(&REDIS.url()), block_on);
ratekeeper_stores::conformance!(valkey, fresh(&VALKEY.url()), block_on);
ratekeeper_stores::conformance!(cluster, fresh(&CLUSTER.url()), block_on);
