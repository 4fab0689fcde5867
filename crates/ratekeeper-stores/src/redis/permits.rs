//! The permits of a fleet: per key a sorted set of ids, by the time until which they are held.

use std::time::Duration;

use redis::{Cmd, Value};

use super::keys::{permit_key, permits_key};
use super::reservations::set;
use super::{RedisStore, invalid_response, script};
use crate::permit::{PermitName, PermitReply, PermitStore};
use crate::store::StoreError;

/// The version of how a location is encoded.
const LOCATION_VERSION: u8 = 1;

/// What the script does.
#[derive(Clone, Copy)]
enum PermitOp {
    Acquire { max: u64, lives: Duration },
    Renew { lives: Duration },
    Release,
}

impl PermitStore for RedisStore {
    async fn acquire_permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
    ) -> Result<PermitReply, StoreError> {
        self.permit(permit, PermitOp::Acquire { max, lives }).await
    }

    async fn renew_permit(
        &self,
        permit: &PermitName<'_>,
        lives: Duration,
    ) -> Result<PermitReply, StoreError> {
        self.permit(permit, PermitOp::Renew { lives }).await
    }

    async fn release_permit(&self, permit: &PermitName<'_>) -> Result<bool, StoreError> {
        Ok(self.permit(permit, PermitOp::Release).await?.is_held)
    }

    async fn put_permit_location(
        &self,
        permit: &PermitName<'_>,
        valid: Duration,
    ) -> Result<(), StoreError> {
        let mut location = vec![LOCATION_VERSION];
        location.extend((permit.name.len() as u32).to_be_bytes());
        location.extend_from_slice(permit.name.as_bytes());
        location.extend_from_slice(permit.key);
        let cmd = set(permit_key(&self.config.prefix, permit.id), &location, valid);
        self.operation().command(cmd).await.map(drop)
    }

    async fn release_permit_of(&self, id: u128) -> Result<bool, StoreError> {
        let location_key = permit_key(&self.config.prefix, id);
        let mut get = Cmd::new();
        get.arg("GET").arg(&location_key);
        let location = match self.operation().command(get).await? {
            Value::Nil => return Ok(false),
            Value::BulkString(location) => location,
            reply => return Err(invalid_response(&reply)),
        };
        let (name, key) = parse_location(&location).ok_or(StoreError::OtherVersion)?;
        let was_held = self.release_permit(&PermitName { name, key, id }).await?;
        // Nothing depends on it any more; otherwise it expires.
        let mut del = Cmd::new();
        del.arg("DEL").arg(location_key);
        let _ = self.operation().command(del).await;
        Ok(was_held)
    }
}

impl RedisStore {
    async fn permit(
        &self,
        permit: &PermitName<'_>,
        op: PermitOp,
    ) -> Result<PermitReply, StoreError> {
        let key = permits_key(&self.config.prefix, permit.name, permit.key);
        let (max, lives) = match op {
            PermitOp::Acquire { max, lives } => (max.to_string(), lives),
            PermitOp::Renew { lives } => (String::new(), lives),
            PermitOp::Release => (String::new(), Duration::ZERO),
        };
        let lives_ms = lives.as_millis().to_string();
        let args = [permit.id.to_be_bytes().to_vec(), max.into_bytes(), lives_ms.into_bytes()];
        let reply = self.operation().script(&script::ACQUIRE, &[key], &args).await?;
        let Value::Array(numbers) = &reply else { return Err(invalid_response(&reply)) };
        let [Value::Int(is_held), Value::Int(held), Value::Int(free_ms)] = numbers[..] else {
            return Err(invalid_response(&reply));
        };
        let free_in = Duration::from_millis(free_ms.unsigned_abs());
        Ok(PermitReply::new(is_held == 1, held.unsigned_abs(), free_in))
    }
}

/// Returns the name and the key.
fn parse_location(location: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = location.strip_prefix(&[LOCATION_VERSION])?.split_first_chunk()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (name, key) = rest.split_at_checked(len)?;
    Some((std::str::from_utf8(name).ok()?, key))
}
