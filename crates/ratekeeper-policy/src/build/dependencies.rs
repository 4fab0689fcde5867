//! Builds dependencies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_control::{Backoff, Breaker, BreakerConfig, Jitter, Probes, SlidingWindow};
use ratekeeper_core::{Algorithm, Limit, Rate, parse_duration};

use super::callers::Callers;
use super::conditions::condition;
use super::limits::WrittenLimit;
use super::protection::concurrency;
use super::values::{boolean, duration, integer, name, whole_percentage};
use crate::problems::{Problems, quoted};
use crate::protection::{ConcurrencyRule, DependencyRule};
use crate::yaml::{Node, Span};

/// Maximum number of dependencies. It bounds the cardinality of metrics.
const DEPENDENCIES_MAX: usize = 100;

pub(super) fn dependencies(
    root: &Node,
    callers: &Callers,
    limits: &[WrittenLimit<'_>],
    problems: &mut Problems,
) -> Vec<Arc<DependencyRule>> {
    let entries = root.get("dependencies").map_or(&[][..], Node::entries);
    if let Some((key, _)) = entries.get(DEPENDENCIES_MAX) {
        let why = format!("a policy has at most {DEPENDENCIES_MAX} dependencies");
        problems.report(key.span, why);
    }
    let lines: HashMap<&str, Span> =
        limits.iter().map(|limit| (limit.rule.name(), limit.span())).collect();
    let mut dependencies = Vec::new();
    for (key, node) in entries.iter().take(DEPENDENCIES_MAX) {
        let own = name(key, "a dependency", problems).unwrap_or_default();
        if let Some(limit) = lines.get(own) {
            let line = limit.line;
            let why = format!(
                "\"{own}\" is also the name of the limit in line {line}; names must be unique"
            );
            problems.report(key.span, why);
        }
        let id = dependencies.len();
        dependencies.push(Arc::new(dependency(id, own, key, node, callers, problems)));
    }
    dependencies
}

fn dependency(
    id: usize,
    own: &str,
    key: &Node,
    node: &Node,
    callers: &Callers,
    problems: &mut Problems,
) -> DependencyRule {
    if ["rate", "concurrency", "breaker"].iter().all(|part| node.get(part).is_none()) {
        let why = format!(
            "{} is not protected: it needs a rate, a concurrency or a breaker",
            quoted(own)
        );
        problems.report(key.span, why);
    }
    if let (Some(on), Some(_)) = (node.get("match"), node.get("per")) {
        let why =
            "a dependency per upstream protects all requests to it; remove \"match\", or \"per\"";
        problems.report(on.span, why);
    }
    let concurrency_node = node.get("concurrency");
    let dependency = DependencyRule {
        id,
        name: own.into(),
        on: node.get("match").map(|node| condition(node, callers, problems)),
        is_per_upstream: node.get("per").is_some(),
        rate: node.get("rate").and_then(|node| rate(node, own, problems)),
        concurrency: concurrency_node.and_then(|node| concurrency(node, problems)),
        breaker: node.get("breaker").and_then(|node| breaker(node, problems)),
    };
    if let (Some(node), Some(rate), Some(concurrency)) =
        (concurrency_node, &dependency.rate, dependency.concurrency)
    {
        warn_of_long_queue(node, rate, concurrency, problems);
    }
    dependency
}

fn rate(node: &Node, own: &str, problems: &mut Problems) -> Option<Limit> {
    let text = node.text()?;
    let rate: Rate = match text.parse() {
        Ok(rate) => rate,
        Err(_) if text == "unlimited" => {
            problems.report(node.span, "a dependency without a rate has no \"rate\"; remove it");
            return None;
        }
        Err(error) => {
            problems.report(problems.span_of(node, error.span()), error.message());
            return None;
        }
    };
    let limit = Limit::new(rate, Algorithm::default_for(&rate));
    limit
        .map(|limit| limit.named(own))
        .map_err(|error| problems.report(node.span, error.to_string()))
        .ok()
}

/// Warns of a queue that can never be full, because the rate admits fewer calls within the wait.
fn warn_of_long_queue(
    node: &Node,
    limit: &Limit,
    concurrency: ConcurrencyRule,
    problems: &mut Problems,
) {
    let (Some(queue), rate) = (concurrency.queue, limit.rate()) else { return };
    let within =
        queue.wait.as_micros() * u128::from(rate.count()) / rate.period().as_micros().max(1);
    let admitted = within + u128::from(limit.quota());
    if queue.max as u128 > admitted {
        let (max, wait) = (queue.max, queue.wait);
        let why = format!(
            "a queue of {max} is never full: the rate admits at most {admitted} calls within {wait:?}"
        );
        let max = node.get("queue").and_then(|queue| queue.get("max"));
        problems.warn(max.unwrap_or(node).span, why);
    }
}

/// Builds the settings of a breaker: the thresholds that are written or, if none is, the default.
fn breaker(node: &Node, problems: &mut Problems) -> Option<BreakerConfig> {
    if boolean(node) == Some(false) {
        problems.report(node.span, "omit this field instead of setting it to false");
        return None;
    }
    let mut config = thresholds(node, BreakerConfig::DEFAULT, problems)?;
    if let Some(node) = node.get("window") {
        config = config.with_window(window(node, problems)?);
    }
    if let Some(calls) = node.get("minimum_calls").and_then(integer) {
        config = config.with_minimum_calls(saturated(calls));
    } else if let Some(calls) = node.get("window").and_then(calls) {
        config = config.with_minimum_calls(saturated(calls).min(20));
    }
    if let Some(node) = node.get("wait") {
        config = config.with_wait(wait(node, problems)?);
    }
    if let Some(node) = node.get("probes") {
        let ramp =
            node.get("ramp").and_then(integer).map(|max| Probes::Ramp { max: saturated(max) });
        let fixed = || integer(node).map(|calls| Probes::Fixed(saturated(calls)));
        config = config.with_probes(ramp.or_else(fixed)?);
    }
    if let Some(node) = node.get("probe_timeout") {
        config = config.with_probe_timeout(duration(node, problems)?);
    }
    match Breaker::new(config) {
        Ok(_) => Some(config),
        Err(error) => {
            problems.report(node.span, error.to_string());
            None
        }
    }
}

fn thresholds(
    node: &Node,
    default: BreakerConfig,
    problems: &mut Problems,
) -> Option<BreakerConfig> {
    let (slow, failures) = (node.get("slow_calls"), node.get("consecutive_failures"));
    let mut config = default;
    match node.get("failure_rate") {
        Some(node) => config = config.with_failure_rate(whole_percentage(node, problems)?.into()),
        None if slow.or(failures).is_some() => config = config.without_failure_rate(),
        None => {}
    }
    if let Some(node) = slow {
        let rate = whole_percentage(node.get("rate")?, problems)?;
        let longer_than = duration(node.get("longer_than")?, problems)?;
        config = config.with_slow_calls(longer_than, rate.into());
    }
    if let Some(failures) = failures.and_then(integer) {
        config = config.with_consecutive_failures(saturated(failures));
    }
    Some(config)
}

/// Parses a number of calls or a duration.
fn window(node: &Node, problems: &mut Problems) -> Option<SlidingWindow> {
    if let Some(calls) = calls(node) {
        return Some(SlidingWindow::Calls(saturated(calls)));
    }
    let text = node.text()?;
    let time = parse_duration(text).ok().map(SlidingWindow::Time);
    if time.is_none() {
        let why = format!("{} is not a window such as 100 calls or 30s", quoted(text));
        problems.report(node.span, why);
    }
    time
}

/// Parses `100 calls`.
fn calls(node: &Node) -> Option<u64> {
    let text = node.text()?;
    let number = text.strip_suffix("calls").or_else(|| text.strip_suffix("call"))?;
    number.trim_end().parse().ok()
}

fn wait(node: &Node, problems: &mut Problems) -> Option<Backoff> {
    let max_of_default = Duration::from_secs(60);
    let (first, max) = match (node.get("first"), node.get("max")) {
        (Some(first), Some(max_node)) => {
            let first = duration(first, problems)?;
            let max = duration(max_node, problems)?;
            if max < first {
                let why = format!("the longest wait, {max:?}, is below the first, {first:?}");
                problems.report(max_node.span, why);
            }
            (first, max)
        }
        _ => {
            let first = duration(node, problems)?;
            (first, max_of_default.max(first))
        }
    };
    Some(Backoff::new(first, max).with_jitter(Jitter::Equal))
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
