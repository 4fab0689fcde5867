//! State in Redis or Valkey, shared by a fleet.
//!
//! One script call is one decision, also on several limits. The time is that of the server, so the
//! clocks of the callers do not matter.

mod cluster;
mod codec;
mod connection;
mod decide;
mod keys;
mod permits;
mod reservation_codec;
mod reservations;
mod script;
mod script_call;
mod sentinel;
mod shared_store;
mod slots;
mod url;

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, RedisError, Value};
use ratekeeper_core::Micros;

use crate::charge::{Charge, MergedCharges};
use crate::store::{Op, Store, StoreError};
use crate::verdict::Verdict;
use cluster::Cluster;
use connection::{CallFailure, Connection, ConnectionCounters};
use decide::Operation;
use keys::key_of;

pub use connection::ConnectionStats;
pub use url::RedisUrlError;

/// The default deadline of a decision.
const DEADLINE: Duration = Duration::from_millis(5);

/// How to connect to the servers, and how to use them.
///
/// # Permissions
///
/// A user needs these permissions and no others (with the prefix `ratekeeper`):
///
/// ```text
/// ACL SETUSER limiter on >PASSWORD resetkeys resetchannels -@all ~ratekeeper:*
///     +evalsha +eval +time +get +mget +set +del +ping
/// ```
///
/// For permits and for nodes that announce themselves also `+zadd +zcard +zrange +zrem
/// +zremrangebyscore +zscore +pexpire +pttl`; for [`Store::usage_ttl`] of a sliding log `+pttl`; in a cluster also `+cluster|slots +asking`; with Sentinel also `+role`; for a database other than 0
/// also `+select`.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    url: String,
    ca_pem: Option<Vec<u8>>,
    prefix: String,
    deadline: Duration,
    is_time_given: bool,
}

impl RedisConfig {
    /// The address: `redis://HOST:PORT/DB`, `rediss://…` for TLS,
    /// `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE`, `redis+cluster://HOST:PORT,HOST:PORT`; each
    /// with an optional `USER:PASSWORD@` before the hosts. `valkey` can be written instead of `redis`.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_string(),
            ca_pem: None,
            prefix: "ratekeeper".to_string(),
            deadline: DEADLINE,
            is_time_given: false,
        }
    }

    /// Trusts certificates signed by this authority, instead of those that the system trusts.
    #[must_use]
    pub fn with_ca_pem(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { ca_pem: Some(pem.into()), ..self }
    }

    /// The prefix of all keys; `ratekeeper` by default. Fleets with different prefixes share a server
    /// but no limits.
    #[must_use]
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_string(), ..self }
    }

    /// How long a decision may take; 5 ms by default.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Uses the time that callers pass instead of the server's: for simulations and tests only.
    /// Callers whose clocks differ would admit more than the limit.
    #[must_use]
    pub fn with_given_time(self) -> Self {
        Self { is_time_given: true, ..self }
    }

    /// Returns the store. It connects at the first call, in the background if that takes longer than
    /// the deadline.
    ///
    /// # Errors
    /// If the URL or the prefix is invalid.
    pub fn open(self) -> Result<RedisStore, RedisUrlError> {
        let prefix_error = self.prefix.contains(['{', '}']);
        if prefix_error {
            return Err(RedisUrlError::new(&self.url, "a prefix may not contain { or }"));
        }
        let counters = Arc::<ConnectionCounters>::default();
        let servers = match url::read(&self.url, self.ca_pem.as_deref())? {
            url::Deployment::Single(target) => {
                Servers::One(Connection::new(target, counters.clone()))
            }
            url::Deployment::Cluster(seeds, clients) => {
                Servers::Cluster(Cluster::new(seeds, clients, counters.clone()))
            }
        };
        Ok(RedisStore { servers, counters, config: Arc::new(self) })
    }
}

/// The servers that commands are sent to.
#[derive(Clone)]
enum Servers {
    One(Arc<Connection>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    /// Sends a command and waits for the reply, no longer than `deadline`.
    async fn call(
        &self,
        cmd: &Arc<Cmd>,
        deadline: Duration,
    ) -> Result<Result<Value, RedisError>, CallFailure> {
        match self {
            Self::One(connection) => connection.call(cmd, false, deadline).await,
            Self::Cluster(cluster) => cluster.call(cmd, deadline).await,
        }
    }

    /// How many shards there are.
    fn shards(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Cluster(cluster) => cluster.shards(),
        }
    }

    fn shard_of(&self, slot: impl FnOnce() -> usize) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Cluster(cluster) => cluster.shard_of(slot()),
        }
    }
}

/// State in Redis or Valkey, shared by a fleet. Clones share their connections.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Charge, Limit, Micros, Op, RedisConfig, Store};
///
/// let store = RedisConfig::new("redis://127.0.0.1:6379").open()?;
/// let limit = Limit::token_bucket("5/s burst 10")?;
/// // The server's clock is used; the time passed here is not.
/// let verdict = store.apply(Op::Check, &[Charge::new(&limit, "ann")], Micros::new(0)).await?;
/// assert_eq!(verdict.remaining(), 9);
/// # Ok(())
/// # }
/// ```
///
/// # In a cluster
///
/// All limits of one key are in one slot and are decided in one atomic step. Where one request is
/// charged to several keys, no script can reach all of them. Then all keys are peeked at, at the same
/// time; if all of them fit they are charged, at the same time; and if one is denied after all, the
/// others are refunded. A denial leaves no charge behind. What is weaker than on a single server:
/// another request may be denied because of a charge that is about to be refunded; if this process dies
/// in between, what it has charged stays charged until it expires; and a log that counts denied
/// requests does not see those that are denied at the peek. The limits are never exceeded.
#[derive(Clone)]
pub struct RedisStore {
    servers: Servers,
    counters: Arc<ConnectionCounters>,
    config: Arc<RedisConfig>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("url", &self.address()).finish()
    }
}

impl RedisStore {
    /// Returns the URL without the password.
    pub fn address(&self) -> String {
        url::without_password(&self.config.url)
    }

    /// Returns whether it is a cluster, in which calls for different keys may be executed in another
    /// order than they were made.
    pub fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// Returns what has happened to connections so far.
    pub fn connection_stats(&self) -> ConnectionStats {
        self.counters.stats()
    }

    /// Sends a `PING`.
    ///
    /// # Errors
    /// If there is no reply.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let mut cmd = Cmd::new();
        cmd.arg("PING");
        self.operation().command(cmd).await.map(drop)
    }

    /// The time argument of a script; empty for the server's own time.
    fn time(&self, now: Micros) -> Vec<u8> {
        match self.config.is_time_given {
            true => now.get().to_string().into_bytes(),
            false => Vec::new(),
        }
    }

    fn key(&self, charge: &Charge<'_>) -> Vec<u8> {
        key_of(&self.config.prefix, charge)
    }

    async fn apply_within(
        &self,
        operation: &Operation<'_>,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        let merged = MergedCharges::new(charges)?;
        let charges = merged.as_slice();
        let is_one_slot = charges.iter().all(|charge| charge.key == charges[0].key);
        let decided = match is_one_slot || !self.is_cluster() {
            true => operation.together(op, charges, now).await?,
            false => operation.across_slots(op, charges, now).await?,
        };
        Ok(decided.into_verdict(&merged))
    }

    /// Starts an operation, which has to end within the deadline.
    fn operation(&self) -> Operation<'_> {
        Operation::new(self, self.config.deadline)
    }
}

impl Store for RedisStore {
    async fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        self.apply_within(&self.operation(), op, charges, now).await
    }

    async fn reset(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        let operation = self.operation();
        let mut cmd = Cmd::new();
        cmd.arg("DEL").arg(operation.keys(&[*charge]));
        operation.command(cmd).await.map(drop)
    }

    async fn usage_ttl(&self, charge: &Charge<'_>, now: Micros) -> Result<Duration, StoreError> {
        self.operation().usage_ttl(charge, now).await
    }
}

/// The most that a message has of a reply, in characters.
const REPLY_MAX: usize = 200;

fn invalid_response(reply: &Value) -> StoreError {
    let mut text = format!("{reply:?}");
    if let Some((end, _)) = text.char_indices().nth(REPLY_MAX) {
        text.truncate(end);
        text.push('…');
    }
    StoreError::InvalidResponse(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_only_the_beginning_of_a_reply() {
        let long = invalid_response(&Value::SimpleString("é".repeat(10_000))).to_string();
        assert!(long.chars().count() < 300 && long.ends_with('…'), "{long}");
        let short = invalid_response(&Value::Int(7)).to_string();
        assert!(short.contains('7') && !short.contains('…'), "{short}");
    }
}
