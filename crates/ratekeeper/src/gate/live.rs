//! The policy in force, with what its limits need at run time.

use std::collections::HashMap;
use std::sync::Arc;

use ratekeeper_policy::{LimitRule, Policy};

use super::meter::{Meter, Meters};
use crate::concurrency::Concurrency;

/// The policy in force. It is replaced whole; a request sees one from beginning to end.
#[derive(Debug)]
pub struct Live {
    policy: Policy,
    meters: Vec<Arc<Meter>>,
    /// Permits of limits and of shares, by name. They outlive a policy.
    permits: Permits,
}

impl Live {
    pub(crate) fn new(policy: Policy, meters: &Meters, old: Option<&Live>) -> Self {
        let of_limits = policy.limits().iter().map(|rule| meters.of(rule.shared_name()));
        let of_limits: Vec<_> = of_limits.collect();
        meters.keep_only(|name| policy.limits().iter().any(|rule| rule.name() == name));
        let permits = old.map_or_else(Permits::default, |old| old.permits.clone());
        Self { policy, meters: of_limits, permits }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn meter(&self, rule: &LimitRule) -> &Meter {
        &self.meters[rule.id()]
    }

    pub(crate) fn permits(&self, name: &Arc<str>) -> Concurrency {
        self.permits.of(name)
    }
}

/// Who is in flight, for each limit of concurrency.
#[derive(Clone, Debug, Default)]
struct Permits(Arc<std::sync::RwLock<HashMap<Arc<str>, Concurrency>>>);

impl Permits {
    fn of(&self, name: &Arc<str>) -> Concurrency {
        let known =
            self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(name).cloned();
        known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            all.entry(name.clone()).or_insert_with(Concurrency::unbounded).clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use ratekeeper_core::FailureMode;

    use crate::{Gate, Policy};

    #[test]
    fn names_of_callers_are_not_kept() {
        let gate = Gate::new(Policy::one_line("1/s per ip").unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for name in 0..100 {
                let one = gate.acquire(&name.to_string(), b"k", 1, FailureMode::Local).await;
                assert!(one.is_some());
            }
            let held = gate.acquire("a", b"bc", 1, FailureMode::Local).await;
            assert!(
                held.is_some() && gate.acquire("a", b"bc", 1, FailureMode::Local).await.is_none()
            );
            assert!(gate.acquire("ab", b"c", 1, FailureMode::Local).await.is_some());
        });
        let live = gate.live();
        assert_eq!(live.permits.0.read().unwrap().len(), 1);
    }
}
