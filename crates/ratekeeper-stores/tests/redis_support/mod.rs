//! Shared by the tests of the Redis store.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::sync::LazyLock;
use std::time::Duration;

use ratekeeper_core::Micros;
use ratekeeper_stores::{Charge, Op, RedisConfig, RedisStore, Store, StoreError, Verdict};
use ratekeeper_testkit::RedisServer;
use tokio::runtime::Runtime;

/// The time passed by callers; ignored, because the server's clock decides.
pub(crate) const NO_TIME: Micros = Micros::new(0);

/// The rights of a user, as in the documentation of `RedisConfig`: for decisions,
pub(crate) const ACL: &str = "on >secret resetkeys resetchannels -@all ~ratekeeper:* \
    +evalsha +eval +time +get +mget +set +del +ping";
/// for permits and leases,
pub(crate) const ACL_FLEET: &str = "+zadd +zcard +zrange +zrem +zremrangebyscore +zscore +pexpire \
    +pttl";
/// and for how the servers are run.
pub(crate) const ACL_CLUSTER: &str = "+cluster|slots +asking";
pub(crate) const ACL_SENTINEL: &str = "+role";

/// Creates a user `limiter` with these rights and the password `secret`.
pub(crate) fn make_user(server: &RedisServer, rules: &[&str]) {
    let rules = rules.iter().flat_map(|rules| rules.split_whitespace());
    let args: Vec<_> = ["ACL", "SETUSER", "limiter", "reset"].into_iter().chain(rules).collect();
    assert_eq!(server.command(&args), "OK");
}

/// Adds that user's name and password to a URL.
pub(crate) fn as_user(url: &str) -> String {
    url.replace("://", "://limiter:secret@")
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Runs a future on the runtime that all tests share, because connections outlive a single call.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

/// Opens a store that uses the server's clock, with a deadline that no test reaches.
pub(crate) fn store_with_long_deadline(url: &str, prefix: &str) -> RedisStore {
    let config = RedisConfig::new(url).with_prefix(prefix);
    config.with_deadline(Duration::from_secs(10)).open().unwrap()
}

pub(crate) async fn apply(
    store: &RedisStore,
    op: Op,
    charges: &[Charge<'_>],
) -> Result<Verdict, StoreError> {
    let call = store.apply(op, charges, NO_TIME);
    tokio::time::timeout(Duration::from_secs(15), call).await.expect("a call ends")
}

pub(crate) async fn check(store: &RedisStore, charge: Charge<'_>) -> Result<Verdict, StoreError> {
    apply(store, Op::Check, &[charge]).await
}

/// Returns how much of a limit is used.
pub(crate) async fn used(store: &RedisStore, charge: Charge<'_>) -> u64 {
    let verdict = apply(store, Op::Peek, &[charge]).await.unwrap();
    verdict.limit() - verdict.remaining()
}
