//! The limits themselves.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Cost, FailureMode};

use super::amounts::{rate, share};
use super::answers;
use super::callers::Callers;
use super::conditions::{class, condition};
use super::values::{
    cost, duration, end_to_end_header, header_name, integer, name, percentage, when_down,
};
use crate::condition::Condition;
use crate::problems::{Problems, quoted};
use crate::rule::{Amount, Bound, Bounds, CostRule, LimitRule, Mode, Statuses, WhenLimited};
use crate::yaml::{Node, Value};

/// More than anybody writes, and few enough to be counted each in metrics.
const LIMITS_MAX: usize = 10_000;

struct Builder<'a> {
    callers: &'a Callers,
    classes: &'a [String],
    when_down: FailureMode,
    lines: HashMap<String, usize>,
    limits: Vec<Arc<LimitRule>>,
}

pub(super) fn limits(
    root: &Node,
    callers: &Callers,
    classes: &[String],
    when_down: FailureMode,
    problems: &mut Problems,
) -> Vec<Arc<LimitRule>> {
    let (lines, limits) = (HashMap::new(), Vec::new());
    let mut builder = Builder { callers, classes, when_down, lines, limits };
    let entries = root.get("limits").map_or(&[][..], Node::items);
    for (group, node) in entries.iter().enumerate() {
        builder.entry(group, node, problems);
    }
    if builder.limits.len() > LIMITS_MAX {
        problems.report(root.span, format!("a policy has at most {LIMITS_MAX} limits"));
    }
    builder.limits
}

impl Builder<'_> {
    fn entry(&mut self, group: usize, node: &Node, problems: &mut Problems) {
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
        node: &Node,
        on_group: Option<Arc<Condition>>,
        group: Option<usize>,
        problems: &mut Problems,
    ) {
        let own = self.name(node.get("name"), problems);
        report_unfit(node, problems);
        let on = node.get("match").map(|node| Arc::new(condition(node, self.callers, problems)));
        let queue = node.get("when_limited").and_then(|node| node.get("queue"));
        let queue = queue.and_then(|node| duration(node, problems));
        // A policy with a rate that is none is never used, but what else is wrong is told with it.
        let bounds = self.bounds(node, own, queue, problems).unwrap_or(Bounds::PerTier(Vec::new()));
        let statuses = node.get("refund").map_or(&[][..], Node::items);
        let down = node.get("when_store_down").and_then(when_down);
        let message = node.get("message").and_then(|node| answers::message(node, problems));
        self.limits.push(Arc::new(LimitRule {
            id: self.limits.len(),
            name: own.into(),
            conditions: on_group.into_iter().chain(on).collect(),
            group,
            per: self.callers.per(node.get("per"), problems),
            bounds,
            cost: self.cost(node.get("cost"), problems),
            mode: mode(node.get("mode"), own, problems),
            when_down: down.unwrap_or(self.when_down),
            when_limited: when_limited(node.get("when_limited"), problems),
            refund: statuses.iter().filter_map(|node| status(node, problems)).collect(),
            message,
        }));
    }

    /// The limit's own name. Without one, what else is wrong with it is still looked for.
    fn name<'n>(&mut self, node: Option<&'n Node>, problems: &mut Problems) -> &'n str {
        let Some(node) = node else { return "" };
        let Some(own) = name(node, "a limit", problems) else { return "" };
        if let Some(line) = self.lines.insert(own.to_string(), node.span.line) {
            let why = format!(
                "\"{own}\" is the name of another limit, in line {line}; their counts would mix"
            );
            problems.report(node.span, why);
        }
        own
    }

    /// How much for each tier.
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
            None => integer(node).map(|max| Amount::Concurrency { name: own.into(), max }),
        };
        let Value::Map(entries) = &node.value else {
            if node.text() == Some("unlimited") {
                let why = "a limit without a limit; leave it out, or set \"mode: off\"";
                problems.report(node.span, why);
                return None;
            }
            let amount = amount(node, problems)?;
            return Some(Bounds::Same(self.bound(amount, limit, problems)));
        };
        let tiers = self.callers.tiers.as_ref().map_or(&[][..], |tiers| &tiers.names);
        let mut bounds: Vec<Option<Bound>> = tiers.iter().map(|_| None).collect();
        let mut is_told = vec![false; tiers.len()];
        for (key, value) in entries {
            let Some(tier) = self.callers.tier(key, problems) else { continue };
            is_told[tier] = true;
            if value.text() != Some("unlimited") {
                let amount = amount(value, problems);
                bounds[tier] = amount.map(|amount| self.bound(amount, limit, problems));
            }
        }
        let untold: Vec<_> = tiers
            .iter()
            .zip(&is_told)
            .filter(|(_, told)| !**told)
            .map(|(t, _)| t.as_str())
            .collect();
        if !untold.is_empty() {
            let names = untold.join(", ");
            problems.report(
                node.span,
                format!("no value for the tier {names}; say \"unlimited\" if that is meant"),
            );
        }
        Some(Bounds::PerTier(bounds))
    }

    fn bound(&self, amount: Amount, limit: &Node, problems: &mut Problems) -> Bound {
        let mut shares = Vec::new();
        for (key, value) in limit.get("shares").map_or(&[][..], Node::entries) {
            let class_id = class(key, self.classes, problems);
            let parts = percentage(value, problems);
            let (Some(class_id), Some(parts)) = (class_id, parts) else { continue };
            if parts == 0 {
                let why = "a share of 0% would refuse all of them; the least is one request";
                problems.report(value.span, why);
            }
            match share(&amount, &self.classes[class_id], parts) {
                Ok(share) => shares.push((class_id, share)),
                Err(why) => problems.report(value.span, why),
            }
        }
        Bound { amount, shares }
    }

    fn cost(&self, node: Option<&Node>, problems: &mut Problems) -> CostRule {
        let Some(node) = node else { return CostRule::Fixed(Cost::ONE) };
        if let Some(cost) = cost(Some(node)) {
            return CostRule::Fixed(cost);
        }
        let default = cost(node.get("default")).unwrap_or(Cost::ONE);
        let max = cost(node.get("max")).unwrap_or(Cost::of(u64::from(u32::MAX)));
        if let Some(at) = node.get("max").filter(|_| node.get("routes").is_some()) {
            problems.report(at.span, "\"max\" bounds what a header says; these costs are fixed");
        } else if let Some(at) = node.get("default").filter(|_| default > max) {
            problems.report(at.span, "the default is more than \"max\"");
        }
        if let Some(routes) = node.get("routes") {
            let routes = routes.items().iter().filter_map(|node| {
                Some((
                    condition(node.get("match")?, self.callers, problems),
                    cost(node.get("cost"))?,
                ))
            });
            return CostRule::Routes { routes: routes.collect(), default };
        }
        let request = node.get("request_header").and_then(|node| end_to_end_header(node, problems));
        if let Some(name) = request {
            return CostRule::RequestHeader { name, default, max };
        }
        match node.get("response_header").and_then(|node| header_name(node, problems)) {
            Some(name) => CostRule::ResponseHeader { name, default, max },
            None => CostRule::Fixed(default),
        }
    }
}

/// What is said of a limit that it cannot keep.
fn report_unfit(limit: &Node, problems: &mut Problems) {
    if limit.get("concurrency").is_none() || limit.get("rate").is_some() {
        return;
    }
    let queue =
        limit.get("when_limited").and_then(|node| node.get("queue")).map(|_| "when_limited");
    let unfit = ["algorithm", "count_rejected", "cost", "refund"].into_iter().chain(queue);
    for (key, _) in limit.entries() {
        if let Some(name) = unfit.clone().find(|name| key.text() == Some(name)) {
            let why = "requests at a time count 1 each, for as long as they take";
            problems.report(key.span, format!("this \"{name}\" goes with a rate: {why}"));
        }
    }
}

fn mode(node: Option<&Node>, own: &str, problems: &mut Problems) -> Mode {
    let Some(node) = node else { return Mode::Enforce };
    if let Some(part) = node.get("enforce") {
        return percentage(part, problems).map_or(Mode::Shadow, Mode::Ramp);
    }
    match node.text() {
        Some("shadow") => Mode::Shadow,
        Some("off") => {
            problems.warn(node.span, format!("\"{own}\" is off: it does not even count"));
            Mode::Off
        }
        _ => Mode::Enforce,
    }
}

fn when_limited(node: Option<&Node>, problems: &mut Problems) -> WhenLimited {
    let Some(node) = node else { return WhenLimited::Reject };
    if node.get("queue").is_some() {
        return WhenLimited::Queue;
    }
    let stale = node.get("serve_stale").and_then(|node| duration(node, problems));
    stale.map_or(WhenLimited::Reject, WhenLimited::ServeStale)
}

fn status(node: &Node, problems: &mut Problems) -> Option<Statuses> {
    let text = node.text()?;
    let statuses = match text.strip_suffix("xx").map(str::parse::<u16>) {
        Some(Ok(hundred @ 1..=5)) => {
            Some(Statuses { first: hundred * 100, last: hundred * 100 + 99 })
        }
        Some(_) => None,
        None => text
            .parse()
            .ok()
            .filter(|n| (100..600).contains(n))
            .map(|n| Statuses { first: n, last: n }),
    };
    if statuses.is_none() {
        problems.report(
            node.span,
            format!("{} is no status such as 304, and no class such as 5xx", quoted(text)),
        );
    }
    statuses
}
