//! Corrections of charges for which no request waits.

use std::sync::Arc;

use ratekeeper_core::FailureMode;
use ratekeeper_stores::{ApplyFailure, Charge, Op, SharedStore};

use super::Fallback;
use crate::engine::applied::{DegradedReason, Receipt};

impl<S: SharedStore + Send + Sync + 'static> Fallback<S> {
    /// Corrects a charge where it was made, without the deadline of a request. What the store cannot be charged
    /// now is added to the backlog; a refund that fails is lost, so that the charge stays.
    pub(crate) async fn correct_later(
        self: &Arc<Self>,
        op: Op,
        charge: Charge<'_>,
        receipt: &Receipt,
    ) {
        if receipt.degraded().is_some() {
            let _ = self.correct(op, charge, receipt).await;
            return;
        }
        let charges = [charge.on_failure(FailureMode::Local)];
        if !self.is_called(charge.key()) && op == Op::Charge {
            let reason = DegradedReason::BreakerOpen(self.status.last_error());
            let _ = self.decide_here(op, &charges, reason);
            return;
        }
        let applied = self.store.try_apply_later(op, &charges, receipt.at()).await;
        let Err(ApplyFailure { error, late, .. }) = applied else { return };
        let error = Arc::new(error);
        self.counters.count_error(&error);
        if op == Op::Charge {
            let applied = self.decide_here(op, &charges, DegradedReason::Failed(error));
            if let Some(late) = late {
                self.follow_late_reply(late, op, &charges, &applied);
            }
        }
    }
}
