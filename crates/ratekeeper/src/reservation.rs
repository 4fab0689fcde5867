//! Reservations: charge an estimate now, settle the actual cost later.

use ratekeeper_core::{Cost, Decision, Limit, Micros};
use ratekeeper_stores::{Charge, Op};

use crate::clock::Clock;
use crate::key_request::KeyRequest;
use crate::limiter::Limiter;

/// A charged estimate, from [`KeyRequest::reserve`].
///
/// Settle it with the actual cost, or cancel it. Dropped or past its deadline, it keeps its charge, so that
/// not settling gains nothing.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Cost, Limit, Limiter};
///
/// let tokens = Limiter::new(Limit::token_bucket("10000/minute")?)?;
/// let estimate = tokens.key("ann").cost(Cost::of(2_000)).reserve(Duration::from_secs(60));
/// let reservation = estimate.expect("within the limit");
/// // … the response took only 700 …
/// let now = reservation.settle(700)?;
/// assert_eq!(now.remaining(), 9_300);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "settle it or cancel it; dropped, it keeps its charge"]
pub struct Reservation<C> {
    limiter: Limiter<C>,
    limit: Limit,
    key: Box<[u8]>,
    cost: Cost,
    decision: Decision,
    charged_at: Micros,
    deadline: Micros,
}

impl<C: Clock + Clone> Reservation<C> {
    pub(crate) fn new(
        request: KeyRequest<'_, C>,
        decision: Decision,
        charged_at: Micros,
        deadline: Micros,
    ) -> Self {
        Self {
            limiter: request.limiter.clone(),
            limit: request.limit.clone(),
            key: request.key.into(),
            cost: request.cost,
            decision,
            charged_at,
            deadline,
        }
    }

    /// Returns the decision that admitted it.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Corrects the charge to the actual cost: refunds what was not used, or charges more, as a debt if that
    /// exceeds the limit. Returns what remains.
    ///
    /// # Errors
    ///
    /// If the deadline has passed. The estimate then stays charged.
    pub fn settle(self, actual: u64) -> Result<Decision, ReservationExpired> {
        let now = self.in_time()?;
        let correction = Op::correction(self.cost, actual, self.charged_at);
        let (op, cost) = correction.unwrap_or((Op::Peek, Cost::ONE));
        let charge = Charge::new(&self.limit, &self.key).within(self.limiter.limit.scope());
        Ok(self.limiter.store.apply_one(op, &charge.cost(cost), now))
    }

    /// Refunds the whole estimate.
    ///
    /// # Errors
    ///
    /// If the deadline has passed. The estimate then stays charged.
    pub fn cancel(self) -> Result<Decision, ReservationExpired> {
        self.settle(0)
    }

    fn in_time(&self) -> Result<Micros, ReservationExpired> {
        let now = self.limiter.now();
        if now > self.deadline { Err(ReservationExpired { charged: self.cost }) } else { Ok(now) }
    }
}

/// The deadline of a reservation has passed, so the estimate stays charged.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Cost, Limiter, ManualClock};
///
/// let clock = ManualClock::new();
/// let limiter = Limiter::builder("100/minute")?.clock(clock.clone()).build();
/// let reservation = limiter.key("ann").cost(Cost::of(20)).reserve(Duration::from_secs(5)).unwrap();
/// clock.advance(Duration::from_secs(6));
/// assert_eq!(reservation.settle(10).unwrap_err().charged, Cost::of(20));
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reservation was not settled in time and keeps its charge of {}; reserve for longer", charged.get())]
#[non_exhaustive]
pub struct ReservationExpired {
    /// The estimate, which stays charged.
    pub charged: Cost,
}
