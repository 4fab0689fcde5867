//! What a fleet needs beside decisions: its membership, and the health of shards.

use std::time::Duration;

use ratekeeper_core::Micros;
use redis::{Cmd, Value};

use super::decide::Operation;
use super::slots::slot_of_caller;
use super::{RedisStore, invalid_response, script};
use crate::charge::Charge;
use crate::store::{ApplyFailure, Op, SharedStore, StoreError};
use crate::verdict::Verdict;

/// The time-to-live of a probe's key.
const PROBE_MS: u64 = 1_000;
/// How long an operation may take that no request waits for.
const LATER_DEADLINE: Duration = Duration::from_secs(2);
/// How many keys are tried to find one of a shard. They suffice unless a shard has hardly any slots.
const TAGS_MAX: u32 = 100_000;

impl RedisStore {
    async fn try_operation(
        &self,
        operation: Operation<'_>,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, ApplyFailure> {
        let applied = self.apply_within(&operation, op, charges, now).await;
        applied.map_err(|error| {
            let is_one_step = charges.iter().all(|charge| charge.key == charges[0].key);
            let is_charge = matches!(op, Op::Check | Op::Charge);
            let late = if is_one_step && is_charge { operation.take_late() } else { None };
            ApplyFailure { error, shard: operation.shard(), late }
        })
    }
}

impl SharedStore for RedisStore {
    async fn announce(&self, node: &str, lives: Duration) -> Result<u32, StoreError> {
        let key = format!("{}:1:nodes", self.config.prefix).into_bytes();
        let args = [node.as_bytes().to_vec(), lives.as_millis().to_string().into_bytes()];
        let reply = self.operation().script(&script::ANNOUNCE, &[key], &args).await?;
        match reply {
            Value::Int(nodes) => Ok(u32::try_from(nodes).unwrap_or(u32::MAX)),
            reply => Err(invalid_response(&reply)),
        }
    }

    async fn try_apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, ApplyFailure> {
        self.try_operation(self.operation(), op, charges, now).await
    }

    async fn try_apply_later(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, ApplyFailure> {
        let operation = Operation::new(self, LATER_DEADLINE.max(self.config.deadline));
        self.try_operation(operation, op, charges, now).await
    }

    fn shards(&self) -> usize {
        self.servers.shards()
    }

    fn shard_of(&self, key: &[u8]) -> usize {
        self.servers.shard_of(|| slot_of_caller(key))
    }

    async fn probe(&self, shard: usize) -> Result<(), StoreError> {
        let tag = (0..TAGS_MAX).find(|tag| self.shard_of(tag.to_string().as_bytes()) == shard);
        let key = format!("{}:1:probe{{={}}}", self.config.prefix, tag.unwrap_or_default());
        let mut cmd = Cmd::new();
        cmd.arg("SET").arg(key).arg("").arg("PX").arg(PROBE_MS);
        self.operation().command(cmd).await.map(drop)
    }
}
