//! Warns of limits that are valid but do not do what their author expects.

use std::sync::Arc;

use ratekeeper_core::{Algorithm, Cost, Limit};

use super::callers::Callers;
use super::limits::WrittenLimit;
use crate::condition::Condition;
use crate::coverage::Coverage;
use crate::problems::{Problems, quoted};
use crate::protection::Permits;
use crate::rule::{Amount, Bounds, CostRule, LimitAction, LimitRule, Mode};
use crate::yaml::{Node, Span};

/// Adds the warnings about the limits of a policy without errors.
pub(super) fn warn(
    root: &Node,
    limits: &[WrittenLimit<'_>],
    exempt: &[Condition],
    callers: &Callers,
    problems: &mut Problems,
) {
    if limits.is_empty() {
        let key = root.entries().iter().find(|(key, _)| key.text() == Some("limits"));
        let span = key.map_or(root.span, |(key, _)| key.span);
        problems.warn(span, "there are no limits: every request is allowed");
    }
    let tiers = callers.tiers.as_ref().map_or(&[][..], |tiers| &tiers.names);
    let review = Review { limits, exempt, tiers, coverage: Coverage::default() };
    for (index, limit) in
        limits.iter().enumerate().filter(|(_, limit)| limit.rule.mode != Mode::Off)
    {
        review.warn_of_costs(limit, problems);
        match review.why_never(index, limit) {
            Some((span, why)) => {
                problems.warn(span, format!("{} never applies: {why}", quoted(limit.rule.name())));
            }
            None => review.warn_if_redundant(index, limit, problems),
        }
    }
}

struct Review<'a> {
    limits: &'a [WrittenLimit<'a>],
    exempt: &'a [Condition],
    tiers: &'a [String],
    coverage: Coverage,
}

impl Review<'_> {
    /// Warns of costs that exceed what the limit can hold.
    fn warn_of_costs(&self, limit: &WrittenLimit<'_>, problems: &mut Problems) {
        let Some(node) = limit.node.get("cost").filter(|_| limit.rule.overdraft.is_none()) else {
            return;
        };
        let Some((what, quota)) = self.smallest_quota(&limit.rule) else { return };
        for (span, cost) in costs(node, &limit.rule.cost).filter(|(_, cost)| cost.get() > quota) {
            let denied = match limit.rule.mode {
                Mode::Shadow => "would always be denied",
                _ => "is always denied",
            };
            let cost = cost.get();
            let why = format!(
                "a cost of {cost} is more than {what} can hold, {quota}: such a request {denied}"
            );
            problems.warn(span, why);
        }
    }

    /// Returns the smallest quota of a rate limit, with what has it.
    fn smallest_quota(&self, rule: &LimitRule) -> Option<(String, u64)> {
        let mut quotas = Vec::new();
        for tier in self.each_tier() {
            let Some(bound) = rule.bounds.of(tier) else { continue };
            let of = match (&rule.bounds, tier) {
                (Bounds::PerTier(_), Some(tier)) => format!(" of the tier {}", self.tiers[tier]),
                _ => String::new(),
            };
            let shares = bound.shares.iter().map(|(_, share)| share);
            for (what, amount) in [(format!("the limit{of}"), &bound.amount)]
                .into_iter()
                .chain(shares.map(|share| (format!("the smallest share{of}"), share)))
            {
                if let Amount::Rate(limit) = amount {
                    quotas.push((what, limit.quota()));
                }
            }
        }
        quotas.into_iter().min_by_key(|(_, quota)| *quota)
    }

    /// Returns all tiers; without tiers, `None` once.
    fn each_tier(&self) -> impl Iterator<Item = Option<usize>> + use<> {
        let tiers = self.tiers.len();
        (0..tiers.max(1)).map(move |tier| (tiers > 0).then_some(tier))
    }

    /// Returns why no request is counted by a limit.
    fn why_never(&self, index: usize, limit: &WrittenLimit<'_>) -> Option<(Span, String)> {
        let own = conditions(&limit.rule);
        if let Some(not) = self.covering_not(limit) {
            return Some((not, "its \"not\" covers its match".into()));
        }
        if let [group, one] = &limit.rule.conditions[..]
            && self.coverage.are_disjoint(group, one)
        {
            return Some((
                limit.span(),
                "its match and that of its group exclude each other".into(),
            ));
        }
        let is_exempt =
            |exempt: &Condition| own.clone().any(|one| self.coverage.excludes(exempt, one));
        if let Some(entry) = self.exempt.iter().position(is_exempt) {
            return Some((
                limit.span(),
                format!("entry {} of \"exempt\" covers its match", entry + 1),
            ));
        }
        if self.is_unlimited(&limit.rule) {
            return Some((limit.span(), "all tiers that it matches are unlimited".into()));
        }
        let earlier = self.earlier_of_group(index, limit)?;
        let (name, line) = (quoted(earlier.rule.name()), earlier.span().line);
        let why = format!(
            "{name} in line {line}, earlier in its \"first\" group, matches the same requests"
        );
        Some((limit.span(), why))
    }

    /// Returns the position of a `not` that excludes everything that the limit matches.
    fn covering_not(&self, limit: &WrittenLimit<'_>) -> Option<Span> {
        let mut nots = conditions(&limit.rule).flat_map(|condition| &condition.not);
        let covering = |not: &&Condition| {
            conditions(&limit.rule).any(|condition| self.coverage.excludes(not, condition))
        };
        nots.find(covering)?;
        let not = limit.node.get("match").and_then(|node| node.get("not"));
        Some(not.map_or(limit.span(), |node| node.span))
    }

    fn is_unlimited(&self, rule: &LimitRule) -> bool {
        let is_matched = |tier: &Option<usize>| {
            let mut lists = rule.conditions.iter().map(|condition| &condition.tiers);
            lists.all(|tiers| tiers.is_empty() || tier.is_some_and(|tier| tiers.contains(&tier)))
        };
        self.each_tier().filter(is_matched).all(|tier| rule.bounds.of(tier).is_none())
    }

    /// Returns a limit of the same `first` group that applies instead of this one.
    fn earlier_of_group(
        &self,
        index: usize,
        limit: &WrittenLimit<'_>,
    ) -> Option<&WrittenLimit<'_>> {
        let group = limit.rule.group?;
        let members = self.limits[..index].iter().rev();
        let members = members.take_while(|other| other.rule.group == Some(group));
        let mut enforced = members.filter(|other| is_enforced(&other.rule));
        enforced.find(|other| {
            self.coverage.covers_all(conditions(&other.rule), &conditions(&limit.rule))
        })
    }

    /// Warns if another limit always denies first.
    fn warn_if_redundant(&self, index: usize, limit: &WrittenLimit<'_>, problems: &mut Problems) {
        let is_trial = limit.rule.mode == Mode::Shadow;
        // A limit of a group has another effect: the others of the group do not apply.
        if is_trial
            || limit.rule.group.is_some()
            || limit.node.get("count_rejected").is_some()
            || limit.rule.overdraft.is_some()
        {
            return;
        }
        let mut others = self.limits.iter().enumerate().filter(|(other, _)| *other != index);
        let stricter = others.find(|(other, stricter)| {
            self.coverage.step()
                && stricter.rule.overdraft.is_none()
                && self.always_denies_first(&stricter.rule, &limit.rule)
                // Of two equal limits, the second is reported.
                && (*other < index || !self.always_denies_first(&limit.rule, &stricter.rule))
        });
        if let Some((_, stricter)) = stricter {
            let (name, other) = (quoted(limit.rule.name()), quoted(stricter.rule.name()));
            let line = stricter.span().line;
            let why = format!("{name} has no effect: {other} in line {line} always denies first");
            problems.warn(limit.span(), why);
        }
    }

    /// Whether `strict` denies every request that `loose` would deny.
    fn always_denies_first(&self, strict: &LimitRule, loose: &LimitRule) -> bool {
        let is_counted_alike = is_enforced(strict)
            && strict.group.is_none()
            && strict.refund.is_empty()
            && strict.on_failure == loose.on_failure
            && (loose.when_limited != LimitAction::Queue)
            && strict.per.iter().all(|id| loose.per.contains(id))
            && least_cost(&strict.cost) >= greatest_cost(&loose.cost);
        is_counted_alike
            && self.is_at_most(&strict.bounds, &loose.bounds)
            && self.coverage.covers_all(conditions(strict), &conditions(loose))
    }

    fn is_at_most(&self, strict: &Bounds, loose: &Bounds) -> bool {
        self.each_tier().all(|tier| match (strict.of(tier), loose.of(tier)) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(strict), Some(loose)) => {
                loose.shares.is_empty()
                    && loose.guarantees.is_none()
                    && amount_is_at_most(&strict.amount, &loose.amount)
            }
        })
    }
}

fn conditions(rule: &LimitRule) -> impl Iterator<Item = &Condition> + Clone {
    rule.conditions.iter().map(Arc::as_ref)
}

/// Whether a limit is enforced for all keys.
fn is_enforced(rule: &LimitRule) -> bool {
    matches!(rule.mode, Mode::Enforce | Mode::Ramp(10_000))
}

/// Returns the costs that a policy fixes, with their positions.
fn costs<'n>(node: &'n Node, rule: &CostRule) -> impl Iterator<Item = (Span, Cost)> + use<'n> {
    let (fixed, routes) = match rule {
        CostRule::Fixed(cost) => (Some((node.span, *cost)), Vec::new()),
        CostRule::RequestHeader { default, .. } | CostRule::ResponseHeader { default, .. } => {
            (node.get("default").map(|node| (node.span, *default)), Vec::new())
        }
        CostRule::Usage(usage) => {
            let node = node.get("estimate").and_then(|node| node.get("default"));
            (node.map(|node| (node.span, usage.estimate.default)), Vec::new())
        }
        CostRule::Routes { routes, default } => {
            let nodes = node.get("routes").map_or(&[][..], Node::items);
            let nodes = nodes.iter().filter_map(|node| node.get("cost"));
            let routes = nodes.zip(routes).map(|(node, (_, cost))| (node.span, *cost)).collect();
            (node.get("default").map(|node| (node.span, *default)), routes)
        }
    };
    routes.into_iter().chain(fixed)
}

/// Returns the least that a request is charged in the end.
fn least_cost(rule: &CostRule) -> u64 {
    match rule {
        CostRule::Fixed(cost) => cost.get(),
        CostRule::RequestHeader { .. } => 1,
        CostRule::ResponseHeader { .. } | CostRule::Usage(_) => 0,
        CostRule::Routes { routes, default } => {
            routes.iter().map(|(_, cost)| cost.get()).fold(default.get(), u64::min)
        }
    }
}

/// Returns the most that a request is charged.
fn greatest_cost(rule: &CostRule) -> u64 {
    match rule {
        CostRule::Fixed(cost) => cost.get(),
        CostRule::Usage(_) => u64::MAX,
        CostRule::RequestHeader { default, max, .. }
        | CostRule::ResponseHeader { default, max, .. } => default.get().max(max.get()),
        CostRule::Routes { routes, default } => {
            routes.iter().map(|(_, cost)| cost.get()).fold(default.get(), u64::max)
        }
    }
}

fn amount_is_at_most(strict: &Amount, loose: &Amount) -> bool {
    match (strict, loose) {
        (Amount::Concurrency { rule: strict, .. }, Amount::Concurrency { rule: loose, .. }) => {
            match (strict.permits, loose.permits) {
                (Permits::Fixed(strict_max), Permits::Fixed(loose_max)) => {
                    strict_max <= loose_max && strict.queue.is_none() && loose.queue.is_none()
                }
                _ => false,
            }
        }
        (Amount::Rate(strict), Amount::Rate(loose)) => limit_is_at_most(strict, loose),
        _ => false,
    }
}

/// Whether one limit never allows what another one of the same algorithm denies.
fn limit_is_at_most(strict: &Limit, loose: &Limit) -> bool {
    if strict.algorithm() != loose.algorithm() {
        return false;
    }
    let count = |limit: &Limit| u128::from(limit.rate().count());
    let period = |limit: &Limit| limit.rate().period().as_micros();
    // Windows of the calendar are compared with the same windows only.
    if strict.rate().calendar().is_some() || loose.rate().calendar().is_some() {
        return strict.rate().calendar() == loose.rate().calendar()
            && count(strict) <= count(loose);
    }
    match strict.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            strict.quota() <= loose.quota()
                && count(strict) * period(loose) <= count(loose) * period(strict)
        }
        // Windows are aligned, and any span of a log is covered by as many shorter ones.
        Algorithm::FixedWindow | Algorithm::SlidingLog => {
            period(loose).is_multiple_of(period(strict))
                && count(strict) * (period(loose) / period(strict)) <= count(loose)
        }
        Algorithm::SlidingCounter => {
            period(strict) == period(loose) && count(strict) <= count(loose)
        }
    }
}
