//! A lease: units that were charged in the shared store and may be spent here.
//!
//! Charging early and spending late must not let more pass than charging at the time of spending
//! would. So what is unspent runs out exactly as fast as the store forgets that it was charged:
//!
//! - In a window, nothing charged in it may be spent after it.
//! - In a bucket that is at rest again at `E`, with an interval of `I` between units, at most
//!   `(E − now)/I` units may still be unspent: the others have flowed back already.
//!
//! Times here are by this node's clock, from the moment the question was sent. The store decided later
//! than that, so a lease ends here before it ends there.

use ratekeeper_core::{Cost, Decision, Limit, LimitParams, Micros};

use crate::verdict::Verdict;

/// How unspent units run out.
#[derive(Clone, Copy, Debug)]
enum End {
    /// All of them at this moment.
    At(u64),
    /// As many as fit between now and this moment, of which `count` take `period_us`.
    Flow { rest: u64, count: u64, period_us: u64 },
}

/// What a node knows of one key.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    unspent: u64,
    end: End,
    /// When the newest of them was charged, by the store's clock.
    charged_at: Micros,
    /// What was left in the store when it last answered.
    left_there: u64,
    /// When the key is as good as new, by this node's clock.
    reset_at: u64,
    denial: Option<Denial>,
    last_used: u64,
}

/// The store has said no to this cost until then, by this node's clock.
#[derive(Clone, Copy, Debug)]
struct Denial {
    cost: u64,
    until: u64,
}

/// Can this limit be leased? Not a queue, whose every request has its turn, nor a log.
pub(super) fn is_leasable(limit: &Limit) -> bool {
    use ratekeeper_core::Algorithm::{FixedWindow, SlidingCounter, TokenBucket};
    matches!(limit.algorithm(), FixedWindow | SlidingCounter | TokenBucket)
}

impl Lease {
    pub(super) fn empty(now: u64) -> Self {
        Self {
            unspent: 0,
            end: End::At(0),
            charged_at: Micros::new(0),
            left_there: 0,
            reset_at: 0,
            denial: None,
            last_used: now,
        }
    }

    /// What may still be spent.
    pub(super) fn unspent(&self, now: u64) -> u64 {
        match self.end {
            End::At(end) if now < end => self.unspent,
            End::At(_) => 0,
            End::Flow { rest, count, period_us } => {
                let fit = u128::from(rest.saturating_sub(now)) * u128::from(count)
                    / u128::from(period_us);
                self.unspent.min(u64::try_from(fit).unwrap_or(u64::MAX))
            }
        }
    }

    pub(super) fn charged_at(&self) -> Micros {
        self.charged_at
    }

    pub(super) fn left_there(&self) -> u64 {
        self.left_there
    }

    pub(super) fn last_used(&self) -> u64 {
        self.last_used
    }

    /// The answer that needs no question: it is paid for, or the store has said until when not to ask.
    pub(super) fn answer(&mut self, limit: &Limit, cost: Cost, now: u64) -> Option<Decision> {
        self.last_used = now;
        let unspent = self.unspent(now);
        if cost.get() <= unspent {
            self.unspent = unspent - cost.get();
            let reset_us = self.reset_at.saturating_sub(now);
            let left = self.unspent.saturating_add(self.left_there).min(limit.quota());
            return Some(Decision::allow(limit.quota(), left, reset_us));
        }
        let denial = self.denial.filter(|denial| now < denial.until)?;
        (cost.get() >= denial.cost && unspent == 0).then(|| {
            Decision::deny(limit.quota(), denial.until - now, self.reset_at.saturating_sub(now))
        })
    }

    /// Units were charged at the store, asked at `sent` by this node's clock.
    pub(super) fn add(&mut self, limit: &Limit, units: u64, verdict: &Verdict, sent: u64) {
        let reset_us = verdict.reset_after().as_micros() as u64;
        self.unspent = self.unspent(sent).saturating_add(units);
        self.end = match limit.params(Cost::ONE) {
            LimitParams::Gcra { increment: interval, denominator: count, .. } => End::Flow {
                // The moment may have a fraction, which was rounded up.
                rest: sent.saturating_add(reset_us.saturating_sub(1)),
                count,
                period_us: interval.us * count + interval.frac,
            },
            LimitParams::FixedWindow { window_us, .. }
            | LimitParams::SlidingCounter { window_us, .. } => {
                End::At(sent.saturating_add(window_us - verdict.at().get() % window_us))
            }
            LimitParams::SlidingLog { .. } => End::At(0),
        };
        self.charged_at = verdict.at();
        self.left_there = verdict.remaining();
        self.reset_at = sent.saturating_add(reset_us);
        self.denial = None;
    }

    /// The store said no.
    pub(super) fn deny(&mut self, cost: Cost, decision: &Decision, sent: u64) {
        self.left_there = decision.remaining();
        self.reset_at = sent.saturating_add(decision.reset_after().as_micros() as u64);
        if let Some(wait) = decision.retry_after() {
            let until = sent.saturating_add(wait.as_micros() as u64);
            self.denial = Some(Denial { cost: cost.get(), until });
        }
    }

    /// Takes out what is unspent, to be given back.
    pub(super) fn take(&mut self, now: u64) -> u64 {
        let unspent = self.unspent(now);
        self.unspent = 0;
        unspent
    }
}
