//! A node's share of a limit: the limit divided by the number of nodes.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use ratekeeper_core::{Cost, Decision, Limit, LimitParams, Micros, Rate};
use ratekeeper_stores::{Charge, ChargeKind, MemoryStore, Op};

/// How many shares are cached. Beyond that they are computed each time.
const SHARES_MAX: usize = 1_024;

/// Decides by this node's share of each limit. What the store admits through this node is charged to
/// the share too, so that a node that has just used its share has none left when the store fails.
pub(super) struct LocalShare {
    store: MemoryStore,
    shares: RwLock<HashMap<ShareKey, Share>>,
}

/// The id of a limit's usage, and its rate.
type ShareKey = (u64, Rate);

#[derive(Clone)]
struct Share {
    of_nodes: u32,
    limit: Arc<Limit>,
}

impl LocalShare {
    pub(super) fn new() -> Self {
        Self { store: MemoryStore::new(), shares: RwLock::default() }
    }

    /// Applies `op` to all charges or none, under this node's shares. Returns a decision per charge.
    pub(super) fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        nodes: u32,
        now: Micros,
    ) -> Vec<Decision> {
        let shares: Vec<_> = charges.iter().map(|one| self.share(one.limit(), nodes)).collect();
        let shared = charges.iter().zip(&shares).map(|(charge, share)| charge.under(share));
        let decided = self.store.apply_now(op, &shared.collect::<Vec<_>>(), now);
        decided.map_or_else(|_| Vec::new(), |verdict| verdict.decisions().to_vec())
    }

    /// Charges what the store has admitted, up to what remains of the share. A share is never in debt: the
    /// store may have granted this node more than its share.
    pub(super) fn charge_admitted(&self, charge: &Charge<'_>, nodes: u32, now: Micros) {
        if charge.is_look() {
            return;
        }
        let share = self.share(charge.limit(), nodes);
        let charge = charge.under(&share).kind(ChargeKind::Full);
        let peek = |charge: &Charge<'_>| self.store.apply_now(Op::Peek, &[*charge], now);
        let is_rejection_counted =
            matches!(share.params(Cost::ONE), LimitParams::SlidingLog { count_rejected: true, .. });
        if is_rejection_counted && !peek(&charge).is_ok_and(|verdict| verdict.allowed()) {
            return;
        }
        let decision = self.store.check(&charge, now);
        let left = Cost::new(decision.remaining()).filter(|_| !decision.allowed());
        if let Some(left) = left {
            let _ = self.store.check(&charge.cost(left), now);
        }
    }

    pub(super) fn reset(&self, charge: &Charge<'_>, nodes: u32) {
        let share = self.share(charge.limit(), nodes);
        self.store.reset(&charge.under(&share));
    }

    fn share(&self, limit: &Limit, nodes: u32) -> Arc<Limit> {
        let key = (limit.usage_id(), limit.rate());
        let known = self.shares.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(share) = known
            && share.of_nodes == nodes
            && share.limit.name() == limit.name()
        {
            return share.limit;
        }
        let share = Arc::new(limit.share_of_nodes(nodes));
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        if shares.len() < SHARES_MAX || shares.contains_key(&key) {
            shares.insert(key, Share { of_nodes: nodes, limit: share.clone() });
        }
        share
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratekeeper_core::ALGORITHMS;

    use super::*;

    fn share(algorithm_and_rate: (&str, &str), nodes: u32) -> String {
        let (algorithm, rate) = algorithm_and_rate;
        let limit = Limit::new(rate.parse().unwrap(), algorithm.parse().unwrap()).unwrap();
        limit.share_of_nodes(nodes).rate().to_string()
    }

    #[test]
    fn a_share_is_the_limit_over_the_nodes() {
        assert_eq!(share(("token_bucket", "100/s burst 300"), 3), "100/3s burst 100");
        assert_eq!(share(("token_bucket", "5/s burst 2"), 4), "5/4s burst 1");
        assert_eq!(share(("sliding_counter", "100/minute"), 3), "33/m");
        assert_eq!(share(("fixed_window", "2/minute"), 5), "1/3m");
        assert_eq!(share(("sliding_log", "10/s"), 1), "10/s");
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn a_share_of_a_calendar_window_is_of_the_same_window() {
        let calendar = ("fixed_window", "100/calendar day in Europe/Berlin");
        assert_eq!(share(calendar, 3), "33/calendar day in Europe/Berlin");
        // Less than 1 a day: 1 in three of the longest days.
        assert_eq!(share(("fixed_window", "2/calendar day"), 5), "1/4d");
    }

    #[test]
    fn shares_sum_up_to_no_more_than_the_limit_over_time() {
        for algorithm in ALGORITHMS {
            for (count, nodes) in [(1u64, 7u32), (10, 3), (1_000, 64), (5, 5), (1_000_000, 1_000)] {
                let limit = Limit::new(format!("{count}/s").parse().unwrap(), *algorithm).unwrap();
                let rate = limit.share_of_nodes(nodes).rate();
                // In an hour, all nodes together.
                let hour = Duration::from_secs(3_600).as_micros();
                let passed = u128::from(rate.count()) * hour / rate.period().as_micros();
                assert!(
                    passed * u128::from(nodes) <= u128::from(count) * 3_600,
                    "{algorithm} {rate}"
                );
            }
        }
    }

    #[test]
    fn a_share_keeps_the_name_and_what_is_counted() {
        let limit = Limit::sliding_log("10/s").unwrap().count_rejected().unwrap().named("login");
        let share = limit.share_of_nodes(2);
        assert_eq!(share.name(), "login");
        assert!(matches!(
            share.params(Cost::ONE),
            LimitParams::SlidingLog { count_rejected: true, limit: 5, .. }
        ));
    }

    #[test]
    fn what_the_store_admitted_is_charged_to_the_share_without_debt() {
        let now = Micros::new(1_000_000_000_000);
        for algorithm in ALGORITHMS {
            let limit = Limit::new("20/hour".parse().unwrap(), *algorithm).unwrap();
            let (share, charge) = (LocalShare::new(), Charge::new(&limit, "k"));
            let left = || share.apply(Op::Peek, &[charge], 2, now)[0].remaining();
            share.charge_admitted(&charge.cost(Cost::of(7)), 2, now);
            assert_eq!(left(), 3, "{algorithm}");
            share.charge_admitted(&charge.cost(Cost::of(7)), 2, now);
            assert_eq!(left(), 0, "{algorithm}");
            let denied = share.apply(Op::Check, &[charge], 2, now)[0];
            let an_hour = Duration::from_secs(3_600);
            assert!(denied.retry_after().is_some_and(|wait| wait <= 2 * an_hour), "{algorithm}");
        }
    }
}
