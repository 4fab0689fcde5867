//! Reservations: an estimate is charged, and corrected to the actual cost once, by an id.

use ratekeeper_core::{Cost, Decision, Limit, MaxDebt};
use ratekeeper_stores::{Charge, ChargesError, OwnedCharge, ReservationRecord, StoreError};

use super::applied::Applied;
use super::hold_id::HoldId;
use super::hold_table::TooManyHeld;

#[cfg(feature = "policy")]
use {
    super::apply::{Engine, EngineStore},
    ratekeeper_stores::{MemoryStore, Op},
    std::time::Duration,
};

/// The result of a reservation: the verdict, and the id if it was admitted.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Charge, Cost, Limit, Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// let limit = Limit::token_bucket("10000/minute")?.named("tokens");
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (engine, charges) = (limiter.engine(), [Charge::new(&limit, "ann")]);
/// let reserved = engine.reserve(&charges, Cost::of(2_000), Duration::from_secs(60)).await.unwrap();
/// // … the response took only 700 …
/// let settled = engine.settle(reserved.id().expect("within the limit"), 700).await.unwrap();
/// assert_eq!(settled.applied().remaining(), 9_300);
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request may proceed only if it has an id"]
pub struct Reserved {
    pub(super) id: Option<HoldId>,
    pub(super) applied: Applied,
}

impl Reserved {
    /// Returns the id to settle it by; `None` if it was denied.
    #[must_use]
    pub fn id(&self) -> Option<HoldId> {
        self.id
    }

    /// Returns the verdict.
    pub fn applied(&self) -> &Applied {
        &self.applied
    }
}

/// A reservation that was settled, and what remains.
///
/// ```
/// use ratekeeper::Settled;
///
/// fn log(settled: &Settled) {
///     let (limit, applied) = (settled.limit(), settled.applied());
///     println!("{}: {} of {} left", limit.name(), applied.remaining(), limit.quota());
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Settled {
    pub(super) record: ReservationRecord,
    pub(super) applied: Applied,
}

impl Settled {
    /// Returns the verdict after the correction.
    pub fn applied(&self) -> &Applied {
        &self.applied
    }

    /// Returns the charges that were corrected, at their estimate.
    pub fn charges(&self) -> impl ExactSizeIterator<Item = Charge<'_>> {
        self.record.charges().iter().map(OwnedCharge::as_charge)
    }

    /// Returns the binding limit.
    pub fn limit(&self) -> &Limit {
        self.record.charges()[self.applied.binding()].as_charge().limit()
    }
}

/// Returns the charges at the estimate. It is charged in full, without a maximum debt: what is cut off could
/// not be settled.
pub(crate) fn in_full<'c>(charges: &[Charge<'c>], estimate: Cost) -> Vec<Charge<'c>> {
    charges.iter().map(|charge| charge.cost(estimate).max_debt(MaxDebt::NONE)).collect()
}

/// Returns the charges with what their refund has to know.
pub(crate) fn as_decided<'c>(charges: &[Charge<'c>], decisions: &[Decision]) -> Vec<Charge<'c>> {
    charges.iter().zip(decisions).map(|(charge, decision)| charge.decided(decision)).collect()
}

/// Why nothing was reserved, other than a denial.
///
/// ```
/// use ratekeeper::{ReserveError, TooManyHeld};
///
/// let error = ReserveError::from(TooManyHeld);
/// assert!(error.to_string().contains("settle or release some"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The charges cannot be decided together.
    #[error(transparent)]
    Charges(#[from] ChargesError),
    /// This process cannot hold more. Nothing stays charged.
    #[error(transparent)]
    TooManyHeld(#[from] TooManyHeld),
}

/// Why a reservation was not settled.
///
/// ```
/// use ratekeeper::ReservationError;
///
/// fn is_worth_a_retry(error: &ReservationError) -> bool {
///     matches!(error, ReservationError::Store(_))
/// }
/// # assert!(!is_worth_a_retry(&ReservationError::NotHeld));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReservationError {
    /// There is no such reservation.
    #[error("there is no such reservation: it was settled, or it has expired and its charge stays")]
    NotHeld,
    /// It was made without the store, and not by this process.
    #[error(
        "this reservation was made while the store was unavailable, so only the server that made it can \
         settle it; this is another one, or it was settled, or it has expired; its charge stays"
    )]
    HeldElsewhere,
    /// The store is unavailable.
    #[error("the reservation was not settled and is still held{hint}: {0}", hint = retry_hint(.0))]
    Store(#[source] StoreError),
}

/// Returns what to do after an error of the store, for a message.
pub(super) fn retry_hint(error: &StoreError) -> &'static str {
    match error {
        StoreError::OtherVersion => "",
        _ => "; retry",
    }
}

#[cfg(feature = "policy")]
impl Engine {
    /// Charges an estimate under all limits or none, and returns an id by which it can be settled once,
    /// within `valid`. A reservation that is not settled keeps its charge. An overdraft has no maximum
    /// debt here.
    ///
    /// In a shared store it can be settled by every process that shares the store. While the store is
    /// unavailable, the charge is made by this node's share, and only this process can settle it
    /// ([`HoldId::is_degraded`]).
    ///
    /// # Errors
    ///
    /// If the charges cannot be decided together, or too many reservations are held in this process.
    pub async fn reserve(
        &self,
        charges: &[Charge<'_>],
        estimate: Cost,
        valid: Duration,
    ) -> Result<Reserved, ReserveError> {
        let charges = in_full(charges, estimate);
        match &self.store {
            EngineStore::Memory(store) => self.reserve_in(store, &charges, estimate, valid),
            #[cfg(feature = "redis")]
            EngineStore::Shared(fallback) => {
                let default = self.failure_mode();
                let with_mode = |charge: &Charge<'_>| charge.failure_mode().unwrap_or(default);
                let charges: Vec<_> =
                    charges.iter().map(|charge| charge.on_failure(with_mode(charge))).collect();
                fallback.reserve(&charges, estimate, valid).await
            }
        }
    }

    /// Corrects the charge of a reservation to the actual cost: refunds what was not used, or charges more,
    /// as a debt if that exceeds the limit. 0 refunds all.
    ///
    /// # Errors
    ///
    /// If there is no such reservation, or the store is unavailable. It is still held then.
    pub async fn settle(&self, id: HoldId, actual: u64) -> Result<Settled, ReservationError> {
        match &self.store {
            EngineStore::Memory(store) => self.settle_in(store, id, actual),
            #[cfg(feature = "redis")]
            EngineStore::Shared(fallback) => fallback.settle(id, actual).await,
        }
    }

    fn reserve_in(
        &self,
        store: &MemoryStore,
        charges: &[Charge<'_>],
        estimate: Cost,
        valid: Duration,
    ) -> Result<Reserved, ReserveError> {
        let now = self.now();
        let verdict = store.apply_now(Op::Check, charges, now)?;
        if !verdict.allowed() {
            return Ok(Reserved { id: None, applied: Applied::by_store(verdict) });
        }
        let id = HoldId::random();
        let charges = &as_decided(charges, verdict.decisions())[..];
        let record = ReservationRecord::new(charges, estimate, verdict.at());
        if let Err(error) = self.reservations.insert(id, record, valid, now) {
            // The caller could never settle it.
            let _ = store.apply_now(Op::Refund { charged_at: now }, charges, now)?;
            return Err(error.into());
        }
        Ok(Reserved { id: Some(id), applied: Applied::by_store(verdict) })
    }

    fn settle_in(
        &self,
        store: &MemoryStore,
        id: HoldId,
        actual: u64,
    ) -> Result<Settled, ReservationError> {
        let now = self.now();
        let Some((_, record)) = self.reservations.remove(id, now) else {
            return Err(match id.is_degraded() {
                true => ReservationError::HeldElsewhere,
                false => ReservationError::NotHeld,
            });
        };
        let (op, charges) = record.correction(actual);
        let corrected = store.apply_now(op, &charges, now);
        let verdict = corrected.map_err(|error| ReservationError::Store(error.into()))?;
        Ok(Settled { applied: Applied::by_store(verdict), record })
    }
}

#[cfg(all(test, feature = "policy"))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::hold_table::HOLDS_MAX;

    const MINUTE: Duration = Duration::from_secs(60);

    fn engine(clock: &ManualClock) -> Engine {
        Engine::new(EngineStore::Memory(Box::new(MemoryStore::new())), Box::new(clock.clone()))
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn several_limits_are_reserved_all_or_none_and_settled_together() {
        let (engine, user) =
            (engine(&ManualClock::new()), Limit::token_bucket("100/hour").unwrap().named("user"));
        let model = Limit::fixed_window("150/hour").unwrap().named("model");
        let charges = [Charge::new(&user, "ann"), Charge::new(&model, "large")];
        let left = |limit: &Limit, key: &str| {
            let peeked = block_on(engine.apply(Op::Peek, &[Charge::new(limit, key)]));
            peeked.unwrap().remaining()
        };
        let reserved = block_on(engine.reserve(&charges, Cost::of(80), MINUTE)).unwrap();
        let denied = block_on(engine.reserve(&charges, Cost::of(30), MINUTE)).unwrap();
        assert!(denied.id().is_none() && !denied.applied().allowed());
        assert_eq!(
            (left(&user, "ann"), left(&model, "large")),
            (20, 70),
            "a denial charges nothing"
        );
        let settled = block_on(engine.settle(reserved.id().unwrap(), 90)).unwrap();
        assert_eq!(settled.limit().name(), "user");
        assert_eq!((left(&user, "ann"), left(&model, "large")), (10, 60));
        let again = block_on(engine.settle(reserved.id().unwrap(), 0)).unwrap_err();
        assert_eq!(again, ReservationError::NotHeld);
        assert_eq!(left(&user, "ann"), 10, "only once");
    }

    #[test]
    fn a_reservation_that_expires_keeps_its_charge() {
        let clock = ManualClock::new();
        let (engine, limit) = (engine(&clock), Limit::fixed_window("10/day").unwrap());
        let charge = Charge::new(&limit, "k").kind(ratekeeper_stores::ChargeKind::Overdraft);
        let reserve = || block_on(engine.reserve(&[charge], Cost::of(7), MINUTE)).unwrap();
        let (first, second) = (reserve().id().unwrap(), reserve().id().unwrap());
        assert!(reserve().id().is_none(), "nothing is left");
        clock.advance(MINUTE / 2);
        let settled = block_on(engine.settle(second, 1)).unwrap();
        assert_eq!(settled.applied().remaining(), 2);
        clock.advance(MINUTE / 2);
        assert_eq!(block_on(engine.settle(first, 0)).unwrap_err(), ReservationError::NotHeld);
        assert_eq!(block_on(engine.apply(Op::Peek, &[charge])).unwrap().remaining(), 2);
    }

    #[test]
    fn a_reservation_above_the_bound_is_rejected_and_not_charged() {
        let (engine, limit) =
            (engine(&ManualClock::new()), Limit::fixed_window("1000000/day").unwrap());
        let reserve = || block_on(engine.reserve(&[Charge::new(&limit, "k")], Cost::ONE, MINUTE));
        for _ in 0..HOLDS_MAX {
            assert!(reserve().unwrap().id().is_some());
        }
        assert_eq!(reserve().unwrap_err(), ReserveError::TooManyHeld(TooManyHeld));
        let peeked = block_on(engine.apply(Op::Peek, &[Charge::new(&limit, "k")])).unwrap();
        assert_eq!(peeked.remaining(), 1_000_000 - HOLDS_MAX as u64);
    }
}
