//! What a replay found, for reports and for programs.

use std::collections::BTreeMap;
use std::sync::Arc;

use ratekeeper_policy::{AppliedLimit, Mode, Policy};
use serde::Serialize;

use super::decide::Run;
use super::demand::Demand;
use super::limit_stats::{Counts, LimitStats};
use super::summary::ReadSummary;

/// How many columns a series has.
const COLUMNS_MAX: u64 = 500;

/// What policies would have done to the requests of logs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ReplayResult {
    /// What was read.
    pub read: ReadSummary,
    /// The attributes that a policy reads and the logs lack, and what that means.
    pub notes: Vec<String>,
    /// The policy; then the one that it is compared with, if there is one.
    pub policies: Vec<PolicyResult>,
    /// What the second policy changes.
    pub changes: Option<Changes>,
}

/// What one policy would have done.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PolicyResult {
    /// Requests.
    pub requests: u64,
    /// Requests that are exempt. They are admitted.
    pub exempt: u64,
    /// Requests that no limit applies to. They are admitted.
    pub unlimited: u64,
    /// Requests that are admitted.
    pub admitted: u64,
    /// Admitted requests that wait in a queue before.
    pub delayed: u64,
    /// Requests that are refused.
    pub refused: u64,
    /// Requests that a limit in shadow mode would refuse.
    pub shadow_refused: u64,
    /// Keys that were evicted from memory although their state was needed: the results are not exact then.
    pub evictions: u64,
    /// The limits, in the order of the policy.
    pub limits: Vec<LimitResult>,
    /// Requests over time.
    pub series: Series,
}

/// Requests over time, in columns of equal width.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Series {
    /// When the first column begins, in microseconds since 1970.
    pub start_us: u64,
    /// The width of a column.
    pub width_us: u64,
    /// Admitted requests in each.
    pub admitted: Vec<u64>,
    /// Refused requests in each.
    pub refused: Vec<u64>,
}

/// What one limit would have done.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LimitResult {
    /// Its name.
    pub name: String,
    /// Its amount; `None` if no request was counted, or if it differs by tier.
    pub amount: Option<String>,
    /// Its mode.
    pub mode: &'static str,
    /// All tiers together.
    #[serde(flatten)]
    pub counts: LimitCounts,
    /// Each tier that made a request, if the policy has tiers.
    pub tiers: Vec<TierResult>,
    /// How many keys made requests.
    pub keys: u64,
    /// How many of them were refused, or would be in shadow mode.
    pub keys_refused: u64,
    /// Requests of keys that are not listed, because there are too many.
    pub unlisted: u64,
    /// The keys that were refused most.
    pub most_refused: Vec<KeyResult>,
    /// Delays of a queue: half of the admitted requests wait at most this long, in microseconds.
    pub delay_p50_us: u64,
    /// 99% wait at most this long.
    pub delay_p99_us: u64,
    /// The longest.
    pub delay_max_us: u64,
    /// The busiest window of each key, at several time scales.
    pub demand_per_key: Vec<Demand>,
    /// All keys together, in every window.
    pub demand_total: Vec<Demand>,
}

/// How many requests a limit admitted and refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LimitCounts {
    /// Requests that it applies to.
    pub requests: u64,
    /// What they cost.
    pub cost: u64,
    /// Requests that are admitted.
    pub admitted: u64,
    /// Admitted requests that it delays.
    pub delayed: u64,
    /// Requests that it refuses, as the binding limit.
    pub refused: u64,
    /// Requests that another limit refuses.
    pub refused_by_others: u64,
    /// Requests that it would refuse if it were enforced.
    pub shadow_refused: u64,
    /// Admitted requests of which it is the binding limit: the one with the least left.
    pub binding: u64,
}

/// What a limit would have done to clients of one tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TierResult {
    /// The tier.
    pub tier: String,
    /// The amount of the limit for it.
    pub amount: Option<String>,
    /// The numbers.
    #[serde(flatten)]
    pub counts: LimitCounts,
}

/// A key that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyResult {
    /// The key.
    pub key: String,
    /// Its requests.
    pub requests: u64,
    /// How many of them were refused, or would be in shadow mode.
    pub refused: u64,
    /// When the first was refused, in microseconds since 1970.
    pub first_refused_us: u64,
    /// When the last was.
    pub last_refused_us: u64,
    /// In how many seconds any was.
    pub refused_secs: u64,
}

/// What the second policy changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Changes {
    /// Requests that only the second policy refuses.
    pub newly_refused: u64,
    /// Requests that only the first policy refuses.
    pub no_longer_refused: u64,
    /// The limits of the second policy that refuse them.
    pub newly_refused_by: Vec<LimitChange>,
    /// The limits of the first policy that refused them.
    pub no_longer_refused_by: Vec<LimitChange>,
}

/// Requests of a limit that are decided otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LimitChange {
    /// The limit.
    pub limit: String,
    /// How many requests.
    pub requests: u64,
    /// How many keys.
    pub keys: u64,
    /// Those with most of the requests, and how many of theirs.
    pub most: Vec<(String, u64)>,
}

impl PolicyResult {
    pub(super) fn of(run: Run<'_>, policy: &Policy, read: &ReadSummary, listed: usize) -> Self {
        let tiers: Vec<&str> = policy.tiers().collect();
        let amounts = amounts(run.limits());
        let span_us = (read.end_us - read.start_us).max(1) + 1;
        // Most logs have times of whole seconds.
        let columns_max = span_us.div_ceil(1_000_000).min(COLUMNS_MAX);
        let columns = run.timeline.columns(span_us, columns_max);
        let (totals, evictions) = (run.totals, run.evictions());
        let limits = policy.limits().iter().zip(run.stats);
        Self {
            requests: read.requests,
            exempt: totals.exempt,
            unlimited: totals.unlimited,
            admitted: totals.admitted,
            delayed: totals.delayed,
            refused: totals.refused,
            shadow_refused: totals.shadow_refused,
            evictions,
            limits: limits
                .map(|(rule, stats)| {
                    let of_limit = amounts.get(&rule.id()).cloned().unwrap_or_default();
                    LimitResult::of(rule.name(), rule.mode(), stats, &tiers, &of_limit, listed)
                })
                .collect(),
            series: Series {
                start_us: read.start_us,
                width_us: columns.width_us,
                admitted: columns.admitted,
                refused: columns.denied,
            },
        }
    }

    /// Returns the limit of this name.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&LimitResult> {
        self.limits.iter().find(|limit| limit.name == name)
    }
}

type AmountsByTier = BTreeMap<Option<usize>, String>;

/// Returns the amounts of each limit by tier, as far as requests were counted.
fn amounts(limits: &[Arc<AppliedLimit>]) -> BTreeMap<usize, AmountsByTier> {
    let mut amounts: BTreeMap<usize, AmountsByTier> = BTreeMap::new();
    for limit in limits.iter().filter(|limit| !limit.is_share()) {
        let of_limit = amounts.entry(limit.rule.id()).or_default();
        of_limit.entry(limit.tier()).or_insert_with(|| limit.amount().to_string());
    }
    amounts
}

impl LimitResult {
    fn of(
        name: &str,
        mode: Mode,
        mut stats: LimitStats,
        tiers: &[&str],
        amounts: &AmountsByTier,
        listed: usize,
    ) -> Self {
        let all = stats.tiers.iter().fold(Counts::default(), Counts::and);
        let distinct: std::collections::BTreeSet<&String> = amounts.values().collect();
        let amount = (distinct.len() == 1).then(|| amounts.values().next().cloned()).flatten();
        let of_tiers = tiers.iter().enumerate().zip(&stats.tiers);
        let of_tiers = of_tiers.filter(|(_, counts)| counts.requests > 0);
        let of_tiers = of_tiers.map(|((index, tier), counts)| TierResult {
            tier: (*tier).to_string(),
            amount: amounts.get(&Some(index)).cloned(),
            counts: counts.into(),
        });
        let refused = stats.keys.iter().filter(|(_, stats)| stats.refused > 0);
        Self {
            name: name.to_string(),
            amount,
            mode: mode_text(mode),
            counts: (&all).into(),
            tiers: of_tiers.collect(),
            keys: stats.keys.len() as u64,
            keys_refused: refused.count() as u64,
            unlisted: stats.keys.unlisted,
            most_refused: most_refused(&stats, listed),
            delay_p50_us: stats.delays.quantile(50),
            delay_p99_us: stats.delays.quantile(99),
            delay_max_us: stats.delays.max(),
            demand_per_key: Demand::of_keys(stats.keys.iter().map(|(_, key)| key.demand.peaks())),
            demand_total: stats.demand.finish(),
        }
    }
}

fn mode_text(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
        Mode::Ramp(_) => "ramp",
    }
}

impl From<&Counts> for LimitCounts {
    fn from(counts: &Counts) -> Self {
        Self {
            requests: counts.requests,
            cost: counts.cost,
            admitted: counts.admitted,
            delayed: counts.delayed,
            refused: counts.refused,
            refused_by_others: counts.refused_elsewhere,
            shadow_refused: counts.shadow_refused,
            binding: counts.binding,
        }
    }
}

fn most_refused(stats: &LimitStats, listed: usize) -> Vec<KeyResult> {
    let refused = stats.keys.iter().filter(|(_, stats)| stats.refused > 0);
    let most = most(refused.map(|(key, stats)| (stats.refused, key, stats)), listed);
    let result = most.into_iter().map(|(refused, key, stats)| KeyResult {
        key: String::from_utf8_lossy(key).into_owned(),
        requests: stats.requests,
        refused,
        first_refused_us: stats.first_refused_us,
        last_refused_us: stats.last_refused_us,
        refused_secs: stats.refused_secs,
    });
    result.collect()
}

/// Returns the keys with the highest numbers; those with the same number by their text.
fn most<'k, T>(
    keys: impl Iterator<Item = (u64, &'k [u8], T)>,
    listed: usize,
) -> Vec<(u64, &'k [u8], T)> {
    let mut all: Vec<_> = keys.collect();
    let order = |a: &(u64, &[u8], T), b: &(u64, &[u8], T)| (b.0, a.1).cmp(&(a.0, b.1));
    if all.len() > listed && listed > 0 {
        all.select_nth_unstable_by(listed - 1, order);
    }
    all.truncate(listed);
    all.sort_by(order);
    all
}

/// Returns the limits of a policy that refused requests which the other policy admits.
pub(super) fn limit_changes(run: &Run<'_>, policy: &Policy, listed: usize) -> Vec<LimitChange> {
    let limits = policy.limits().iter().zip(&run.stats);
    let mut changes: Vec<_> = limits
        .map(|(rule, stats)| {
            let keys: Vec<_> = stats
                .keys
                .iter()
                .filter(|(_, key)| key.changed > 0)
                .map(|(text, key)| (key.changed, text, ()))
                .collect();
            let of_keys: u64 = keys.iter().map(|(changed, ..)| changed).sum();
            let count = keys.len() as u64;
            let most = most(keys.into_iter(), listed).into_iter();
            let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
            LimitChange {
                limit: rule.name().to_string(),
                requests: of_keys + stats.changed_without_key,
                keys: count,
                most: most.map(|(changed, key, ())| (text(key), changed)).collect(),
            }
        })
        .filter(|change| change.requests > 0)
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.requests));
    changes
}
