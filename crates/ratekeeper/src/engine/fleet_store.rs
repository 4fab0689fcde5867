//! The store of a policy: Redis, with or without leases of hot keys.

use std::time::Duration;

use ratekeeper_core::Micros;
use ratekeeper_stores::{
    ApplyFailure, Charge, LeaseStats, LeasedStore, Op, PermitName, PermitReply, PermitStore,
    RedisStore, ReservationRecord, ReservationStore, SettledReservation, SharedStore, Store,
    StoreError, Verdict,
};

pub(crate) enum FleetStore {
    Direct(RedisStore),
    Leased(LeasedStore<RedisStore>),
}

impl FleetStore {
    pub(super) fn lease_stats(&self, now: Micros) -> Option<LeaseStats> {
        match self {
            Self::Direct(_) => None,
            Self::Leased(store) => Some(store.stats(now)),
        }
    }

    pub(super) async fn return_leases(&self, now: Micros) {
        if let Self::Leased(store) = self {
            store.return_all(now).await;
        }
    }
}

/// Calls the same method of the store that it is.
macro_rules! delegate {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            FleetStore::Direct($store) => $call,
            FleetStore::Leased($store) => $call,
        }
    };
}

impl Store for FleetStore {
    async fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        delegate!(self, store => store.apply(op, charges, now).await)
    }

    async fn reset(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        delegate!(self, store => store.reset(charge).await)
    }

    async fn usage_ttl(&self, charge: &Charge<'_>, now: Micros) -> Result<Duration, StoreError> {
        delegate!(self, store => store.usage_ttl(charge, now).await)
    }
}

impl SharedStore for FleetStore {
    async fn announce(&self, node: &str, lives: Duration) -> Result<u32, StoreError> {
        delegate!(self, store => store.announce(node, lives).await)
    }

    async fn try_apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, ApplyFailure> {
        delegate!(self, store => store.try_apply(op, charges, now).await)
    }

    async fn try_apply_later(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, ApplyFailure> {
        delegate!(self, store => store.try_apply_later(op, charges, now).await)
    }

    fn shards(&self) -> usize {
        delegate!(self, store => store.shards())
    }

    fn shard_of(&self, key: &[u8]) -> usize {
        delegate!(self, store => store.shard_of(key))
    }

    async fn probe(&self, shard: usize) -> Result<(), StoreError> {
        delegate!(self, store => store.probe(shard).await)
    }
}

impl PermitStore for FleetStore {
    async fn acquire_permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
    ) -> Result<PermitReply, StoreError> {
        delegate!(self, store => store.acquire_permit(permit, max, lives).await)
    }

    async fn renew_permit(
        &self,
        permit: &PermitName<'_>,
        lives: Duration,
    ) -> Result<PermitReply, StoreError> {
        delegate!(self, store => store.renew_permit(permit, lives).await)
    }

    async fn release_permit(&self, permit: &PermitName<'_>) -> Result<bool, StoreError> {
        delegate!(self, store => store.release_permit(permit).await)
    }

    async fn put_permit_location(
        &self,
        permit: &PermitName<'_>,
        valid: Duration,
    ) -> Result<(), StoreError> {
        delegate!(self, store => store.put_permit_location(permit, valid).await)
    }

    async fn release_permit_of(&self, id: u128) -> Result<bool, StoreError> {
        delegate!(self, store => store.release_permit_of(id).await)
    }
}

impl ReservationStore for FleetStore {
    async fn put_reservation(
        &self,
        id: u128,
        record: &ReservationRecord,
        valid: Duration,
    ) -> Result<(), StoreError> {
        delegate!(self, store => store.put_reservation(id, record, valid).await)
    }

    async fn settle_reservation(
        &self,
        id: u128,
        actual: u64,
        now: Micros,
    ) -> Result<Option<SettledReservation>, StoreError> {
        delegate!(self, store => store.settle_reservation(id, actual, now).await)
    }
}
