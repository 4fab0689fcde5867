//! The state of one key, apart from any store.

use ratekeeper_core::{Cell, Cost, Decision, Evaluator, Limit, Micros, RequestLog};

use crate::store::Op;

/// The state of one key, as a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// Of every algorithm but the log.
    Cell(Cell),
    /// Of the sliding log.
    Log(RequestLog),
}

impl Snapshot {
    /// The state of a key that was never seen.
    pub fn fresh(limit: &Limit) -> Self {
        match limit.evaluator() {
            Evaluator::Cell(_) => Self::Cell(Cell::EMPTY),
            Evaluator::Log(_) => Self::Log(RequestLog::default()),
        }
    }

    /// What a check of this copy says. It charges the copy, not the store: to look ahead.
    pub fn check(&mut self, limit: &Limit, cost: Cost, now: Micros) -> Decision {
        self.act(Op::Check, limit, cost, now)
    }

    /// Does one thing to this copy.
    pub fn act(&mut self, op: Op, limit: &Limit, cost: Cost, now: Micros) -> Decision {
        match (limit.evaluator(), &mut *self) {
            (Evaluator::Cell(rule), Self::Cell(cell)) => match op {
                Op::Check => rule.check(cell, cost, now),
                Op::Peek => rule.peek(*cell, cost, now),
                Op::Charge => rule.charge(cell, cost, now),
                Op::Refund { charged_at } => rule.refund(cell, cost, charged_at, now),
            },
            (Evaluator::Log(rule), Self::Log(log)) => match op {
                Op::Check => rule.check(log, cost, now),
                Op::Peek => rule.peek(log, cost, now),
                Op::Charge => rule.charge(log, cost, now),
                Op::Refund { charged_at } => rule.refund(log, cost, charged_at, now),
            },
            // A copy taken under another algorithm says nothing of this one.
            _ => {
                *self = Self::fresh(limit);
                self.act(op, limit, cost, now)
            }
        }
    }
}
