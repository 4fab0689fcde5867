//! Permits that a fleet shares. Each is held until it expires; its holder renews it, so that the permits
//! of a process that has died become free.

use std::time::Duration;

use redis::Value;

use super::{RedisStore, invalid_response, script};
use crate::store::StoreError;

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
