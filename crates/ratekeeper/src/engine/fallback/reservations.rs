//! Reservations in a shared store. Those that the store could not keep are held in this process.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::Cost;
use ratekeeper_stores::{Charge, Op, ReservationRecord, ReservationStore, StoreError};

use super::Fallback;
use crate::engine::applied::{Applied, Receipt};
use crate::engine::hold_id::HoldId;
use crate::engine::reservations::{ReservationError, ReserveError, Reserved, Settled};

/// A reservation that is held in this process.
pub(super) struct LocalReservation {
    record: ReservationRecord,
    made: Made,
}

/// Where its charge was made.
enum Made {
    /// Here, because the store was unavailable. It is corrected here.
    Degraded(Receipt),
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
        let record = ReservationRecord::new(charges, estimate, receipt.at());
        let made = match receipt.is_degraded() {
            true => Made::Degraded(receipt.clone()),
            false => match self.store.put_reservation(id.number(), &record, valid).await {
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
            Made::Degraded(receipt) => {
                let (op, charges) = held.record.correction(actual);
                let applied = self.correct_all(op, &charges, receipt).await?;
                return Ok(Ok(Settled { record: held.record.clone(), applied }));
            }
            Made::Unrecorded { valid } => {
                self.store.put_reservation(id.number(), &held.record, *valid).await?;
                held.made = Made::Recorded;
            }
            Made::Recorded => {}
        }
        self.settle_in_store(id, actual).await
    }

    /// Drops reservations that have expired.
    #[cfg(feature = "policy")]
    pub(crate) fn sweep(&self) {
        self.reservations.sweep(self.clock.now());
    }
}
