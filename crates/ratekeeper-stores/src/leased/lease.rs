//! A lease: units that were charged in the shared store and may be spent here.
//!
//! Charging early and spending late must not admit more than charging at the time of spending would. So
//! unspent units expire exactly as fast as the store replenishes them:
//!
//! - In a window, nothing charged in it may be spent after it.
//! - In a token bucket with the TAT `E` and the emission interval `I`, at most `(E − now)/I` units may
//!   still be unspent: the others have been replenished already.
//!
//! Times here are by this node's clock, from when the call was sent. The store decided later than that,
//! so a lease expires here before it expires there.

use ratekeeper_core::{Cost, Decision, Limit, LimitParams, Micros};

use crate::verdict::Verdict;

/// How unspent units expire.
#[derive(Clone, Copy, Debug)]
enum Expiry {
    /// All of them at this time.
    At(u64),
    /// One by one until the TAT: `count` of them in `period_us`.
    Gradually { tat: u64, count: u64, period_us: u64 },
}

/// The lease of one key.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    unspent: u64,
    end: Expiry,
    /// When the newest of them was charged, by the store's clock.
    charged_at: Micros,
    /// What was left in the store at its last decision.
    left_in_store: u64,
    /// When the key has its full quota again, by this node's clock.
    reset_at: u64,
    denial: Option<Denial>,
    last_used: u64,
}

/// The store denies this cost until then, by this node's clock.
#[derive(Clone, Copy, Debug)]
struct Denial {
    cost: u64,
    until: u64,
}

/// Returns whether this limit can be leased: not a leaky bucket, which schedules every request, nor a
/// log.
pub(super) fn is_leasable(limit: &Limit) -> bool {
    use ratekeeper_core::Algorithm::{FixedWindow, SlidingCounter, TokenBucket};
    matches!(limit.algorithm(), FixedWindow | SlidingCounter | TokenBucket)
}

impl Lease {
    pub(super) fn empty(now: u64) -> Self {
        Self {
            unspent: 0,
            end: Expiry::At(0),
            charged_at: Micros::new(0),
            left_in_store: 0,
            reset_at: 0,
            denial: None,
            last_used: now,
        }
    }

    /// The units that may still be spent.
    pub(super) fn unspent(&self, now: u64) -> u64 {
        match self.end {
            Expiry::At(end) if now < end => self.unspent,
            Expiry::At(_) => 0,
            Expiry::Gradually { tat, count, period_us } => {
                let fit =
                    u128::from(tat.saturating_sub(now)) * u128::from(count) / u128::from(period_us);
                self.unspent.min(u64::try_from(fit).unwrap_or(u64::MAX))
            }
        }
    }

    pub(super) fn charged_at(&self) -> Micros {
        self.charged_at
    }

    pub(super) fn left_in_store(&self) -> u64 {
        self.left_in_store
    }

    pub(super) fn last_used(&self) -> u64 {
        self.last_used
    }

    /// Decides without the store: from unspent units, or from a denial that still holds.
    pub(super) fn decide(&mut self, limit: &Limit, cost: Cost, now: u64) -> Option<Decision> {
        self.last_used = now;
        let unspent = self.unspent(now);
        if cost.get() <= unspent {
            self.unspent = unspent - cost.get();
            let reset_us = self.reset_at.saturating_sub(now);
            let left = self.unspent.saturating_add(self.left_in_store).min(limit.quota());
            return Some(Decision::allow(limit.quota(), left, reset_us));
        }
        let denial = self.denial.filter(|denial| now < denial.until)?;
        (cost.get() >= denial.cost && unspent == 0).then(|| {
            Decision::deny(limit.quota(), denial.until - now, self.reset_at.saturating_sub(now))
        })
    }

    /// Adds units that were charged in the store by a call sent at `sent`, by this node's clock.
    pub(super) fn add(&mut self, limit: &Limit, units: u64, verdict: &Verdict, sent: u64) {
        let reset_us = verdict.reset_after().as_micros() as u64;
        self.unspent = self.unspent(sent).saturating_add(units);
        self.end = match limit.params(Cost::ONE) {
            LimitParams::Gcra { increment: interval, denominator: count, .. } => {
                Expiry::Gradually {
                    // The TAT may have a fraction, which was rounded up.
                    tat: sent.saturating_add(reset_us.saturating_sub(1)),
                    count,
                    period_us: interval.us * count + interval.frac,
                }
            }
            LimitParams::FixedWindow { window_us, .. }
            | LimitParams::SlidingCounter { window_us, .. } => {
                Expiry::At(sent.saturating_add(window_us - verdict.at().get() % window_us))
            }
            LimitParams::CalendarWindow { .. } => Expiry::At(sent.saturating_add(reset_us)),
            LimitParams::SlidingLog { .. } => Expiry::At(0),
        };
        self.charged_at = verdict.at();
        self.left_in_store = verdict.remaining();
        self.reset_at = sent.saturating_add(reset_us);
        self.denial = None;
    }

    /// Notes a denial of the store.
    pub(super) fn deny(&mut self, cost: Cost, decision: &Decision, sent: u64) {
        self.left_in_store = decision.remaining();
        self.reset_at = sent.saturating_add(decision.reset_after().as_micros() as u64);
        if let Some(wait) = decision.retry_after() {
            let until = sent.saturating_add(wait.as_micros() as u64);
            self.denial = Some(Denial { cost: cost.get(), until });
        }
    }

    /// Takes the unspent units, to refund them.
    pub(super) fn take(&mut self, now: u64) -> u64 {
        let unspent = self.unspent(now);
        self.unspent = 0;
        unspent
    }
}
