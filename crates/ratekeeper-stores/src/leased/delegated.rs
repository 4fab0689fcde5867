//! What a leased store leaves to the store behind it.

use std::future::Future;
use std::time::Duration;

use ratekeeper_core::Micros;

use super::LeasedStore;
use crate::permit::{PermitName, PermitReply, PermitStore};
use crate::reservation::{ReservationRecord, ReservationStore, SettledReservation};
use crate::store::StoreError;

/// A correction goes to the store, which has counted what was charged from a lease too.
impl<S: ReservationStore + Send + Sync + 'static> ReservationStore for LeasedStore<S> {
    fn put_reservation(
        &self,
        id: u128,
        record: &ReservationRecord,
        valid: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.inner.store.put_reservation(id, record, valid)
    }

    fn settle_reservation(
        &self,
        id: u128,
        actual: u64,
        now: Micros,
    ) -> impl Future<Output = Result<Option<SettledReservation>, StoreError>> + Send {
        self.inner.store.settle_reservation(id, actual, now)
    }
}

/// Permits are never leased.
impl<S: PermitStore + Send + Sync + 'static> PermitStore for LeasedStore<S> {
    fn acquire_permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
    ) -> impl Future<Output = Result<PermitReply, StoreError>> + Send {
        self.inner.store.acquire_permit(permit, max, lives)
    }

    fn renew_permit(
        &self,
        permit: &PermitName<'_>,
        lives: Duration,
    ) -> impl Future<Output = Result<PermitReply, StoreError>> + Send {
        self.inner.store.renew_permit(permit, lives)
    }

    fn release_permit(
        &self,
        permit: &PermitName<'_>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        self.inner.store.release_permit(permit)
    }

    fn put_permit_location(
        &self,
        permit: &PermitName<'_>,
        valid: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.inner.store.put_permit_location(permit, valid)
    }

    fn release_permit_of(&self, id: u128) -> impl Future<Output = Result<bool, StoreError>> + Send {
        self.inner.store.release_permit_of(id)
    }
}
