//! Sliding window log: an entry counts while `now − t < W`; admit when `sum + cost ≤ limit`.
//!
//! Exact about the past, and the only one that is. The price is memory for every request.

use super::log::{Entry, Log};
use crate::cost::Cost;
use crate::decision::{Decision, NEVER};
use crate::limit::LimitError;
use crate::rate::Rate;
use crate::terms::Terms;
use crate::time::Micros;

/// The most requests that one key's log may hold.
const LOG_MAX: u64 = 1_000_000;

/// What decides, for the algorithm that keeps a [`Log`].
#[derive(Clone, Debug)]
pub struct LogRule {
    window_us: u64,
    limit: u64,
    pub(crate) count_rejected: bool,
}

impl LogRule {
    pub(super) fn new(rate: Rate) -> Result<Self, LimitError> {
        if rate.count() > LOG_MAX {
            return Err(LimitError::LogTooLong { rate, count_max: LOG_MAX });
        }
        Ok(Self { window_us: rate.period_us(), limit: rate.count(), count_rejected: false })
    }

    /// Charges `cost` if it fits. A denial leaves the entries as they were, unless rejected
    /// attempts are counted.
    pub fn check(&self, log: &mut Log, cost: Cost, now: Micros) -> Decision {
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

    /// What a check would say. `remaining` is what is there now, nothing charged.
    pub fn peek(&self, log: &Log, cost: Cost, now: Micros) -> Decision {
        self.report(log, self.wait_us(log, cost, now), cost, now)
    }

    /// Charges `cost` whether it fits or not. What does not fit is a debt.
    pub fn charge(&self, log: &mut Log, cost: Cost, now: Micros) -> Decision {
        self.expire(log, now);
        self.append(log, cost);
        self.report(log, 0, cost, now)
    }

    /// Gives back `cost` that was charged at `charged_at`, as far as it still counts.
    pub fn refund(&self, log: &mut Log, cost: Cost, charged_at: Micros, now: Micros) -> Decision {
        self.expire(log, now);
        if charged_at.get() + self.window_us > log.seen() {
            log.take_out(cost.get(), charged_at.get());
        }
        self.report(log, 0, cost, now)
    }

    pub(crate) fn terms(&self) -> Terms {
        let Self { window_us, limit, count_rejected } = *self;
        Terms::SlidingLog { window_us, limit, count_rejected }
    }

    /// The decision of a store that keeps the log elsewhere and tells what it has come to: how much
    /// counts, when the newest entry was made, and the wait in microseconds, if any.
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

    /// A moment, in microseconds since the epoch, from which on this log equals a fresh one.
    pub fn fresh_by(&self, log: &Log) -> u64 {
        if log.is_empty() { log.seen() } else { log.seen().max(log.newest() + self.window_us) }
    }

    fn expire(&self, log: &mut Log, now: Micros) {
        log.see(now.get());
        let seen = log.seen();
        log.drop_while(|entry, _| !self.counts(entry, seen));
    }

    /// Logs `cost`. More than a log can hold is as good as the most.
    fn append(&self, log: &mut Log, cost: Cost) {
        log.push(log.seen(), cost.get().min(LOG_MAX));
        log.drop_while(|oldest, total| total - oldest.cost >= 2 * LOG_MAX);
    }

    /// Logs a rejected attempt, and forgets what it makes superfluous: while the newest entries
    /// alone fill the limit, the ones before them decide nothing.
    fn append_rejected(&self, log: &mut Log, cost: Cost) {
        log.push(log.seen(), cost.get().min(self.limit));
        log.drop_while(|oldest, total| total - oldest.cost >= self.limit);
    }

    fn counts(&self, entry: Entry, at: u64) -> bool {
        at - entry.at < self.window_us
    }

    fn live<'a>(&'a self, log: &'a Log, now: Micros) -> impl Iterator<Item = Entry> + 'a {
        let at = now.get().max(log.seen());
        log.entries().skip_while(move |entry| !self.counts(*entry, at))
    }

    /// The sum of the costs that count, without walking the ones that do.
    fn used(&self, log: &Log, now: Micros) -> u64 {
        let at = now.get().max(log.seen());
        let expired = log.entries().take_while(|entry| !self.counts(*entry, at));
        log.total() - expired.map(|entry| entry.cost).sum::<u64>()
    }

    fn wait_us(&self, log: &Log, cost: Cost, now: Micros) -> u64 {
        if cost.get() > self.limit {
            return NEVER;
        }
        let mut excess = (self.used(log, now) + cost.get()).saturating_sub(self.limit);
        if excess == 0 {
            return 0;
        }
        for entry in self.live(log, now) {
            excess = excess.saturating_sub(entry.cost);
            if excess == 0 {
                return entry.at + self.window_us - now.get();
            }
        }
        unreachable!("the entries that count sum up to what is used")
    }

    fn report(&self, log: &Log, wait_us: u64, cost: Cost, now: Micros) -> Decision {
        self.decision(self.used(log, now), log.newest(), wait_us, cost, now)
    }
}
