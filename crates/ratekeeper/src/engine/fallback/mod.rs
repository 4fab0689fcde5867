//! A shared store with a decision for every request, also while the store is unavailable.
//!
//! Calls go to the store through a circuit breaker per shard, within a deadline. What the store does not
//! decide in time is decided here, by the failure mode of each charge: by this node's share of the limit
//! (local), admitted (open), or denied (closed). What is admitted here is charged to the store when it is
//! available again.

mod background;
mod backlog;
mod breaker;
#[cfg(feature = "policy")]
mod correction;
#[cfg(test)]
mod flaky_store;
mod local_share;
mod membership;
mod node_permits;
#[cfg(test)]
mod over_admission;
#[cfg(test)]
mod permit_bounds;
mod permit_keeper;
mod permits;
mod reservations;
mod status;

use std::sync::Arc;

use ratekeeper_core::{Cost, Decision, FailureMode, Micros};
use ratekeeper_stores::{
    ApplyFailure, Charge, ChargeKind, ChargesError, Op, OwnedCharge, SharedStore, Snapshot,
    StoreError, Verdict,
};

use super::applied::{Applied, Degraded, DegradedReason, Receipt};
use super::hold_table::HoldTable;
use crate::clock::{Clock, SystemClock};
use crate::histogram::{DurationCounts, Histogram};

use background::{Background, PROBE_INTERVAL_MAX};
use backlog::Backlog;
use breaker::Breakers;
use local_share::LocalShare;
use membership::Membership;
use node_permits::NodePermits;
use permits::LocalHold;
use reservations::LocalReservation;
use status::{Counters, Status, StoreObserver};

pub use permit_keeper::SharedPermit;
pub use permits::AcquireError;
pub(crate) use permits::{FleetLimit, TTL};
pub use ratekeeper_control::BreakerState;
pub use status::{FallbackStats, StoreState};

pub(crate) struct Fallback<S> {
    store: S,
    /// How long calls took, also those that failed.
    store_time: Histogram,
    clock: Box<dyn Clock>,
    breakers: Breakers,
    membership: Membership,
    local_share: LocalShare,
    backlog: Backlog,
    status: Status,
    counters: Counters,
    background: Background,
    /// Reservations that the store does not keep.
    reservations: HoldTable<LocalReservation>,
    /// The permits of this node.
    permits: Arc<NodePermits>,
    /// Permits that are held by ids which the store does not know.
    held_permits: HoldTable<LocalHold>,
}

impl<S: SharedStore + Send + Sync + 'static> Fallback<S> {
    pub(crate) fn new(store: S) -> Arc<Self> {
        Self::with_clock(store, SystemClock)
    }

    pub(super) fn with_clock(store: S, clock: impl Clock + 'static) -> Arc<Self> {
        Arc::new(Self {
            store,
            store_time: Histogram::default(),
            clock: Box::new(clock),
            breakers: Breakers::new(),
            membership: Membership::new(),
            local_share: LocalShare::new(),
            backlog: Backlog::default(),
            status: Status::default(),
            counters: Counters::default(),
            background: Background::default(),
            reservations: HoldTable::default(),
            permits: Arc::default(),
            held_permits: HoldTable::default(),
        })
    }

    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    /// Divides limits by this number of nodes instead of counting them.
    pub(crate) fn fix_nodes(&self, nodes: u32) {
        self.membership.fix(nodes);
    }

    #[cfg(feature = "client")]
    pub(crate) fn nodes(&self) -> u32 {
        self.membership.nodes()
    }

    pub(crate) fn on_change(&self, observer: StoreObserver) {
        self.status.on_change(observer);
    }

    pub(crate) fn state(&self) -> StoreState {
        self.status.state()
    }

    /// The state of the breaker that is furthest from closed.
    pub(crate) fn breaker_state(&self) -> BreakerState {
        self.breakers.worst()
    }

    pub(crate) fn store_time(&self) -> DurationCounts {
        self.store_time.counts()
    }

    pub(crate) fn stats(&self) -> FallbackStats {
        FallbackStats {
            breaker_opened: self.breakers.opened(),
            nodes: self.membership.nodes(),
            shards_down: self.breakers.down(self.store.shards()),
            backlog_keys: self.backlog.len(),
            backlog_charged: self.backlog.reported(),
            backlog_dropped: self.backlog.dropped(),
            ..self.counters.stats()
        }
    }

    /// Drops reservations and permits that have expired in this process.
    pub(crate) fn sweep(&self) {
        let now = self.clock.now();
        self.reservations.sweep(now);
        self.held_permits.sweep(now);
    }

    /// Whether calls go to the shard of this key. While its breaker is open, no request waits for it.
    pub(crate) fn is_called(&self, key: &[u8]) -> bool {
        self.breakers.of(self.store.shard_of(key)).state() != BreakerState::Open
    }

    /// Applies `op` in the store or, if that does not decide in time, here.
    pub(crate) async fn apply(
        self: &Arc<Self>,
        op: Op,
        charges: &[Charge<'_>],
    ) -> Result<Applied, ChargesError> {
        self.start();
        ChargesError::check(charges)?;
        let shards = charges.iter().map(|charge| self.store.shard_of(charge.key()));
        let Some(permits) = self.breakers.try_call(shards) else {
            let reason = DegradedReason::BreakerOpen(self.status.last_error());
            return Ok(self.decide_here(op, charges, reason));
        };
        match self.call(op, charges).await {
            Ok(verdict) => {
                permits.succeeded();
                self.counters.count_store_decision();
                self.note_available();
                self.charge_local_share(op, charges, &verdict);
                Ok(Applied::by_store(verdict))
            }
            Err(ApplyFailure { error: StoreError::Charges(error), .. }) => Err(error),
            Err(ApplyFailure { error, shard, late }) => {
                let error = Arc::new(error);
                self.counters.count_error(&error);
                if permits.failed(shard) {
                    self.note_unavailable(&error);
                }
                let applied = self.decide_here(op, charges, DegradedReason::Failed(error));
                if let Some(late) = late {
                    self.follow_late_reply(late, op, charges, &applied);
                }
                Ok(applied)
            }
        }
    }

    /// Calls the store, after it has been charged the backlog of these keys.
    async fn call(
        self: &Arc<Self>,
        op: Op,
        charges: &[Charge<'_>],
    ) -> Result<Verdict, ApplyFailure> {
        let began = self.clock.now();
        if self.backlog.len() > 0 {
            for charge in charges {
                let owed = self.backlog.take(charge, self.membership.nodes(), began);
                if let Some(owed) = owed {
                    self.report(&owed).await?;
                }
            }
        }
        let applied = self.store.try_apply(op, charges, began).await;
        self.store_time.record(self.clock.now().since(began), 1);
        applied
    }

    /// Charges to this node's share what the store admits through this node.
    fn charge_local_share(&self, op: Op, charges: &[Charge<'_>], verdict: &Verdict) {
        let is_charged = op == Op::Charge || (op == Op::Check && verdict.allowed());
        if !is_charged {
            return;
        }
        let (nodes, now) = (self.membership.nodes(), self.clock.now());
        for charge in charges.iter().filter(|charge| mode(charge) == FailureMode::Local) {
            self.local_share.charge_admitted(charge, nodes, now);
        }
    }

    /// Corrects a charge where it was made.
    pub(crate) async fn correct(
        self: &Arc<Self>,
        op: Op,
        charge: Charge<'_>,
        receipt: &Receipt,
    ) -> Result<Applied, StoreError> {
        self.correct_all(op, &[charge], receipt).await
    }

    /// Corrects charges where they were made. If that fails, nothing has changed here.
    async fn correct_all(
        self: &Arc<Self>,
        op: Op,
        charges: &[Charge<'_>],
        receipt: &Receipt,
    ) -> Result<Applied, StoreError> {
        let Some(degraded) = receipt.degraded() else {
            return self.store.apply(op, charges, receipt.at()).await.map(Applied::by_store);
        };
        if let Op::Refund { charged_at } = op {
            let OwedCharges { removed, reported } = self.remove_owed(charges, charged_at);
            if !reported.is_empty()
                && let Err(error) = self.store.apply(op, &reported, charged_at).await
            {
                let (nodes, now) = (self.membership.nodes(), self.clock.now());
                for charge in &removed {
                    self.backlog.add(charge, nodes, now);
                }
                return Err(error);
            }
        }
        Ok(self.correct_here(op, charges, degraded))
    }

    /// Removes charges that were made here from the backlog.
    fn remove_owed<'c>(&self, charges: &[Charge<'c>], charged_at: Micros) -> OwedCharges<'c> {
        let now = self.clock.now();
        let mut owed = OwedCharges::default();
        for charge in charges {
            let reported = self.backlog.remove(charge, charged_at, now);
            let removed = charge.amount().get() - reported.map_or(0, Cost::get);
            owed.removed.extend(Cost::new(removed).map(|removed| charge.cost(removed)));
            owed.reported.extend(reported.map(|reported| charge.cost(reported)));
        }
        owed
    }

    /// Corrects charges that were made here, apart from refunds of what was in the backlog.
    fn correct_here(&self, op: Op, charges: &[Charge<'_>], degraded: &Degraded) -> Applied {
        let charges: Vec<_> =
            charges.iter().map(|charge| charge.on_failure(FailureMode::Local)).collect();
        let applied = self.verdict_here(op, &charges, degraded.reason.clone());
        if op == Op::Charge {
            let (nodes, now) = (self.membership.nodes(), self.clock.now());
            self.add_to_backlog(op, &charges, &applied, nodes, now);
        }
        applied
    }

    /// Deletes the state of a key, in the store and here. If the store fails, nothing changes.
    pub(crate) async fn reset(self: &Arc<Self>, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.start();
        self.store.reset(charge).await?;
        self.local_share.reset(charge, self.membership.nodes());
        self.backlog.clear(charge);
        Ok(())
    }

    /// Returns the time until a key is as new in the store.
    #[cfg(feature = "policy")]
    pub(crate) async fn usage_ttl(
        self: &Arc<Self>,
        charge: &Charge<'_>,
    ) -> Result<std::time::Duration, StoreError> {
        self.start();
        self.store.usage_ttl(charge, self.clock.now()).await
    }

    /// Decides without the store, and adds what is admitted to the backlog.
    fn decide_here(&self, op: Op, charges: &[Charge<'_>], reason: DegradedReason) -> Applied {
        let applied = self.verdict_here(op, charges, reason);
        self.add_to_backlog(op, charges, &applied, self.membership.nodes(), applied.at());
        applied
    }

    fn verdict_here(&self, op: Op, charges: &[Charge<'_>], reason: DegradedReason) -> Applied {
        let (nodes, now) = (self.membership.nodes(), self.clock.now());
        let is_denied = op == Op::Check && any(charges, FailureMode::Closed);
        // If one charge is denied, none is charged.
        let op = if is_denied { Op::Peek } else { op };
        let local: Vec<_> =
            charges.iter().filter(|charge| mode(charge) == FailureMode::Local).copied().collect();
        let by_share = self.local_share.apply(op, &local, nodes, now);
        let verdict = Verdict::build(charges, now, |i, charge| match mode(charge) {
            FailureMode::Local => {
                let before = charges[..i].iter().filter(|one| mode(one) == FailureMode::Local);
                let decision = by_share.get(before.count()).copied();
                decision.unwrap_or_else(|| unlimited(charge, now))
            }
            FailureMode::Open => unlimited(charge, now),
            FailureMode::Closed => Decision::deny_for(charge.limit().quota(), PROBE_INTERVAL_MAX),
        });
        self.counters
            .count_degraded(any(charges, FailureMode::Closed), any(charges, FailureMode::Local));
        Applied::without_store(verdict, Degraded::new(reason, nodes))
    }

    /// Notes what the store has to be charged, or refunded, for a decision that was made here.
    fn add_to_backlog(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        verdict: &Verdict,
        nodes: u32,
        now: Micros,
    ) {
        for charge in charges.iter().filter(|charge| !charge.is_look()) {
            match op {
                Op::Check if !verdict.allowed() => {}
                Op::Check | Op::Charge if mode(charge) != FailureMode::Closed => {
                    // What is charged without a check may be a debt.
                    let kind = ChargeKind::Overdraft;
                    let charge = if op == Op::Charge { charge.kind(kind) } else { *charge };
                    if self.backlog.add(&charge, nodes, now) {
                        self.background.wake();
                    }
                }
                Op::Refund { charged_at } => {
                    self.backlog.remove(charge, charged_at, now);
                }
                Op::Check | Op::Charge | Op::Peek => {}
            }
        }
    }

    /// Charges the store what a key owes. If that fails, the key owes it again.
    async fn report(self: &Arc<Self>, owed: &OwnedCharge) -> Result<(), ApplyFailure> {
        let charge = owed.as_charge();
        match self.store.try_apply(Op::Charge, &[charge], self.clock.now()).await {
            Ok(_) => {
                self.backlog.count_reported(charge.amount());
                Ok(())
            }
            Err(failure) => {
                let now = self.clock.now();
                self.backlog.add(&charge.kind(ChargeKind::Overdraft), self.membership.nodes(), now);
                if let Some(late) = failure.late {
                    self.follow_late_report(late, owed, now);
                }
                // The late reply is not to the charges of the request that waits.
                Err(ApplyFailure { late: None, ..failure })
            }
        }
    }

    fn note_available(&self) {
        if !self.status.is_up() {
            self.refresh_state(None);
        }
    }

    fn note_unavailable(&self, error: &Arc<StoreError>) {
        self.refresh_state(Some(error));
        self.background.wake();
    }

    /// Derives the state of the store from the states of the breakers.
    fn refresh_state(&self, error: Option<&Arc<StoreError>>) {
        let shards = self.store.shards();
        let down = self.breakers.down(shards);
        self.status.change(|state| {
            let known = match state {
                StoreState::Down(error) | StoreState::Partial { error, .. } => Some(error),
                StoreState::Unknown | StoreState::Up => None,
            };
            match (down, error.or(known)) {
                (0, _) => StoreState::Up,
                (down, Some(error)) if down >= shards => StoreState::Down(error.clone()),
                (down, Some(error)) => {
                    StoreState::Partial { shards_down: down, error: error.clone() }
                }
                (_, None) => state.clone(),
            }
        });
    }
}

/// Charges that were made here: those that were still in the backlog, and those that the store has been
/// charged meanwhile.
#[derive(Default)]
struct OwedCharges<'c> {
    removed: Vec<Charge<'c>>,
    reported: Vec<Charge<'c>>,
}

fn mode(charge: &Charge<'_>) -> FailureMode {
    charge.failure_mode().unwrap_or_default()
}

fn any(charges: &[Charge<'_>], wanted: FailureMode) -> bool {
    charges.iter().any(|charge| mode(charge) == wanted)
}

/// The decision on a key without state.
fn unlimited(charge: &Charge<'_>, now: Micros) -> Decision {
    Snapshot::fresh(charge.limit()).apply(Op::Peek, charge, now)
}
