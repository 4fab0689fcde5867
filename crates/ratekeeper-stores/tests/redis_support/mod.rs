//! What the tests of the Redis store share.
#![allow(dead_code, reason = "every file of tests uses its own part")]

use std::sync::LazyLock;
use std::time::Duration;

use ratekeeper_core::Micros;
use ratekeeper_stores::{Charge, Op, RedisConfig, RedisStore, Store, StoreError, Verdict};
use ratekeeper_testkit::RedisServer;
use tokio::runtime::Runtime;

/// What callers say the time is, where the server's clock decides.
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

/// Makes a user `limiter` with these rights and the password `secret`.
pub(crate) fn make_user(server: &RedisServer, rules: &[&str]) {
    let rules = rules.iter().flat_map(|rules| rules.split_whitespace());
    let args: Vec<_> = ["ACL", "SETUSER", "limiter", "reset"].into_iter().chain(rules).collect();
    assert_eq!(server.command(&args), "OK");
}

/// An address with that user's name and password.
pub(crate) fn as_user(url: &str) -> String {
    url.replace("://", "://limiter:secret@")
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Connections outlive a test's call, so all tests share a runtime.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

/// A store that goes by the server's clock and is given all the time it needs.
pub(crate) fn patient(url: &str, prefix: &str) -> RedisStore {
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

/// How much of a limit is in use.
pub(crate) async fn used(store: &RedisStore, charge: Charge<'_>) -> u64 {
    let verdict = apply(store, Op::Peek, &[charge]).await.unwrap();
    verdict.limit() - verdict.remaining()
}
