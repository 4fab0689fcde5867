//! Reservations: what they have charged, and stores that keep them so that any process can settle them.

use std::future::Future;
use std::time::Duration;

use ratekeeper_core::{Cost, Micros};

use crate::charge::{Charge, OwnedCharge};
use crate::store::{Op, SharedStore, StoreError};
use crate::verdict::Verdict;

/// What a reservation has charged: the same estimate under each of its limits.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Charge, Cost, Limit, Micros, Op, ReservationRecord};
///
/// let limit = Limit::token_bucket("10000/minute")?.named("tokens");
/// let charges = [Charge::new(&limit, "ann").cost(Cost::of(2_000))];
/// let record = ReservationRecord::new(&charges, Cost::of(2_000), Micros::new(17));
/// let (op, charges) = record.correction(700);
/// assert_eq!(op, Op::Refund { charged_at: Micros::new(17) });
/// assert_eq!(charges[0].amount(), Cost::of(1_300));
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReservationRecord {
    pub(crate) charges: Vec<OwnedCharge>,
    pub(crate) estimate: Cost,
    pub(crate) charged_at: Micros,
}

impl ReservationRecord {
    /// Returns the record of charges that were made at `charged_at`, by the clock of the store.
    #[must_use]
    pub fn new(charges: &[Charge<'_>], estimate: Cost, charged_at: Micros) -> Self {
        Self { charges: charges.iter().map(OwnedCharge::from).collect(), estimate, charged_at }
    }

    /// Returns the charges.
    #[must_use]
    pub fn charges(&self) -> &[OwnedCharge] {
        &self.charges
    }

    /// Returns when they were made.
    #[must_use]
    pub fn charged_at(&self) -> Micros {
        self.charged_at
    }

    /// Returns what corrects the estimate to the actual cost. If that is the same, a peek.
    #[must_use]
    pub fn correction(&self, actual: u64) -> (Op, Vec<Charge<'_>>) {
        let correction = Op::correction(self.estimate, actual, self.charged_at);
        let (op, cost) = correction.unwrap_or((Op::Peek, Cost::ONE));
        (op, self.charges.iter().map(|charge| charge.as_charge().cost(cost)).collect())
    }
}

/// A reservation that was settled, and what remains. See [`ReservationStore::settle_reservation`].
#[derive(Clone, Debug)]
pub struct SettledReservation {
    /// What it had charged.
    pub record: ReservationRecord,
    /// The decisions after the correction, one for each charge.
    pub verdict: Verdict,
}

/// A shared store that keeps reservations under ids. Every process that shares the store can settle
/// them, and each is settled once.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Micros, ReservationStore, StoreError};
///
/// async fn refund_all(store: &impl ReservationStore, id: u128, now: Micros) -> Result<bool, StoreError> {
///     Ok(store.settle_reservation(id, 0, now).await?.is_some())
/// }
/// ```
pub trait ReservationStore: SharedStore {
    /// Keeps the record of charges that were made, for this long. `id` is a random number, which
    /// cannot be guessed.
    fn put_reservation(
        &self,
        id: u128,
        record: &ReservationRecord,
        valid: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Corrects the charges of a reservation to the actual cost, and removes it. Returns `None` if
    /// there is none: it was settled before, or it has expired.
    ///
    /// If this fails, it can be called again: a correction that was made is not made again. A shared
    /// store uses its own clock instead of `now`.
    fn settle_reservation(
        &self,
        id: u128,
        actual: u64,
        now: Micros,
    ) -> impl Future<Output = Result<Option<SettledReservation>, StoreError>> + Send;
}
