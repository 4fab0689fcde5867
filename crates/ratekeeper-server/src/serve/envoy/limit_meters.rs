//! What the limits of descriptors have said, under the names that the files give them. Requests may
//! bring limits of their own; those are counted together.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ratekeeper::policy::envoy::{DescriptorLimit, EnvoyConfig};

use crate::metrics::{Labels, Page};

/// No more limits than these are told apart: each is a few series in somebody's database.
const TOLD_APART_MAX: usize = 1_000;
const OTHER: &str = "other";

/// What one limit has said.
#[derive(Debug, Default)]
pub(super) struct LimitMeter {
    pub(super) allowed: AtomicU64,
    pub(super) near_limit: AtomicU64,
    pub(super) denied: AtomicU64,
    pub(super) shadow_denied: AtomicU64,
}

/// The meters of the limits that are in force.
#[derive(Debug, Default)]
pub(super) struct LimitMeters {
    by_label: HashMap<String, Arc<LimitMeter>>,
    other: Arc<LimitMeter>,
}

impl LimitMeters {
    /// For these limits. Those that were there before go on counting.
    pub(super) fn new(config: &EnvoyConfig, old: &Self) -> Self {
        let mut by_label = HashMap::new();
        for limit in config.limits() {
            if by_label.len() == TOLD_APART_MAX {
                break;
            }
            let known = || old.by_label.get(limit.label()).cloned().unwrap_or_default();
            by_label.entry(limit.label().to_string()).or_insert_with(known);
        }
        Self { by_label, other: Arc::clone(&old.other) }
    }

    pub(super) fn of(&self, limit: &DescriptorLimit) -> &LimitMeter {
        self.by_label.get(limit.label()).unwrap_or(&self.other)
    }

    pub(super) fn tell(&self, page: &mut Page) {
        let mut all: Vec<_> = self.by_label.iter().map(|(name, meter)| (&**name, meter)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all.push((OTHER, &self.other));
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let decisions = all.iter().flat_map(|(limit, meter)| {
            let counts = [
                ("allowed", read(&meter.allowed)),
                ("denied", read(&meter.denied)),
                ("shadow_denied", read(&meter.shadow_denied)),
            ];
            counts.map(|(name, n)| (Labels(vec![("limit", *limit), ("outcome", name)]), n))
        });
        let help = "Decisions of each limit of Envoy's descriptors.";
        page.counter("ratekeeper_envoy_decisions_total", help, decisions);
        let near = all
            .iter()
            .map(|(limit, meter)| (Labels(vec![("limit", *limit)]), read(&meter.near_limit)));
        let help = "Requests that a limit of descriptors let pass when it was nearly used up.";
        page.counter("ratekeeper_envoy_near_limit_total", help, near);
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(limits: usize) -> EnvoyConfig {
        let limit = |i| {
            format!("  - {{ key: k{i}, rate_limit: {{ unit: hour, requests_per_unit: 1 }} }}\n")
        };
        let limits: String = (0..limits).map(limit).collect();
        let file = format!("domain: shop\ndescriptors:\n{limits}");
        EnvoyConfig::parse(&[("shop.yaml".into(), file)]).unwrap()
    }

    #[test]
    fn labels_are_bounded_whatever_the_files_say() {
        let config = config(TOLD_APART_MAX + 500);
        let meters = LimitMeters::new(&config, &LimitMeters::default());
        config.limits().iter().for_each(|limit| count(&meters.of(limit).allowed));
        assert_eq!(meters.by_label.len(), TOLD_APART_MAX);
        assert_eq!(meters.other.allowed.load(Ordering::Relaxed), 500);
    }

    #[test]
    fn a_limit_that_stays_keeps_its_count() {
        let first = LimitMeters::new(&config(1), &LimitMeters::default());
        count(&first.of(config(1).limits()[0]).denied);
        let next = LimitMeters::new(&config(2), &first);
        let counts: Vec<_> = config(2)
            .limits()
            .iter()
            .map(|limit| next.of(limit).denied.load(Ordering::Relaxed))
            .collect();
        assert_eq!(counts, [1, 0]);
    }
}
