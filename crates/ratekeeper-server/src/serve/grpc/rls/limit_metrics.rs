//! Counts the decisions of each limit of descriptors. Limits that requests bring along have no name in the
//! files; they are counted together.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ratekeeper::policy::envoy::{DescriptorLimit, EnvoyConfig};

use crate::metrics::{Labels, Page};

/// The most limits with time series of their own, which bounds the cardinality.
const LABELS_MAX: usize = 1_000;
const OTHER: &str = "other";

/// The decisions of one limit.
#[derive(Debug, Default)]
pub(super) struct LimitCounters {
    pub(super) allowed: AtomicU64,
    pub(super) near_limit: AtomicU64,
    pub(super) denied: AtomicU64,
    pub(super) shadow_denied: AtomicU64,
    /// Over the limit, but not denied, because another quota was left.
    pub(super) over_quota: AtomicU64,
}

/// The decisions of the active limits.
#[derive(Debug, Default)]
pub(super) struct LimitMetrics {
    /// By domain and label.
    by_domain: HashMap<String, HashMap<String, Arc<LimitCounters>>>,
    other: Arc<LimitCounters>,
}

impl LimitMetrics {
    /// Returns the metrics of these limits. Limits that were active before keep their counts.
    pub(super) fn new(config: &EnvoyConfig, old: &Self) -> Self {
        let mut by_domain: HashMap<_, HashMap<_, _>> = HashMap::new();
        let mut labels = 0;
        for limit in config.limits() {
            if labels == LABELS_MAX {
                break;
            }
            let of_domain = by_domain.entry(limit.domain().to_string()).or_default();
            of_domain.entry(limit.label().to_string()).or_insert_with(|| {
                labels += 1;
                old.find(limit).cloned().unwrap_or_default()
            });
        }
        Self { by_domain, other: Arc::clone(&old.other) }
    }

    fn find(&self, limit: &DescriptorLimit) -> Option<&Arc<LimitCounters>> {
        self.by_domain.get(limit.domain())?.get(limit.label())
    }

    pub(super) fn of(&self, limit: &DescriptorLimit) -> &LimitCounters {
        self.find(limit).unwrap_or(&self.other)
    }

    pub(super) fn write(&self, page: &mut Page) {
        let mut all: Vec<([&str; 2], &LimitCounters)> = Vec::new();
        for (domain, limits) in &self.by_domain {
            all.extend(limits.iter().map(|(label, one)| ([domain.as_str(), label], &**one)));
        }
        all.sort_unstable_by_key(|(names, _)| *names);
        all.push((["", OTHER], &self.other));
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let decisions = all.iter().flat_map(|(names, counters)| {
            let counts = [
                ("allowed", read(&counters.allowed)),
                ("denied", read(&counters.denied)),
                ("shadow_denied", read(&counters.shadow_denied)),
                ("over_quota", read(&counters.over_quota)),
            ];
            counts.map(|(outcome, count)| {
                let [domain, limit] = *names;
                (Labels(vec![("domain", domain), ("limit", limit), ("outcome", outcome)]), count)
            })
        });
        let help = "Decisions of each limit of Envoy's descriptors.";
        page.counter("ratekeeper_envoy_decisions_total", help, decisions);
        let near = all.iter().map(|([domain, limit], counters)| {
            (Labels(vec![("domain", *domain), ("limit", *limit)]), read(&counters.near_limit))
        });
        let help = "Requests that a limit of descriptors allowed when it was nearly used up.";
        page.counter("ratekeeper_envoy_near_limit_total", help, near);
    }
}

pub(super) fn increment(counter: &AtomicU64) {
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
    fn labels_are_bounded() {
        let config = config(LABELS_MAX + 500);
        let metrics = LimitMetrics::new(&config, &LimitMetrics::default());
        config.limits().iter().for_each(|limit| increment(&metrics.of(limit).allowed));
        assert_eq!(metrics.by_domain["shop"].len(), LABELS_MAX);
        assert_eq!(metrics.other.allowed.load(Ordering::Relaxed), 500);
    }

    #[test]
    fn limits_of_two_domains_with_one_name_have_series_of_their_own() {
        let file = |domain: &str| {
            let limit = "{ name: same, unit: hour, requests_per_unit: 1 }";
            let text =
                format!("domain: {domain}\ndescriptors: [{{ key: k, rate_limit: {limit} }}]");
            (domain.to_string(), text)
        };
        let config = EnvoyConfig::parse(&[file("one"), file("two")]).unwrap();
        let metrics = LimitMetrics::new(&config, &LimitMetrics::default());
        increment(&metrics.of(config.limits()[0]).denied);
        let mut page = Page::default();
        metrics.write(&mut page);
        let text = page.into_text();
        for (domain, count) in [("one", 1), ("two", 0)] {
            let series =
                format!("{{domain=\"{domain}\",limit=\"same\",outcome=\"denied\"}} {count}\n");
            assert!(text.contains(&series), "{text}");
        }
    }

    #[test]
    fn a_limit_keeps_its_counts_when_files_change() {
        let first = LimitMetrics::new(&config(1), &LimitMetrics::default());
        increment(&first.of(config(1).limits()[0]).denied);
        let next = LimitMetrics::new(&config(2), &first);
        let counts: Vec<_> = config(2)
            .limits()
            .iter()
            .map(|limit| next.of(limit).denied.load(Ordering::Relaxed))
            .collect();
        assert_eq!(counts, [1, 0]);
    }
}
