//! The state of one key, apart from any store.

use ratekeeper_core::algorithm::SlidingLog;
use ratekeeper_core::{
    BucketCell, Cell, CellEvaluator, Cost, Decision, Evaluator, GuaranteedLimit, Limit, Micros,
    RequestLog,
};

use crate::charge::Charge;
use crate::store::{Op, UsageOp};

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
        self.apply(Op::Check, &Charge::new(limit, "").cost(cost), now)
    }

    /// Applies an operation to this copy; the store is not changed. Guarantees do not count: they have states of
    /// their own.
    pub fn apply(&mut self, op: Op, charge: &Charge<'_>, now: Micros) -> Decision {
        let (usage_op, cost) = op.on(charge);
        match (charge.limit.evaluator(), &mut *self) {
            (Evaluator::Cell(rule), Self::Cell(cell)) => {
                apply_to_cell(usage_op, rule, cell, cost, now)
            }
            (Evaluator::Log(rule), Self::Log(log)) => apply_to_log(usage_op, rule, log, cost, now),
            // The state of another algorithm does not apply.
            _ => {
                *self = Self::fresh(charge.limit);
                self.apply(op, charge, now)
            }
        }
    }
}

#[inline]
pub(crate) fn apply_to_cell(
    op: UsageOp,
    rule: &CellEvaluator,
    cell: &mut Cell,
    cost: Cost,
    now: Micros,
) -> Decision {
    match op {
        UsageOp::Check => rule.check(cell, cost, now),
        UsageOp::Peek => rule.peek(*cell, cost, now),
        UsageOp::Charge { debt_max } => rule.charge(cell, cost, debt_max, now),
        UsageOp::Overdraw { debt_max } => rule.overdraw(cell, cost, debt_max, now),
        UsageOp::Refund { charged_at } => rule.refund(cell, cost, charged_at, now),
    }
}

#[inline]
pub(crate) fn apply_to_log(
    op: UsageOp,
    rule: &SlidingLog,
    log: &mut RequestLog,
    cost: Cost,
    now: Micros,
) -> Decision {
    match op {
        UsageOp::Check => rule.check(log, cost, now),
        UsageOp::Peek => rule.peek(log, cost, now),
        UsageOp::Charge { debt_max } => rule.charge(log, cost, debt_max, now),
        UsageOp::Overdraw { debt_max } => rule.overdraw(log, cost, debt_max, now),
        UsageOp::Refund { charged_at } => rule.refund(log, cost, charged_at, now),
    }
}

/// Applies an operation to the states of a total and its guarantees ([`Charge::usages`]).
pub(crate) fn apply_to_buckets(
    op: Op,
    limit: &GuaranteedLimit,
    charge: &Charge<'_>,
    cells: &mut [BucketCell],
) -> Decision {
    let (op, cost) = op.on(charge);
    match op {
        UsageOp::Check => limit.check(cells, cost),
        UsageOp::Peek => limit.peek(cells, cost),
        UsageOp::Charge { debt_max } => limit.charge(cells, cost, debt_max),
        UsageOp::Overdraw { debt_max } => limit.overdraw(cells, cost, debt_max),
        UsageOp::Refund { charged_at } => limit.refund(cells, cost, charged_at, charge.is_borrowed),
    }
}
