//! Charge an estimate now, the truth later.

use std::fmt;

use ratekeeper_core::{Cost, Decision, Limit, Micros};
use ratekeeper_stores::{Charge, Op};

use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::request::Request;

/// An estimate that was charged, from [`Request::reserve`].
///
/// Settle it with what the request really cost, or cancel it. Dropped or left past its deadline,
/// it keeps its charge: nobody gains by not settling.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Cost, Limit, Limiter};
///
/// let tokens = Limiter::new(Limit::token_bucket("10000/minute")?)?;
/// let estimate = tokens.key("ann").cost(Cost::of(2_000)).reserve(Duration::from_secs(60));
/// let reservation = estimate.expect("there is room");
/// // … the answer took only 700 …
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
        request: Request<'_, C>,
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

    /// What was decided when it was made.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Corrects the charge to what it really was: back to the key if that is less, a debt if it is
    /// more than there was room for. Tells what is there now.
    pub fn settle(self, actual: u64) -> Result<Decision, TooLate> {
        let now = self.in_time()?;
        let (store, estimate) = (&self.limiter.store, self.cost.get());
        let charge = |cost| {
            Charge::new(&self.limit, &self.key).cost(cost).within(self.limiter.limit.scope())
        };
        let over = Cost::new(actual.saturating_sub(estimate));
        let under = Cost::new(estimate.saturating_sub(actual));
        Ok(match (over, under) {
            (Some(over), _) => store.apply_one(Op::Charge, &charge(over), now),
            (_, Some(under)) => {
                let refund = Op::Refund { charged_at: self.charged_at };
                store.apply_one(refund, &charge(under), now)
            }
            _ => store.apply_one(Op::Peek, &charge(Cost::ONE), now),
        })
    }

    /// Gives all of it back.
    pub fn cancel(self) -> Result<Decision, TooLate> {
        self.settle(0)
    }

    fn in_time(&self) -> Result<Micros, TooLate> {
        let now = self.limiter.now();
        if now > self.deadline { Err(TooLate { charged: self.cost }) } else { Ok(now) }
    }
}

/// The deadline of a reservation has passed, and it keeps its charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLate {
    /// What stays charged.
    pub charged: Cost,
}

impl fmt::Display for TooLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charged = self.charged.get();
        write!(
            f,
            "the reservation was not settled in time and keeps its charge of {charged}; reserve for longer"
        )
    }
}

impl std::error::Error for TooLate {}
