//! The one call from charges to a verdict.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

#[cfg(feature = "policy")]
use ratekeeper_core::Decision;
use ratekeeper_core::{FailureMode, Micros};
use ratekeeper_stores::{
    Charge, ChargesError, DecisionInputs, MemoryStats, MemoryStore, Op, ReservationRecord,
    StoreError,
};

use super::applied::{Applied, Receipt};
use super::hold_table::HoldTable;
use super::maybe_ready::MaybeReady;
use super::permits::LocalPermits;
use super::service_permits::{EngineClock, ServicePermits};
use crate::clock::Clock;
use crate::concurrency::Permit;
use crate::histogram::{DurationCounts, SampledHistogram};

#[cfg(feature = "redis")]
use {
    super::corrections::Corrections,
    super::fallback::{BreakerState, Fallback, FallbackStats, StoreState},
    super::fleet_store::FleetStore,
    ratekeeper_stores::{LeaseStats, OwnedCharge},
    std::sync::Arc,
};

/// Applies charges to the store: in memory at once, in a shared store with a fallback for when that is
/// unavailable.
///
/// A [`PolicyLimiter`](crate::PolicyLimiter) has one. Use it for limits that are in no policy but share its
/// store and clock.
///
/// ```
/// use ratekeeper::{Charge, Limit, Op, Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// let limit = Limit::token_bucket("5/s burst 10")?.named("exports");
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let applied = limiter.engine().apply(Op::Check, &[Charge::new(&limit, "ann")]).await.unwrap();
/// assert_eq!(applied.remaining(), 9);
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    pub(super) store: EngineStore,
    clock: EngineClock,
    /// For charges that say nothing else. Changes with the policy.
    on_failure: AtomicU8,
    pub(super) permits: LocalPermits,
    /// Permits that are learned or waited for.
    pub(super) service_permits: ServicePermits,
    /// Permits that callers hold in this process.
    pub(super) held_permits: HoldTable<Permit>,
    /// Reservations of the memory store. A shared store keeps its own.
    pub(super) reservations: HoldTable<ReservationRecord>,
    /// How long calls of the memory store took. A shared store has a histogram of its own.
    memory_time: SampledHistogram,
    #[cfg(feature = "redis")]
    corrections: Corrections,
}

/// Where the state is.
pub(crate) enum EngineStore {
    Memory(Box<MemoryStore>),
    #[cfg(feature = "redis")]
    Shared(Arc<Fallback<FleetStore>>),
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("is_memory", &self.is_memory()).finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(store: EngineStore, clock: Box<dyn Clock>) -> Self {
        let clock = EngineClock::new(clock);
        Self {
            store,
            service_permits: ServicePermits::new(clock.clone()),
            clock,
            on_failure: AtomicU8::default(),
            permits: LocalPermits::default(),
            held_permits: HoldTable::default(),
            reservations: HoldTable::default(),
            memory_time: SampledHistogram::default(),
            #[cfg(feature = "redis")]
            corrections: Corrections::default(),
        }
    }

    /// Applies `op` to all charges or to none of them, in one atomic step. If the store does not decide in
    /// time, each charge is decided by its [`FailureMode`].
    #[inline]
    pub fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
    ) -> MaybeReady<Result<Applied, ChargesError>> {
        self.apply_at(op, charges, self.now())
    }

    /// Does what [`Engine::apply`] does, at a time that was read from this engine's clock. For charges that
    /// arrived together, so that the clock is read once. A shared store uses its own clock.
    #[inline]
    pub fn apply_at(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> MaybeReady<Result<Applied, ChargesError>> {
        match &self.store {
            EngineStore::Memory(store) => {
                MaybeReady::ready(self.apply_in_memory(store, op, charges, now))
            }
            #[cfg(feature = "redis")]
            EngineStore::Shared(fallback) => {
                if let Err(error) = ChargesError::check(charges) {
                    return MaybeReady::ready(Err(error));
                }
                let default = self.failure_mode();
                let charges: Vec<_> = charges.iter().map(|one| owned(one, default)).collect();
                let fallback = Arc::clone(fallback);
                MaybeReady::pending(async move {
                    let charges: Vec<_> = charges.iter().map(OwnedCharge::as_charge).collect();
                    fallback.apply(op, &charges).await
                })
            }
        }
    }

    /// Does what [`Engine::apply_at`] does, if the state is in memory. A verdict is large, and moved less than
    /// from a future.
    #[inline]
    pub(crate) fn apply_now(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Option<Result<Applied, ChargesError>> {
        match &self.store {
            EngineStore::Memory(store) => Some(self.apply_in_memory(store, op, charges, now)),
            #[cfg(feature = "redis")]
            EngineStore::Shared(_) => None,
        }
    }

    /// Does what [`Engine::apply_now`] does for one charge, of which a decision says all.
    #[cfg(feature = "policy")]
    #[inline]
    pub(crate) fn apply_one_now(
        &self,
        op: Op,
        charge: &Charge<'_>,
        now: Micros,
    ) -> Option<Decision> {
        match &self.store {
            EngineStore::Memory(store) => Some(self.timed(|| store.apply_one(op, charge, now))),
            #[cfg(feature = "redis")]
            EngineStore::Shared(_) => None,
        }
    }

    #[inline]
    fn apply_in_memory(
        &self,
        store: &MemoryStore,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Applied, ChargesError> {
        self.timed(|| store.apply_now(op, charges, now)).map(Applied::by_store)
    }

    /// Measures a few of the calls of the store.
    #[inline]
    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = SampledHistogram::is_due().then(|| self.clock.now());
        let result = call();
        if let Some(began) = began {
            self.memory_time.record(self.clock.now().since(began));
        }
        result
    }

    /// Returns what a denial was computed from. The state is missing if the store did not decide, or if another
    /// request has changed it since.
    pub fn denial_inputs(&self, charges: &[Charge<'_>], denied: &Applied) -> DecisionInputs {
        match &self.store {
            EngineStore::Memory(store) => store.denial_inputs(charges, denied),
            #[cfg(feature = "redis")]
            EngineStore::Shared(_) => {
                DecisionInputs::of_denial(charges, denied, |_| denied.state_before().cloned())
            }
        }
    }

    /// Corrects a charge where it was made: in the store, or in this process if the store was unavailable
    /// then.
    ///
    /// # Errors
    ///
    /// If the charge was made in the store, and that is unavailable now. The charge then stays as it is.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "there is one store"))]
    pub async fn correct(
        &self,
        op: Op,
        charge: &Charge<'_>,
        receipt: &Receipt,
    ) -> Result<Applied, StoreError> {
        match &self.store {
            EngineStore::Memory(store) => {
                Ok(Applied::by_store(store.apply_now(op, &[*charge], self.now())?))
            }
            #[cfg(feature = "redis")]
            EngineStore::Shared(fallback) => fallback.correct(op, *charge, receipt).await,
        }
    }

    /// Corrects a charge as [`Engine::correct`] does, in the background if the store is shared. A charge
    /// that cannot be corrected stays as it is.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "there is one store"))]
    pub(crate) fn correct_in_background(&self, op: Op, charge: &Charge<'_>, receipt: &Receipt) {
        match &self.store {
            EngineStore::Memory(store) => {
                let _ = store.apply_now(op, &[*charge], self.now());
            }
            #[cfg(feature = "redis")]
            EngineStore::Shared(fallback) => {
                let (fallback, charge) = (Arc::clone(fallback), OwnedCharge::from(charge));
                let receipt = receipt.clone();
                // A response may be dropped when its runtime is gone, and the charge then stays as it is.
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    let under_way = self.corrections.begin();
                    runtime.spawn(async move {
                        let _under_way = under_way;
                        fallback.correct_later(op, charge.as_charge(), &receipt).await;
                    });
                }
            }
        }
    }

    /// Deletes the state of the charge's key. Fails if the store is unavailable.
    pub fn reset(&self, charge: &Charge<'_>) -> MaybeReady<Result<(), StoreError>> {
        match &self.store {
            EngineStore::Memory(store) => {
                store.reset(charge);
                MaybeReady::ready(Ok(()))
            }
            #[cfg(feature = "redis")]
            EngineStore::Shared(fallback) => {
                let (fallback, charge) = (Arc::clone(fallback), OwnedCharge::from(charge));
                MaybeReady::pending(async move { fallback.reset(&charge.as_charge()).await })
            }
        }
    }

    /// Drops reservations and permits that have expired in this process. Without it they are dropped when
    /// others are made.
    pub fn sweep(&self) {
        self.held_permits.sweep(self.now());
        self.reservations.sweep(self.now());
        #[cfg(feature = "redis")]
        if let EngineStore::Shared(fallback) = &self.store {
            fallback.sweep();
        }
    }

    /// Returns the time after which the charge's key is as new ([`Store::usage_ttl`](ratekeeper_stores::Store::usage_ttl)); zero if it has no
    /// usage. Fails if the store is unavailable.
    pub fn usage_ttl(&self, charge: &Charge<'_>) -> MaybeReady<Result<Duration, StoreError>> {
        match &self.store {
            EngineStore::Memory(store) => {
                MaybeReady::ready(Ok(store.usage_ttl(charge, self.now())))
            }
            #[cfg(feature = "redis")]
            EngineStore::Shared(fallback) => {
                let (fallback, charge) = (Arc::clone(fallback), OwnedCharge::from(charge));
                MaybeReady::pending(async move { fallback.usage_ttl(&charge.as_charge()).await })
            }
        }
    }

    /// Returns the present time by the engine's clock.
    #[inline]
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Returns how many processes share the store, as far as this one knows.
    #[cfg(feature = "client")]
    pub(crate) fn nodes(&self) -> u32 {
        match &self.store {
            EngineStore::Memory(_) => 1,
            #[cfg(feature = "redis")]
            EngineStore::Shared(fallback) => fallback.nodes().max(1),
        }
    }

    /// Returns whether the state is in this process, so that every decision is ready at once.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        matches!(self.store, EngineStore::Memory(_))
    }

    /// Sets what happens when the store is unavailable to charges that say nothing else.
    pub(crate) fn set_failure_mode(&self, mode: FailureMode) {
        let index = FAILURE_MODES.iter().position(|known| *known == mode).unwrap_or_default();
        self.on_failure.store(index as u8, Ordering::Relaxed);
    }

    pub(super) fn failure_mode(&self) -> FailureMode {
        FAILURE_MODES[usize::from(self.on_failure.load(Ordering::Relaxed))]
    }

    /// Returns how long calls of the store took. In memory one call in 64 is timed and counted as 64.
    pub fn store_time(&self) -> DurationCounts {
        match &self.store {
            EngineStore::Memory(_) => self.memory_time.counts(),
            #[cfg(feature = "redis")]
            EngineStore::Shared(fallback) => fallback.store_time(),
        }
    }

    /// Returns sizes and counters of the store, if it is in memory.
    pub fn memory_stats(&self) -> Option<MemoryStats> {
        match &self.store {
            EngineStore::Memory(store) => Some(store.stats(self.now())),
            #[cfg(feature = "redis")]
            EngineStore::Shared(_) => None,
        }
    }
}

const FAILURE_MODES: [FailureMode; 3] =
    [FailureMode::Local, FailureMode::Open, FailureMode::Closed];

#[cfg(feature = "redis")]
fn owned(charge: &Charge<'_>, default: FailureMode) -> OwnedCharge {
    let mode = charge.failure_mode().unwrap_or(default);
    OwnedCharge::from(&charge.on_failure(mode))
}

/// What only a shared store has: it can be unavailable, and be charged ahead.
#[cfg(feature = "redis")]
impl Engine {
    pub(super) fn fallback(&self) -> Option<&Arc<Fallback<FleetStore>>> {
        match &self.store {
            EngineStore::Memory(_) => None,
            EngineStore::Shared(fallback) => Some(fallback),
        }
    }

    /// Returns whether a shared store is available.
    pub fn store_state(&self) -> Option<StoreState> {
        self.fallback().map(|fallback| fallback.state())
    }

    /// Returns the state of a shared store's circuit breaker; in a cluster, of the one that is furthest
    /// from closed.
    pub fn breaker_state(&self) -> Option<BreakerState> {
        self.fallback().map(|fallback| fallback.breaker_state())
    }

    /// Returns what was decided with and without a shared store so far.
    pub fn fallback_stats(&self) -> Option<FallbackStats> {
        self.fallback().map(|fallback| fallback.stats())
    }

    /// Returns what leases of hot keys have done so far, if the policy enables them.
    pub fn lease_stats(&self) -> Option<LeaseStats> {
        self.fallback()?.store().lease_stats(self.now())
    }

    /// Calls `observer` whenever a shared store becomes unavailable or available. Only the first observer is
    /// kept.
    pub fn on_store_change(&self, observer: impl Fn(&StoreState) + Send + Sync + 'static) {
        if let Some(fallback) = self.fallback() {
            fallback.on_change(Box::new(observer));
        }
    }

    /// Announces this node to a shared store and watches the store, which the first request does otherwise.
    /// Must be called in a tokio runtime that lasts as long as the engine.
    pub fn start(&self) {
        if let Some(fallback) = self.fallback() {
            fallback.start();
        }
    }

    /// Waits for the corrections of charges that are under way in a shared store, and refunds what this node has
    /// charged ahead there and not used. For a node that is about to exit.
    pub async fn return_leases(&self) {
        self.corrections.done().await;
        if let Some(fallback) = self.fallback() {
            fallback.store().return_leases(self.now()).await;
        }
    }
}
