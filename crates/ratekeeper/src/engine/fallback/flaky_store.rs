//! A store in memory that fails as it is asked to, in virtual time.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_core::{Limit, Micros};
use ratekeeper_stores::{
    ApplyFailure, Charge, MemoryStore, Op, OwnedCharge, PermitName, PermitReply, PermitStore,
    SharedStore, Store, StoreError, Verdict,
};
use tokio::sync::oneshot;

use crate::clock::{Clock, ManualClock};

/// How the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failing {
    /// Calls never arrive.
    Gone,
    /// Calls wait, and are carried out when it goes on.
    Stalled,
    /// Calls are carried out, but the replies come too late.
    Slow,
}

pub(super) fn failing() -> impl Strategy<Value = Failing> {
    prop_oneof![Just(Failing::Gone), Just(Failing::Stalled), Just(Failing::Slow)]
}

/// How long the store is up and down in turns, in milliseconds.
pub(super) fn phases() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![1..20_u64, 50..300_u64], 2..14)
}

#[derive(Clone)]
pub(super) struct FlakyStore(Arc<FlakyState>);

struct FlakyState {
    store: MemoryStore,
    /// The permits that are held, and until when.
    permits: Mutex<HashMap<u128, Micros>>,
    clock: ManualClock,
    failing: Failing,
    is_up: AtomicBool,
    /// Calls that have not been carried out yet.
    stalled: Mutex<Vec<StalledCall>>,
}

type StalledCall = Box<dyn FnOnce(&FlakyState) + Send>;

impl FlakyStore {
    pub(super) fn new(failing: Failing, clock: ManualClock) -> Self {
        Self(Arc::new(FlakyState {
            store: MemoryStore::new(),
            permits: Mutex::default(),
            clock,
            failing,
            is_up: AtomicBool::new(true),
            stalled: Mutex::default(),
        }))
    }

    pub(super) fn set_up(&self, is_up: bool) {
        self.0.is_up.store(is_up, Ordering::Relaxed);
        let stalled = std::mem::take(&mut *self.0.stalled.lock().unwrap());
        stalled.into_iter().for_each(|call| call(&self.0));
    }

    pub(super) fn apply_now(&self, op: Op, charge: &Charge<'_>) -> Verdict {
        self.0.apply_now(op, charge)
    }

    pub(super) fn used(&self, limit: &Limit) -> u64 {
        limit.quota() - self.apply_now(Op::Peek, &Charge::new(limit, "k")).remaining()
    }

    /// Returns the ids of the permits that are held.
    pub(super) fn held(&self) -> Vec<u128> {
        let mut held: Vec<_> = self.0.live_permits().keys().copied().collect();
        held.sort_unstable();
        held
    }

    /// Carries out a call, or fails as it is to fail.
    fn call<T>(
        &self,
        call: impl FnOnce(&FlakyState) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.0.is_up.load(Ordering::Relaxed) {
            return Ok(call(&self.0));
        }
        match self.0.failing {
            Failing::Gone => {}
            Failing::Stalled => {
                self.0.stalled.lock().unwrap().push(Box::new(|state| drop(call(state))));
            }
            Failing::Slow => drop(call(&self.0)),
        }
        Err(StoreError::Deadline(Duration::from_millis(5)))
    }

    fn check_up(&self) -> Result<(), StoreError> {
        match self.0.is_up.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(StoreError::Deadline(Duration::from_millis(5))),
        }
    }
}

impl FlakyState {
    fn apply_now(&self, op: Op, charge: &Charge<'_>) -> Verdict {
        self.store.apply_now(op, &[*charge], self.clock.now()).unwrap()
    }

    fn live_permits(&self) -> std::sync::MutexGuard<'_, HashMap<u128, Micros>> {
        let (mut permits, now) = (self.permits.lock().unwrap(), self.clock.now());
        permits.retain(|_, until| *until > now);
        permits
    }

    /// Acquires one of `max` permits, or renews one.
    fn permit(&self, id: u128, max: Option<u64>, lives: Duration) -> PermitReply {
        let mut permits = self.live_permits();
        let (was_held, held) = (permits.contains_key(&id), permits.len() as u64);
        if !was_held && max.is_some_and(|max| held >= max) {
            return PermitReply::new(false, held, lives);
        }
        permits.insert(id, self.clock.now().after(lives));
        PermitReply::new(was_held || max.is_some(), permits.len() as u64, Duration::ZERO)
    }
}

impl Store for FlakyStore {
    async fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        self.try_apply(op, charges, now).await.map_err(|failure| failure.error)
    }

    async fn reset(&self, _: &Charge<'_>) -> Result<(), StoreError> {
        unreachable!("keys are not reset here")
    }

    async fn usage_ttl(&self, _: &Charge<'_>, _: Micros) -> Result<Duration, StoreError> {
        unreachable!("usage is not read here")
    }
}

impl SharedStore for FlakyStore {
    async fn announce(&self, _: &str, _: Duration) -> Result<u32, StoreError> {
        self.check_up().map(|()| 1)
    }

    async fn try_apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        _: Micros,
    ) -> Result<Verdict, ApplyFailure> {
        let charge = OwnedCharge::from(&charges[0]);
        let (reply, receiver) = oneshot::channel();
        let applied = self.call(move |state| {
            let verdict = state.apply_now(op, &charge.as_charge());
            let is_charged = op == Op::Charge || verdict.allowed();
            let _ = reply.send(is_charged.then_some(state.clock.now()));
            verdict
        });
        applied.map_err(|error| {
            let late = Box::pin(async move { receiver.await.ok().flatten() });
            ApplyFailure { error, shard: 0, late: Some(late) }
        })
    }

    async fn probe(&self, _: usize) -> Result<(), StoreError> {
        self.check_up()
    }
}

/// All permits are of one limit and key.
impl PermitStore for FlakyStore {
    async fn acquire_permit(
        &self,
        permit: &PermitName<'_>,
        max: u64,
        lives: Duration,
    ) -> Result<PermitReply, StoreError> {
        let id = permit.id;
        self.call(move |state| state.permit(id, Some(max), lives))
    }

    async fn renew_permit(
        &self,
        permit: &PermitName<'_>,
        lives: Duration,
    ) -> Result<PermitReply, StoreError> {
        let id = permit.id;
        self.call(move |state| state.permit(id, None, lives))
    }

    async fn release_permit(&self, permit: &PermitName<'_>) -> Result<bool, StoreError> {
        self.release_permit_of(permit.id).await
    }

    async fn put_permit_location(&self, _: &PermitName<'_>, _: Duration) -> Result<(), StoreError> {
        self.check_up()
    }

    fn release_permit_of(&self, id: u128) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(self.call(move |state| state.live_permits().remove(&id).is_some()))
    }
}
