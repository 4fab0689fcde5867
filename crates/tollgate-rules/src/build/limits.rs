//! The limits themselves.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Algorithm, Cost, Limit, LimitError, Rate, WhenDown};

use super::answers;
use super::callers::Callers;
use super::conditions::{class, condition};
use super::values::{boolean, cost, duration, header_name, integer, name, percentage, when_down};
use crate::condition::Condition;
use crate::problems::Problems;
use crate::rule::{Amount, Bound, Bounds, CostRule, LimitRule, Mode, Statuses, WhenLimited};
use crate::yaml::{Node, Value};

/// More than anybody writes, and few enough to be counted each in metrics.
const LIMITS_MAX: usize = 10_000;

struct Builder<'a> {
    callers: &'a Callers,
    classes: &'a [String],
    when_down: WhenDown,
    lines: HashMap<String, usize>,
    limits: Vec<Arc<LimitRule>>,
}

pub(super) fn limits(
    root: &Node,
    callers: &Callers,
    classes: &[String],
    when_down: WhenDown,
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
        let Some(name_node) = node.get("name") else { return };
        let Some(own) = name(name_node, "a limit", problems) else { return };
        if let Some(line) = self.lines.insert(own.to_string(), name_node.span.line) {
            let why = format!(
                "\"{own}\" is the name of another limit, in line {line}; their counts would mix"
            );
            problems.report(name_node.span, why);
        }
        let on = node.get("match").map(|node| Arc::new(condition(node, self.callers, problems)));
        let queue = node.get("when_limited").and_then(|node| node.get("queue"));
        let queue = queue.and_then(|node| duration(node, problems));
        let Some(bounds) = self.bounds(node, own, queue, problems) else { return };
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
            mode: mode(node.get("mode"), problems),
            when_down: down.unwrap_or(self.when_down),
            when_limited: when_limited(node.get("when_limited"), problems),
            refund: statuses.iter().filter_map(|node| status(node, problems)).collect(),
            message,
        }));
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
                problems.report(
                    node.span,
                    "a limit without a limit; leave it out, or set \"mode: off\"",
                );
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
        if let Some(routes) = node.get("routes") {
            let routes = routes.items().iter().filter_map(|node| {
                Some((
                    condition(node.get("match")?, self.callers, problems),
                    cost(node.get("cost"))?,
                ))
            });
            return CostRule::Routes { routes: routes.collect(), default };
        }
        let request = node.get("request_header").and_then(|node| header_name(node, problems));
        if let Some(name) = request {
            return CostRule::RequestHeader { name, default, max };
        }
        match node.get("response_header").and_then(|node| header_name(node, problems)) {
            Some(name) => CostRule::ResponseHeader { name, default, max },
            None => CostRule::Fixed(default),
        }
    }
}

fn rate(
    node: &Node,
    limit: &Node,
    queue: Option<Duration>,
    problems: &mut Problems,
) -> Option<Limit> {
    let text = node.text()?;
    let mut rate: Rate = match text.parse() {
        Ok(rate) => rate,
        Err(error) => {
            let error: tollgate_core::RateError = error;
            problems.report(node.span_of(error.span()), error.message());
            return None;
        }
    };
    let algorithm = algorithm(limit, rate, queue.is_some(), problems)?;
    if let Some(queue) = queue {
        rate = match queue_of(rate, queue) {
            Ok(rate) => rate,
            Err(why) => {
                problems.report(node.span, why);
                return None;
            }
        };
    }
    let counts_rejected = limit.get("count_rejected").and_then(boolean) == Some(true);
    let made = Limit::new(rate, algorithm);
    let made =
        made.and_then(|limit| if counts_rejected { limit.count_rejected() } else { Ok(limit) });
    made.map_err(|error| problems.report(node.span, error.to_string())).ok()
}

fn algorithm(
    limit: &Node,
    rate: Rate,
    is_queue: bool,
    problems: &mut Problems,
) -> Option<Algorithm> {
    let told = limit.get("algorithm");
    let named = told.and_then(Node::text).map(str::parse::<Algorithm>);
    let algorithm = match named {
        Some(Ok(algorithm)) => algorithm,
        Some(Err(_)) => return None,
        None if is_queue => Algorithm::LeakyBucket,
        None if rate.burst().is_some() => Algorithm::TokenBucket,
        None => Algorithm::default(),
    };
    if let Some(told) = told
        && is_queue
        && algorithm != Algorithm::LeakyBucket
    {
        problems.report(told.span, format!("{algorithm} has no queue; use leaky_bucket"));
    }
    Some(algorithm)
}

/// A bucket as long as what leaves it in that time.
fn queue_of(rate: Rate, up_to: Duration) -> Result<Rate, String> {
    let (count, period) = (u128::from(rate.count()), rate.period().as_micros());
    let room = up_to.as_micros() * count / period;
    let room = u64::try_from(room).unwrap_or(u64::MAX);
    match rate.burst() {
        Some(burst) if burst <= room => Ok(rate),
        Some(burst) => Err(format!(
            "a queue of {burst} takes longer than {up_to:?} to leave; use a burst of at most {room}, or leave it out"
        )),
        None => rate.with_burst(room.max(1)).map_err(|error| error.message().to_string()),
    }
}

/// What a class may take of an amount: its part of it, but at least one.
fn share(amount: &Amount, class: &str, parts: u16) -> Result<Amount, String> {
    let part = |n: u64| (u128::from(n) * u128::from(parts) / 10_000).try_into().unwrap_or(u64::MAX);
    match amount {
        Amount::Concurrency { name, max } => {
            let name = format!("{name}~{class}").into();
            Ok(Amount::Concurrency { name, max: part(*max).max(1) })
        }
        Amount::Rate(limit) => {
            let made =
                share_rate(limit, parts).and_then(|rate| Limit::new(rate, limit.algorithm()));
            let made = made.map_err(|error| error.to_string())?;
            Ok(Amount::Rate(made.named(&format!("{}~{class}", limit.name()))))
        }
    }
}

fn share_rate(limit: &Limit, parts: u16) -> Result<Rate, LimitError> {
    let (rate, parts) = (limit.rate(), u64::from(parts.max(1)));
    let part = |n: u64| (n.saturating_mul(parts) / 10_000).max(1);
    if !limit.algorithm().has_burst() {
        return Ok(Rate::new(part(rate.count()), rate.period())?);
    }
    // Exactly the part, as a longer period; rounded down only if that cannot be told.
    let common = gcd(parts, 10_000);
    let period = rate.period().checked_mul(u32::try_from(10_000 / common).unwrap_or(1));
    let exact = period.and_then(|period| Rate::new(rate.count() * (parts / common), period).ok());
    let slower = exact.map_or_else(|| Rate::new(part(rate.count()), rate.period()), Ok)?;
    Ok(slower.with_burst(part(limit.quota()))?)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn mode(node: Option<&Node>, problems: &mut Problems) -> Mode {
    let Some(node) = node else { return Mode::Enforce };
    if let Some(part) = node.get("enforce") {
        return percentage(part, problems).map_or(Mode::Shadow, Mode::Ramp);
    }
    match node.text() {
        Some("shadow") => Mode::Shadow,
        Some("off") => Mode::Off,
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
            format!("\"{text}\" is no status such as 304, and no class such as 5xx"),
        );
    }
    statuses
}
