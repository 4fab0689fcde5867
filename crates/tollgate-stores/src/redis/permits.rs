//! Permits that a fleet shares: each is held until a deadline that its holder moves on, so that those
//! of a holder that has died come back.

use std::time::Duration;

use redis::Value;

use super::{RedisStore, nonsense, script};
use crate::store::StoreError;

/// What became of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitAnswer {
    /// Is it held now?
    pub is_held: bool,
    /// How many are held, this one included.
    pub held: u64,
    /// If it is not: when the next one becomes free, should its holder not renew it.
    pub free_in: Duration,
}

/// One of the permits of one key.
#[derive(Clone, Debug)]
pub struct PermitName<'a> {
    /// The name of the limit.
    pub name: &'a str,
    /// Whose permits they are.
    pub key: &'a [u8],
    /// Which one: something that nobody else has.
    pub id: u64,
}

impl RedisStore {
    /// Asks for one of `max` permits, to be held for this long unless it is renewed.
    pub async fn acquire_permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
    ) -> Result<PermitAnswer, StoreError> {
        self.permit(permit, max, lives, false).await
    }

    /// Holds it for this long from now on. If it had run out and all are taken, it is lost.
    pub async fn renew_permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
    ) -> Result<PermitAnswer, StoreError> {
        self.permit(permit, max, lives, true).await
    }

    /// Gives it back.
    pub async fn release_permit(&self, permit: &PermitName<'_>) -> Result<(), StoreError> {
        self.permit(permit, 0, Duration::ZERO, true).await.map(drop)
    }

    async fn permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
        is_held: bool,
    ) -> Result<PermitAnswer, StoreError> {
        let key = super::key::permits_key(&self.config.prefix, permit.name, permit.key);
        let args = [
            permit.id.to_be_bytes().to_vec(),
            max.to_string().into_bytes(),
            lives.as_millis().to_string().into_bytes(),
            u8::from(is_held).to_string().into_bytes(),
        ];
        let reply = self.turn().script(&script::ACQUIRE, &[key], &args).await?;
        let Value::Array(numbers) = &reply else { return Err(nonsense(&reply)) };
        let [Value::Int(is_held), Value::Int(held), Value::Int(free_ms)] = numbers[..] else {
            return Err(nonsense(&reply));
        };
        Ok(PermitAnswer {
            is_held: is_held == 1,
            held: held.unsigned_abs(),
            free_in: Duration::from_millis(free_ms.unsigned_abs()),
        })
    }
}
