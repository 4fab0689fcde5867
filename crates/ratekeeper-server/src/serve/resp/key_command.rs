//! A command about all usages of some keys.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use ratekeeper::{Charge, Engine, Limit, StoreError};

use super::codec::Args;

/// What `TTL` and `PTTL` return for a key without usage.
const NO_USAGE: i64 = -2;

/// A command about all usages of some keys.
pub(super) struct KeyCommand<'a> {
    pub(super) action: KeyAction,
    /// The name of the command and the keys.
    pub(super) args: Args<'a>,
    /// A limit for each usage that a key can have.
    pub(super) limits: Vec<Arc<Limit>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    /// Deletes the usage, and counts the keys that had any.
    Delete,
    /// Counts the keys that have usage.
    Count,
    /// Returns the seconds until a key is as new.
    Seconds,
    /// Returns the milliseconds until a key is as new.
    Millis,
}

/// A [`KeyCommand`] that borrows nothing.
pub(super) struct OwnedKeyCommand {
    action: KeyAction,
    keys: Vec<Box<[u8]>>,
    limits: Vec<Arc<Limit>>,
}

impl From<KeyCommand<'_>> for OwnedKeyCommand {
    fn from(command: KeyCommand<'_>) -> Self {
        let KeyCommand { action, args, limits } = command;
        let mut keys: Vec<Box<[u8]>> = args.from(1).map(Box::from).collect();
        if action == KeyAction::Delete {
            // A key that is deleted twice had usage once.
            keys.sort_unstable();
            keys.dedup();
        }
        Self { action, keys, limits }
    }
}

impl OwnedKeyCommand {
    /// Returns the number of keys.
    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Executes the command, and returns the integer of its reply. All calls to the store are made when this
    /// is first polled, so that commands take effect in their order.
    pub(super) async fn run(self, engine: &Engine) -> Result<i64, StoreError> {
        let Self { action, keys, limits } = &self;
        let ttls = join_all(keys.iter().map(async |key| match action {
            KeyAction::Delete => {
                let (ttl, deleted) =
                    join(ttl(engine, key, limits), delete(engine, key, limits)).await;
                deleted.and(ttl)
            }
            _ => ttl(engine, key, limits).await,
        }));
        let ttls = ttls.await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let longest = ttls.iter().max().copied().unwrap_or_default();
        Ok(match action {
            KeyAction::Delete | KeyAction::Count => {
                ttls.iter().filter(|ttl| !ttl.is_zero()).count() as i64
            }
            KeyAction::Seconds | KeyAction::Millis if longest.is_zero() => NO_USAGE,
            KeyAction::Seconds => rounded_up(longest, 1_000_000),
            KeyAction::Millis => rounded_up(longest, 1_000),
        })
    }
}

/// Returns a time in units of this many microseconds. A TTL includes the microsecond in which it ends; without
/// that, it is the same number as in the reply of a check.
fn rounded_up(ttl: Duration, unit_us: u128) -> i64 {
    ttl.as_micros().saturating_sub(1).div_ceil(unit_us).max(1) as i64
}

/// Returns the time until no usage of the key is left.
async fn ttl(engine: &Engine, key: &[u8], limits: &[Arc<Limit>]) -> Result<Duration, StoreError> {
    let ttls = limits.iter().map(|limit| engine.usage_ttl(&Charge::new(limit, key)));
    let ttls = join_all(ttls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(ttls.into_iter().max().unwrap_or_default())
}

async fn delete(engine: &Engine, key: &[u8], limits: &[Arc<Limit>]) -> Result<(), StoreError> {
    let deleted = limits.iter().map(|limit| engine.reset(&Charge::new(limit, key)));
    join_all(deleted).await.into_iter().collect()
}
