//! Builds limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{FailureMode, Guarantees, Limit, MaxDebt, Rate};

use super::amounts::{rate, share};
use super::callers::Callers;
use super::conditions::{class, condition};
use super::costs::cost_rule;
use super::protection::{concurrency, is_concurrency};
use super::response;
use super::values::{duration, failure_mode, name, overdraft, percentage};
use crate::condition::Condition;
use crate::problems::{Problems, quoted};
use crate::rule::{
    Amount, Bound, BoundGuarantees, Bounds, LimitAction, LimitRule, Mode, StatusRange,
};
use crate::suggest::closest;
use crate::yaml::{Node, Span, Value};

/// Maximum number of limits. It bounds the cardinality of metrics.
const LIMITS_MAX: usize = 10_000;

struct LimitsBuilder<'a> {
    callers: &'a Callers,
    classes: &'a [String],
    on_failure: FailureMode,
    lines: HashMap<String, usize>,
    limits: Vec<WrittenLimit<'a>>,
}

/// A limit, and where it is written.
pub(super) struct WrittenLimit<'n> {
    pub(super) node: &'n Node,
    pub(super) rule: Arc<LimitRule>,
}

impl WrittenLimit<'_> {
    /// Returns the position of its name.
    pub(super) fn span(&self) -> Span {
        self.node.get("name").unwrap_or(self.node).span
    }
}

pub(super) fn limits<'n>(
    root: &'n Node,
    callers: &'n Callers,
    classes: &'n [String],
    on_failure: FailureMode,
    problems: &mut Problems,
) -> Vec<WrittenLimit<'n>> {
    let (lines, limits) = (HashMap::new(), Vec::new());
    let mut builder = LimitsBuilder { callers, classes, on_failure, lines, limits };
    let entries = root.get("limits").map_or(&[][..], Node::items);
    for (group, node) in entries.iter().enumerate() {
        builder.entry(group, node, problems);
    }
    if builder.limits.len() > LIMITS_MAX {
        problems.report(root.span, format!("a policy has at most {LIMITS_MAX} limits"));
    }
    builder.limits
}

impl<'a> LimitsBuilder<'a> {
    fn entry(&mut self, group: usize, node: &'a Node, problems: &mut Problems) {
        let (first, all) = (node.get("first"), node.get("all"));
        let Some(members) = first.or(all) else {
            return self.limit(node, None, None, problems);
        };
        let on = node.get("match").map(|node| Arc::new(condition(node, self.callers, problems)));
        let group = first.is_some().then_some(group);
        for node in members.items() {
            self.limit(node, on.clone(), group, problems);
        }
    }

    fn limit(
        &mut self,
        node: &'a Node,
        on_group: Option<Arc<Condition>>,
        group: Option<usize>,
        problems: &mut Problems,
    ) {
        let own = self.name(node.get("name"), problems);
        report_inapplicable(node, problems);
        let on = node.get("match").map(|node| Arc::new(condition(node, self.callers, problems)));
        let queue = node.get("when_limited").and_then(|node| node.get("queue"));
        let queue = queue.and_then(|node| duration(node, problems));
        // An invalid rate was reported; building goes on to find further problems.
        let bounds = self.bounds(node, own, queue, problems).unwrap_or(Bounds::PerTier(Vec::new()));
        let statuses = node.get("refund").map_or(&[][..], Node::items);
        let on_failure = node.get("on_store_failure").and_then(failure_mode);
        let message = node.get("message").and_then(|node| response::message(node, problems));
        let rule = Arc::new(LimitRule {
            id: self.limits.len(),
            name: own.into(),
            conditions: on_group.into_iter().chain(on).collect(),
            group,
            per: self.callers.per(node.get("per"), problems),
            bounds,
            cost: cost_rule(node.get("cost"), self.callers, problems),
            overdraft: limit_overdraft(node, problems),
            mode: mode(node.get("mode"), own, problems),
            on_failure: on_failure.unwrap_or(self.on_failure),
            when_limited: when_limited(node.get("when_limited"), problems),
            refund: statuses.iter().filter_map(|node| status(node, problems)).collect(),
            message,
            line: node.span.line,
        });
        self.limits.push(WrittenLimit { node, rule });
    }

    /// Returns the limit's name; empty if it is missing or invalid, so that other checks go on.
    fn name<'n>(&mut self, node: Option<&'n Node>, problems: &mut Problems) -> &'n str {
        let Some(node) = node else { return "" };
        let Some(own) = name(node, "a limit", problems) else { return "" };
        if let Some(line) = self.lines.insert(own.to_string(), node.span.line) {
            let why = format!(
                "\"{own}\" is also the name of the limit in line {line}; names must be unique"
            );
            problems.report(node.span, why);
        }
        own
    }

    /// Returns the amount for each tier.
    fn bounds(
        &self,
        limit: &Node,
        own: &str,
        queue: Option<Duration>,
        problems: &mut Problems,
    ) -> Option<Bounds> {
        let node = limit.get("rate").or(limit.get("concurrency"))?;
        let amount = |node: &Node, problems: &mut Problems| match limit.get("rate") {
            Some(_) => {
                rate(node, limit, queue, problems).map(|limit| Amount::Rate(limit.named(own)))
            }
            None => concurrency(node, problems)
                .map(|rule| Amount::Concurrency { name: own.into(), rule }),
        };
        let by_tier = match &node.value {
            Value::Map(entries) if !is_concurrency(node) => Some(entries),
            _ => None,
        };
        let Some(entries) = by_tier else {
            if node.text() == Some("unlimited") {
                let why =
                    "a limit cannot be unlimited for all tiers; remove it, or set \"mode: off\"";
                problems.report(node.span, why);
                return None;
            }
            let amount = amount(node, problems)?;
            return Some(Bounds::Same(self.bound(amount, limit, None, problems)));
        };
        let tiers = self.callers.tiers.as_ref().map_or(&[][..], |tiers| &tiers.names);
        let mut bounds: Vec<Option<Bound>> = tiers.iter().map(|_| None).collect();
        let mut is_set = vec![false; tiers.len()];
        for (key, value) in entries {
            let Some(tier) = self.callers.tier(key, problems) else {
                // A misspelled tier is not missing too.
                let names = tiers.iter().map(String::as_str);
                let meant = closest(key.text().unwrap_or_default(), names);
                let meant = tiers.iter().position(|name| Some(name.as_str()) == meant);
                meant.into_iter().for_each(|tier| is_set[tier] = true);
                continue;
            };
            is_set[tier] = true;
            if value.text() != Some("unlimited") {
                let amount = amount(value, problems);
                bounds[tier] = amount.map(|amount| self.bound(amount, limit, Some(key), problems));
            }
        }
        let unset: Vec<_> = tiers
            .iter()
            .zip(&is_set)
            .filter(|(_, is_set)| !**is_set)
            .map(|(t, _)| t.as_str())
            .collect();
        if !unset.is_empty() {
            let names = unset.join(", ");
            problems.report(
                node.span,
                format!("no value for the tier {names}; use \"unlimited\" for no limit"),
            );
        }
        Some(Bounds::PerTier(bounds))
    }

    /// `tier` is the key of the tier that the amount is for, if it is not for all tiers.
    fn bound(
        &self,
        amount: Amount,
        limit: &Node,
        tier: Option<&Node>,
        problems: &mut Problems,
    ) -> Bound {
        let mut shares = Vec::new();
        for (key, value) in limit.get("shares").map_or(&[][..], Node::entries) {
            let class_id = class(key, self.classes, problems);
            let parts = percentage(value, problems);
            let (Some(class_id), Some(parts)) = (class_id, parts) else { continue };
            if parts == 0 {
                let why = "a share of 0% would deny all requests of the class; use more than 0%";
                problems.report(value.span, why);
            }
            match share(&amount, &self.classes[class_id], parts) {
                Ok(share) => shares.push((class_id, share)),
                Err(error) => problems.report(value.span, error.to_string()),
            }
        }
        let guarantees = match &amount {
            Amount::Rate(total) => self.guarantees(total, limit, tier, problems),
            Amount::Concurrency { .. } => None, // reported
        };
        Bound { amount, shares, guarantees: guarantees.map(Box::new) }
    }

    /// Returns what is guaranteed out of a total to priority classes and tiers.
    fn guarantees(
        &self,
        total: &Limit,
        limit: &Node,
        tier: Option<&Node>,
        problems: &mut Problems,
    ) -> Option<BoundGuarantees> {
        let node = limit.get("guarantees")?;
        let (mut classes, mut tiers, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for (key, value) in node.entries() {
            let name = key.text().unwrap_or_default();
            match self.holder(key, tier, problems) {
                Some(Holder::Class(id)) => classes.push((id, name)),
                Some(Holder::Tier(id)) => tiers.push((id, name)),
                None => continue,
            }
            match value.text().unwrap_or_default().parse::<Rate>() {
                Ok(rate) => rates.push((name, rate)),
                Err(error) => {
                    problems.report(problems.span_of(value, error.span()), error.message());
                }
            }
        }
        if rates.len() < node.entries().len() {
            return None; // reported
        }
        let guarantees = match Guarantees::new(total.clone(), rates) {
            Ok(guarantees) => guarantees,
            Err(error) => {
                let of = tier.and_then(Node::text);
                let of = of.map_or(String::new(), |tier| format!("for the tier {tier}, "));
                problems.report(node.span, format!("{of}{error}"));
                return None;
            }
        };
        let of = |(id, name): (usize, &str)| (id, guarantees.class(name));
        Some(BoundGuarantees {
            classes: classes.into_iter().map(of).collect(),
            tiers: tiers.into_iter().map(of).collect(),
            others: guarantees.borrowing(),
        })
    }

    /// Returns who has a guarantee: a priority class or, if there is none of this name, a tier.
    fn holder(
        &self,
        key: &Node,
        amount_of_tier: Option<&Node>,
        problems: &mut Problems,
    ) -> Option<Holder> {
        let tiers = self.callers.tiers.as_ref().map_or(&[][..], |tiers| &tiers.names);
        let is_class = self.classes.iter().any(|class| Some(class.as_str()) == key.text());
        let tier = tiers.iter().position(|tier| Some(tier.as_str()) == key.text());
        match tier.filter(|_| !is_class) {
            Some(_) if amount_of_tier.is_some() => {
                let why = "a tier has a guarantee only out of a rate that all tiers share";
                problems.report(key.span, why);
                None
            }
            Some(tier) => Some(Holder::Tier(tier)),
            None => class(key, self.classes, problems).map(Holder::Class),
        }
    }
}

/// Who has a guarantee: the index of a priority class or of a tier.
enum Holder {
    Class(usize),
    Tier(usize),
}

/// Reports fields that do not apply to a concurrency limit.
fn report_inapplicable(limit: &Node, problems: &mut Problems) {
    if limit.get("concurrency").is_none() || limit.get("rate").is_some() {
        return;
    }
    let queue =
        limit.get("when_limited").and_then(|node| node.get("queue")).map(|_| "when_limited");
    let unfit = ["algorithm", "count_rejected", "cost", "overdraft", "refund", "guarantees"]
        .into_iter()
        .chain(queue);
    for (key, _) in limit.entries() {
        if let Some(name) = unfit.clone().find(|name| key.text() == Some(name)) {
            let why = match name {
                "when_limited" => {
                    "for requests that wait, use concurrency: { max: 40, queue: { max: 100, wait: 500ms } }"
                }
                _ => "a concurrency limit counts each request as 1 while it is in flight",
            };
            problems.report(key.span, format!("\"{name}\" requires \"rate\": {why}"));
        }
    }
}

fn limit_overdraft(limit: &Node, problems: &mut Problems) -> Option<MaxDebt> {
    let node = limit.get("overdraft")?;
    let max_debt = overdraft(node, problems)?;
    if limit.get("when_limited").and_then(|node| node.get("queue")).is_some() {
        let why = "a queue has no overdraft: a request waits until it fits; remove one of them";
        problems.report(node.span, why);
    }
    Some(max_debt)
}

fn mode(node: Option<&Node>, own: &str, problems: &mut Problems) -> Mode {
    let Some(node) = node else { return Mode::Enforce };
    if let Some(part) = node.get("enforce") {
        return percentage(part, problems).map_or(Mode::Shadow, Mode::Ramp);
    }
    match node.text() {
        Some("shadow") => Mode::Shadow,
        Some("off") => {
            problems.warn(node.span, format!("\"{own}\" is off: it does not count requests"));
            Mode::Off
        }
        _ => Mode::Enforce,
    }
}

fn when_limited(node: Option<&Node>, problems: &mut Problems) -> LimitAction {
    let Some(node) = node else { return LimitAction::Reject };
    if node.get("queue").is_some() {
        return LimitAction::Queue;
    }
    let stale = node.get("serve_stale").and_then(|node| duration(node, problems));
    stale.map_or(LimitAction::Reject, LimitAction::ServeStale)
}

fn status(node: &Node, problems: &mut Problems) -> Option<StatusRange> {
    let text = node.text()?;
    let statuses = match text.strip_suffix("xx").map(str::parse::<u16>) {
        Some(Ok(hundred @ 1..=5)) => {
            Some(StatusRange { first: hundred * 100, last: hundred * 100 + 99 })
        }
        Some(_) => None,
        None => text
            .parse()
            .ok()
            .filter(|n| (100..600).contains(n))
            .map(|n| StatusRange { first: n, last: n }),
    };
    if statuses.is_none() {
        problems.report(
            node.span,
            format!("{} is not a status such as 304 or a class such as 5xx", quoted(text)),
        );
    }
    statuses
}
