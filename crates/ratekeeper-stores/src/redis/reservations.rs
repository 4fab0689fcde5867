//! Reservations: a record under the id, and guards that make a correction happen once.
//!
//! A guard is a key that the script of a correction deletes in the same atomic step, and without which it
//! does nothing. Where one script can reach all keys, the record is the guard. In a cluster the record is
//! in the slot of its id, so there is a guard for each of the charged keys, in the slot of that key.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use ratekeeper_core::Micros;
use redis::{Cmd, Value};

use super::decide::{Decided, Group, GroupDecided, Operation, by_key, gather};
use super::keys::{guard_key, reservation_key};
use super::{RedisStore, invalid_response};
use crate::charge::{Charge, MergedCharges};
use crate::reservation::{ReservationRecord, ReservationStore, SettledReservation};
use crate::store::{Op, StoreError};
use crate::verdict::Verdict;

impl ReservationStore for RedisStore {
    async fn put_reservation(
        &self,
        id: u128,
        record: &ReservationRecord,
        valid: Duration,
    ) -> Result<(), StoreError> {
        let operation = self.operation();
        let record_key = reservation_key(&self.config.prefix, id);
        let mut sets = vec![set(record_key, &record.encode(), valid)];
        if self.is_cluster() {
            let charges: Vec<_> = record.charges().iter().map(|one| one.as_charge()).collect();
            let guards = by_key(&charges).into_iter().map(|group| self.guard_of(&group, id));
            sets.extend(guards.map(|guard| set(guard, b"1", valid)));
        }
        try_join_all(sets.into_iter().map(|cmd| operation.command(cmd))).await.map(drop)
    }

    async fn settle_reservation(
        &self,
        id: u128,
        actual: u64,
        now: Micros,
    ) -> Result<Option<SettledReservation>, StoreError> {
        let operation = self.operation();
        let mut get = Cmd::new();
        get.arg("GET").arg(reservation_key(&self.config.prefix, id));
        let bytes = match operation.command(get).await? {
            Value::Nil => return Ok(None),
            Value::BulkString(bytes) => bytes,
            reply => return Err(invalid_response(&reply)),
        };
        let record = ReservationRecord::decode(&bytes).ok_or(StoreError::OtherVersion)?;
        let settled = self.settle_record(&operation, id, &record, actual, now).await?;
        Ok(settled.map(|verdict| SettledReservation { record, verdict }))
    }
}

impl RedisStore {
    async fn settle_record(
        &self,
        operation: &Operation<'_>,
        id: u128,
        record: &ReservationRecord,
        actual: u64,
        now: Micros,
    ) -> Result<Option<Verdict>, StoreError> {
        let (op, charges) = record.correction(actual);
        let merged = MergedCharges::new(&charges)?;
        let guard = reservation_key(&self.config.prefix, id);
        let decided = match self.is_cluster() {
            false => operation.guarded(op, merged.as_slice(), now, &guard).await?,
            true => self.settle_each_key(operation, op, merged.as_slice(), now, id).await?,
        };
        Ok(decided.map(|decided| decided.into_verdict(&merged)))
    }

    /// Corrects the charges to each key once. A key that an earlier call has corrected is only read.
    async fn settle_each_key(
        &self,
        operation: &Operation<'_>,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
        id: u128,
    ) -> Result<Option<Decided>, StoreError> {
        let groups = by_key(charges);
        let corrections = groups.iter().map(async |group| {
            let guard = self.guard_of(group, id);
            operation.step().guarded(op, &group.charges, now, &guard).await
        });
        let corrected: Vec<_> =
            join_all(corrections).await.into_iter().collect::<Result<_, _>>()?;
        if corrected.iter().all(Option::is_none) {
            return Ok(None);
        }
        let mut done = Vec::with_capacity(groups.len());
        for (group, decided) in groups.into_iter().zip(corrected) {
            let decided = match decided {
                Some(decided) => decided,
                None => operation.step().together(Op::Peek, &group.charges, now).await?,
            };
            done.push(GroupDecided { group, decided });
        }
        // Without its guards it has no effect, so it does not matter if this fails.
        let mut del = Cmd::new();
        del.arg("DEL").arg(reservation_key(&self.config.prefix, id));
        let _ = operation.command(del).await;
        Ok(Some(gather(charges, &done, now)))
    }

    fn guard_of(&self, group: &Group<'_>, id: u128) -> Vec<u8> {
        guard_key(&self.config.prefix, group.charges[0].key, id)
    }
}

/// Sets a key that expires.
pub(super) fn set(key: Vec<u8>, value: &[u8], valid: Duration) -> Cmd {
    let mut cmd = Cmd::new();
    let valid_ms = u64::try_from(valid.as_millis()).unwrap_or(u64::MAX).max(1);
    cmd.arg("SET").arg(key).arg(value).arg("PX").arg(valid_ms);
    cmd
}
