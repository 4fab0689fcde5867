//! Permits that a fleet shares: how many requests are in flight on all nodes together.

use std::future::Future;
use std::time::Duration;

use crate::store::{SharedStore, StoreError};

/// One of the permits of one key.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_stores::*; }
/// use ratekeeper::PermitName;
///
/// let permit = PermitName { name: "exports", key: b"tenant-7", id: 0x9e37_79b9_7f4a_7c15 };
/// ```
#[derive(Clone, Debug)]
pub struct PermitName<'a> {
    /// The name of the limit.
    pub name: &'a str,
    /// The key that the permits are of.
    pub key: &'a [u8],
    /// Which one: a random number, so that it is unique and cannot be guessed.
    pub id: u128,
}

/// The result of an operation on a permit. See [`PermitStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitReply {
    /// Of an acquisition: whether it is held now. Of a renewal or a release: whether it was held.
    pub is_held: bool,
    /// How many are held, this one included.
    pub held: u64,
    /// If none was free: when the next one expires, unless its holder renews it.
    pub free_in: Duration,
}

impl PermitReply {
    /// Returns a reply.
    #[must_use]
    pub fn new(is_held: bool, held: u64, free_in: Duration) -> Self {
        Self { is_held, held, free_in }
    }
}

/// A shared store that keeps permits. Each is held until it expires; its holder renews it, so that the
/// permits of a process that has died become free.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_stores::*; }
/// use std::time::Duration;
/// use ratekeeper::{PermitName, PermitStore, StoreError};
///
/// async fn may_export(store: &impl PermitStore, id: u128) -> Result<bool, StoreError> {
///     let permit = PermitName { name: "exports", key: b"tenant-7", id };
///     Ok(store.acquire_permit(&permit, 5, Duration::from_secs(10)).await?.is_held)
/// }
/// ```
pub trait PermitStore: SharedStore {
    /// Acquires one of `max` permits, which expires after this time unless it is renewed. A permit that
    /// is held already is renewed.
    ///
    /// # Errors
    /// If the store fails. It may have granted the permit all the same.
    fn acquire_permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
    ) -> impl Future<Output = Result<PermitReply, StoreError>> + Send;

    /// Extends a permit to this time from now on. If the store did not know it, because it had expired or
    /// was granted without the store, it is held from now on, even if that makes more than the limit: it is
    /// in flight, and so counts.
    ///
    /// # Errors
    /// If the store fails.
    fn renew_permit(
        &self,
        permit: &PermitName<'_>,
        lives: Duration,
    ) -> impl Future<Output = Result<PermitReply, StoreError>> + Send;

    /// Releases a permit. Returns whether it was held: not if it was released before or has expired.
    ///
    /// # Errors
    /// If the store fails.
    fn release_permit(
        &self,
        permit: &PermitName<'_>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Keeps for this long where a permit is, so that it can be released by its id alone
    /// ([`PermitStore::release_permit_of`]).
    ///
    /// # Errors
    /// If the store fails.
    fn put_permit_location(
        &self,
        permit: &PermitName<'_>,
        valid: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Releases the permit of this id. Returns whether it was held, and its location known.
    ///
    /// # Errors
    /// If the store fails. This can be called again then.
    fn release_permit_of(&self, id: u128) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
