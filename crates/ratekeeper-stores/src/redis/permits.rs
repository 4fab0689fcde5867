//! Permits that a fleet shares. Each is held until it expires; its holder renews it, so that the permits
//! of a process that has died become free.

use std::time::Duration;

use redis::{Cmd, Value};

use super::keys::permit_key;
use super::reservations::set;
use super::{RedisStore, invalid_response, script};
use crate::store::StoreError;

/// The version of how a location is encoded.
const LOCATION_VERSION: u8 = 1;

/// The result of an operation on a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitReply {
    /// Whether it is held now.
    pub is_held: bool,
    /// How many are held, this one included.
    pub held: u64,
    /// If it is not held: when the next one expires, unless its holder renews it.
    pub free_in: Duration,
}

/// One of the permits of one key.
#[derive(Clone, Debug)]
pub struct PermitName<'a> {
    /// The name of the limit.
    pub name: &'a str,
    /// The key that the permits are of.
    pub key: &'a [u8],
    /// Which one: a random number, so that it is unique and cannot be guessed.
    pub id: u128,
}

impl RedisStore {
    /// Acquires one of `max` permits, which expires after this time unless it is renewed.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn acquire_permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
    ) -> Result<PermitReply, StoreError> {
        self.permit(permit, max, lives, false).await
    }

    /// Extends a permit to this time from now on. It is lost if it had expired and none is free.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn renew_permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
    ) -> Result<PermitReply, StoreError> {
        self.permit(permit, max, lives, true).await
    }

    /// Releases a permit. Returns whether it was held: not if it was released before or has expired.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn release_permit(&self, permit: &PermitName<'_>) -> Result<bool, StoreError> {
        Ok(self.permit(permit, 0, Duration::ZERO, true).await?.is_held)
    }

    /// Keeps for this long where a permit is, so that it can be released by its id alone
    /// ([`RedisStore::release_permit_of`]).
    ///
    /// # Errors
    /// If the store fails.
    pub async fn put_permit_location(
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

    /// Releases the permit of this id. Returns whether it was held, and its location known.
    ///
    /// # Errors
    /// If the store fails. This can be called again then.
    pub async fn release_permit_of(&self, id: u128) -> Result<bool, StoreError> {
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

    async fn permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
        is_held: bool,
    ) -> Result<PermitReply, StoreError> {
        let key = super::keys::permits_key(&self.config.prefix, permit.name, permit.key);
        let args = [
            permit.id.to_be_bytes().to_vec(),
            max.to_string().into_bytes(),
            lives.as_millis().to_string().into_bytes(),
            u8::from(is_held).to_string().into_bytes(),
        ];
        let reply = self.operation().script(&script::ACQUIRE, &[key], &args).await?;
        let Value::Array(numbers) = &reply else { return Err(invalid_response(&reply)) };
        let [Value::Int(is_held), Value::Int(held), Value::Int(free_ms)] = numbers[..] else {
            return Err(invalid_response(&reply));
        };
        Ok(PermitReply {
            is_held: is_held == 1,
            held: held.unsigned_abs(),
            free_in: Duration::from_millis(free_ms.unsigned_abs()),
        })
    }
}

/// Returns the name and the key.
fn parse_location(location: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = location.strip_prefix(&[LOCATION_VERSION])?.split_first_chunk()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (name, key) = rest.split_at_checked(len)?;
    Some((std::str::from_utf8(name).ok()?, key))
}
