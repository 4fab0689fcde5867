//! Reservations in a shared store. Those that the store could not keep are held in this process.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Cost, Micros};
use ratekeeper_stores::{Charge, Op, ReservationRecord, ReservationStore, StoreError};
use tokio::sync::Semaphore;

use super::Fallback;
use crate::engine::applied::{Applied, Degraded};
use crate::engine::hold_id::HoldId;
use crate::engine::reservations::{ReservationError, ReserveError, Reserved, Settled, as_decided};

/// How often a refund in the store is retried, and the first back-off. Each further one is twice as long, up to
/// a bound: six minutes in all.
const REFUND_TRIES: u32 = 40;
const REFUND_PAUSE: Duration = Duration::from_millis(100);
const REFUND_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long the store keeps what makes a refund happen once.
const REFUND_VALID: Duration = Duration::from_secs(3_600);
/// How many refunds are retried at a time.
static REFUNDING: Semaphore = Semaphore::const_new(1_000);

/// A reservation that is held in this process.
pub(super) struct LocalReservation {
    record: ReservationRecord,
    made: Made,
}

/// Where its charge was made.
enum Made {
    /// Here, because the store was unavailable. It is corrected here.
    Degraded(Degraded),
    /// In the store, which then failed to keep the record. It is kept there before it is settled, because
    /// only that makes sure that a correction is not made twice.
    Unrecorded {
        valid: Duration,
    },
    Recorded,
}

impl<S: ReservationStore + Send + Sync + 'static> Fallback<S> {
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        estimate: Cost,
        valid: Duration,
    ) -> Result<Reserved, ReserveError> {
        let applied = self.apply(Op::Check, charges).await?;
        if !applied.allowed() {
            return Ok(Reserved { id: None, applied });
        }
        let (id, receipt) = (HoldId::random(), applied.receipt());
        let charges = &as_decided(charges, applied.decisions())[..];
        let record = ReservationRecord::new(charges, estimate, receipt.at());
        let made = match receipt.degraded() {
            Some(degraded) => Made::Degraded(degraded.clone()),
            None => match self.store.put_reservation(id.number(), &record, valid).await {
                Ok(()) => return Ok(Reserved { id: Some(id), applied }),
                Err(error) => {
                    self.counters.count_error(&error);
                    Made::Unrecorded { valid }
                }
            },
        };
        let (id, now) = (id.degraded(), self.clock.now());
        let held = self.reservations.insert(id, LocalReservation { record, made }, valid, now);
        if let Err(error) = held {
            // The caller could never settle it.
            let refund = Op::Refund { charged_at: receipt.at() };
            let _ = self.correct_all(refund, charges, &receipt).await;
            return Err(error.into());
        }
        Ok(Reserved { id: Some(id), applied })
    }

    pub(crate) async fn settle(
        self: &Arc<Self>,
        id: HoldId,
        actual: u64,
    ) -> Result<Settled, ReservationError> {
        self.start();
        if id.is_degraded() {
            // Not cancelled with the request: what is corrected here must not be corrected again.
            let this = Arc::clone(self);
            let settling = tokio::spawn(async move { this.settle_local(id, actual).await });
            return settling.await.unwrap_or(Err(ReservationError::NotHeld));
        }
        self.settle_in_store(id, actual).await.map_err(ReservationError::Store)?
    }

    async fn settle_in_store(
        &self,
        id: HoldId,
        actual: u64,
    ) -> Result<Result<Settled, ReservationError>, StoreError> {
        let settled = self.store.settle_reservation(id.number(), actual, self.clock.now()).await?;
        Ok(match settled {
            Some(settled) => {
                Ok(Settled { record: settled.record, applied: Applied::by_store(settled.verdict) })
            }
            None => Err(ReservationError::NotHeld),
        })
    }

    async fn settle_local(
        self: &Arc<Self>,
        id: HoldId,
        actual: u64,
    ) -> Result<Settled, ReservationError> {
        let Some((deadline, mut held)) = self.reservations.remove(id, self.clock.now()) else {
            return Err(ReservationError::HeldElsewhere);
        };
        match self.correct_local(id, &mut held, actual).await {
            Ok(settled) => settled,
            Err(error) => {
                self.reservations.reinsert(id, held, deadline);
                Err(ReservationError::Store(error))
            }
        }
    }

    async fn correct_local(
        self: &Arc<Self>,
        id: HoldId,
        held: &mut LocalReservation,
        actual: u64,
    ) -> Result<Result<Settled, ReservationError>, StoreError> {
        match &held.made {
            Made::Degraded(degraded) => {
                let (op, charges) = held.record.correction(actual);
                if let Op::Refund { charged_at } = op {
                    for reported in self.remove_owed(&charges, charged_at).reported {
                        self.refund_once(reported, charged_at).await;
                    }
                }
                let applied = self.correct_here(op, &charges, degraded);
                Ok(Ok(Settled { record: held.record.clone(), applied }))
            }
            Made::Unrecorded { .. } | Made::Recorded => {
                self.settle_recorded(id, held, actual).await
            }
        }
    }

    /// Settles a reservation that was charged in the store, after the store keeps it.
    async fn settle_recorded(
        &self,
        id: HoldId,
        held: &mut LocalReservation,
        actual: u64,
    ) -> Result<Result<Settled, ReservationError>, StoreError> {
        if let Made::Unrecorded { valid } = held.made {
            self.store.put_reservation(id.number(), &held.record, valid).await?;
            held.made = Made::Recorded;
        }
        self.settle_in_store(id, actual).await
    }

    /// Refunds what the store was charged after an outage, in the background if it fails now. Also this
    /// is a reservation in the store, so that no refund is made twice.
    async fn refund_once(self: &Arc<Self>, charge: Charge<'_>, charged_at: Micros) {
        let record = ReservationRecord::new(&[charge], charge.amount(), charged_at);
        let made = Made::Unrecorded { valid: REFUND_VALID };
        let (id, mut refund) = (HoldId::random(), LocalReservation { record, made });
        if self.settle_recorded(id, &mut refund, 0).await.is_ok() {
            return;
        }
        // Beyond the bound, it stays charged.
        let Ok(slot) = REFUNDING.try_acquire() else { return };
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            for attempt in 0..REFUND_TRIES {
                tokio::time::sleep(REFUND_PAUSE_MAX.min(REFUND_PAUSE * 2_u32.pow(attempt.min(10))))
                    .await;
                let Some(this) = this.upgrade() else { break };
                if this.settle_recorded(id, &mut refund, 0).await.is_ok() {
                    break;
                }
            }
            drop(slot);
        });
    }
}
