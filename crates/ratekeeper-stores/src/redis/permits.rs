//! Permits that a fleet shares: each is held until a deadline. A holder that is alive moves it on, so that
//! the permits of one that has died come back; or it lets the permit run to its deadline.

use std::time::Duration;

use redis::Value;

use super::{RedisStore, invalid_response, script};
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
    /// Which one: random, so that nobody else has it or can guess it.
    pub id: u128,
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

    /// Releases it, and returns whether it was held: not if it was released before or has run out.
    pub async fn release_permit(&self, permit: &PermitName<'_>) -> Result<bool, StoreError> {
        Ok(self.permit(permit, 0, Duration::ZERO, true).await?.is_held)
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
        let Value::Array(numbers) = &reply else { return Err(invalid_response(&reply)) };
        let [Value::Int(is_held), Value::Int(held), Value::Int(free_ms)] = numbers[..] else {
            return Err(invalid_response(&reply));
        };
        Ok(PermitAnswer {
            is_held: is_held == 1,
            held: held.unsigned_abs(),
            free_in: Duration::from_millis(free_ms.unsigned_abs()),
        })
    }
}
