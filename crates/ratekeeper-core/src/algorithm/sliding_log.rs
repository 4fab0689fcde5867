//! Sliding window log: an entry at `t` counts while `now − t < W`; admits if `sum + cost ≤ limit`.
//!
//! It is the only algorithm that is exact for every window, and it needs memory for every request.

use super::request_log::{Entry, RequestLog};
use crate::cost::Cost;
use crate::decision::{Decision, NEVER};
use crate::limit::LimitError;
use crate::params::LimitParams;
use crate::rate::Rate;
use crate::time::Micros;

/// The most requests that the log of one key may hold.
const LOG_MAX: u64 = 1_000_000;

/// Evaluates requests against a sliding log, whose state is a [`RequestLog`].
#[derive(Clone, Debug)]
pub struct SlidingLog {
    window_us: u64,
    limit: u64,
    pub(crate) count_rejected: bool,
}

impl SlidingLog {
    pub(super) fn new(rate: Rate) -> Result<Self, LimitError> {
        if rate.count() > LOG_MAX {
            return Err(LimitError::LogTooLong { rate, count_max: LOG_MAX });
        }
        Ok(Self { window_us: rate.period_us(), limit: rate.count(), count_rejected: false })
    }

    /// Charges `cost` if it is admitted. A denial does not change the entries, unless denied
    /// requests are counted ([`Limit::count_rejected`](crate::Limit::count_rejected)).
    pub fn check(&self, log: &mut RequestLog, cost: Cost, now: Micros) -> Decision {
        self.expire(log, now);
        let wait_us = self.wait_us(log, cost, now);
        if wait_us == 0 {
            self.append(log, cost);
            return self.report(log, 0, cost, now);
        }
        if self.count_rejected {
            self.append_rejected(log, cost);
            return self.report(log, self.wait_us(log, cost, now), cost, now);
        }
        self.report(log, wait_us, cost, now)
    }

    /// Returns the decision that a check would make, without charging. `remaining` does not include
    /// `cost`.
    pub fn peek(&self, log: &RequestLog, cost: Cost, now: Micros) -> Decision {
        self.report(log, self.wait_us(log, cost, now), cost, now)
    }

    /// Charges `cost` even if it exceeds the limit. The excess is a debt, of `debt_max` at the most; what
    /// would exceed that is not charged, and the decision says so ([`Decision::is_cut`]).
    pub fn charge(&self, log: &mut RequestLog, cost: Cost, debt_max: u64, now: Micros) -> Decision {
        self.expire(log, now);
        let left = self.limit.saturating_add(debt_max).saturating_sub(log.total());
        if let Some(charged) = Cost::new(cost.get().min(left)) {
            self.append(log, charged);
        }
        self.report(log, 0, cost, now).with_cut(cost.get() > left)
    }

    /// Charges `cost` as [`SlidingLog::charge`] does if anything is left (overdraft). Otherwise charges
    /// nothing, and returns when something is left again.
    pub fn overdraw(
        &self,
        log: &mut RequestLog,
        cost: Cost,
        debt_max: u64,
        now: Micros,
    ) -> Decision {
        let any = self.peek(log, Cost::ONE, now);
        if any.allowed() { self.charge(log, cost, debt_max, now) } else { any }
    }

    /// Refunds `cost` that was charged at `charged_at`, as far as it still counts.
    pub fn refund(
        &self,
        log: &mut RequestLog,
        cost: Cost,
        charged_at: Micros,
        now: Micros,
    ) -> Decision {
        self.expire(log, now);
        if charged_at.get() + self.window_us > log.latest_now() {
            log.remove(cost.get(), charged_at.get());
        }
        self.report(log, 0, cost, now)
    }

    pub(crate) fn params(&self) -> LimitParams {
        let Self { window_us, limit, count_rejected } = *self;
        LimitParams::SlidingLog { window_us, limit, count_rejected }
    }

    /// Makes the decision of a store that keeps the log outside this process. `used` is the sum of
    /// the costs that count, `newest` the time of the newest entry, and `wait_us` 0 if admitted.
    pub fn decision(
        &self,
        used: u64,
        newest: u64,
        wait_us: u64,
        cost: Cost,
        now: Micros,
    ) -> Decision {
        let wait_us = if wait_us > 0 && cost.get() > self.limit { NEVER } else { wait_us };
        let reset_at = if used == 0 { 0 } else { newest + self.window_us };
        Decision {
            wait_us,
            limit: self.limit,
            remaining: self.limit.saturating_sub(used),
            reset_after_us: reset_at.saturating_sub(now.get()),
            delay_us: 0,
        }
    }

    /// Returns when, in microseconds since the epoch, this log is equivalent to an empty one.
    #[must_use]
    pub fn expires_at(&self, log: &RequestLog) -> u64 {
        if log.is_empty() {
            log.latest_now()
        } else {
            log.latest_now().max(log.newest() + self.window_us)
        }
    }

    fn expire(&self, log: &mut RequestLog, now: Micros) {
        log.advance_to(now.get());
        let latest_now = log.latest_now();
        log.drop_while(|entry, _| !self.counts(entry, latest_now));
    }

    /// Logs a charge. Its cost is capped at the most that a log can hold.
    fn append(&self, log: &mut RequestLog, cost: Cost) {
        log.push(log.latest_now(), cost.get().min(LOG_MAX));
        log.drop_while(|oldest, total| total - oldest.cost >= 2 * LOG_MAX);
    }

    /// Logs a denied request, and drops what no longer matters: when the newest entries alone reach
    /// the limit, the ones before them have no effect.
    fn append_rejected(&self, log: &mut RequestLog, cost: Cost) {
        log.push(log.latest_now(), cost.get().min(self.limit));
        log.drop_while(|oldest, total| total - oldest.cost >= self.limit);
    }

    fn counts(&self, entry: Entry, at: u64) -> bool {
        at - entry.at < self.window_us
    }

    fn live_entries<'a>(
        &'a self,
        log: &'a RequestLog,
        now: Micros,
    ) -> impl Iterator<Item = Entry> + 'a {
        let at = now.get().max(log.latest_now());
        log.entries().skip_while(move |entry| !self.counts(*entry, at))
    }

    /// Returns the sum of the costs that count. It walks the expired entries only.
    fn used(&self, log: &RequestLog, now: Micros) -> u64 {
        let at = now.get().max(log.latest_now());
        let expired = log.entries().take_while(|entry| !self.counts(*entry, at));
        log.total() - expired.map(|entry| entry.cost).sum::<u64>()
    }

    fn wait_us(&self, log: &RequestLog, cost: Cost, now: Micros) -> u64 {
        if cost.get() > self.limit {
            return NEVER;
        }
        let mut excess = (self.used(log, now) + cost.get()).saturating_sub(self.limit);
        if excess == 0 {
            return 0;
        }
        for entry in self.live_entries(log, now) {
            excess = excess.saturating_sub(entry.cost);
            if excess == 0 {
                return entry.at + self.window_us - now.get();
            }
        }
        unreachable!("the live entries sum up to the used amount")
    }

    fn report(&self, log: &RequestLog, wait_us: u64, cost: Cost, now: Micros) -> Decision {
        self.decision(self.used(log, now), log.newest(), wait_us, cost, now)
    }
}
