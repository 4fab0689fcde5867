//! The state of one key, apart from any store.

use ratekeeper_core::{Cell, Cost, Decision, Evaluator, Limit, Micros, RequestLog};

use crate::store::Op;

/// A copy of the state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// The state under every algorithm but the sliding log.
    Cell(Cell),
    /// The state under the sliding log.
    Log(RequestLog),
}

impl Snapshot {
    /// Returns the state of a new key.
    pub fn fresh(limit: &Limit) -> Self {
        match limit.evaluator() {
            Evaluator::Cell(_) => Self::Cell(Cell::EMPTY),
            Evaluator::Log(_) => Self::Log(RequestLog::default()),
        }
    }

    /// Checks this copy and charges it; the store is not changed.
    pub fn check(&mut self, limit: &Limit, cost: Cost, now: Micros) -> Decision {
        self.act(Op::Check, limit, cost, now)
    }

    /// Applies an operation to this copy; the store is not changed.
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
            // The state of another algorithm does not apply.
            _ => {
                *self = Self::fresh(limit);
                self.act(op, limit, cost, now)
            }
        }
    }
}
