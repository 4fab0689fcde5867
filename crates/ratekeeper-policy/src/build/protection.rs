//! Builds concurrency limits with their queues, and load shedding.

use std::time::Duration;

use ratekeeper_control::adaptive::{AdaptiveAlgorithm, Bounds};
use ratekeeper_control::{Class, QueueOrder, Shedder, ShedderConfig};
use sha2::{Digest, Sha256};

use super::callers::Callers;
use super::conditions::Priorities;
use super::values::{boolean, duration, integer, whole_percentage};
use crate::format::CONCURRENCY_SECTION;
use crate::problems::Problems;
use crate::protection::{AdaptiveRule, ConcurrencyRule, Permits, QueueRule, SheddingRule};
use crate::yaml::Node;

/// The longest wait in a queue that is plausible.
const QUEUE_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Whether this is a concurrency, and not a map with one for each tier.
pub(super) fn is_concurrency(node: &Node) -> bool {
    CONCURRENCY_SECTION.is_meant(node)
}

/// Builds a number of permits, or a section of a concurrency.
pub(super) fn concurrency(node: &Node, problems: &mut Problems) -> Option<ConcurrencyRule> {
    if let Some(max) = integer(node) {
        return Some(ConcurrencyRule::fixed(max));
    }
    let queue = node.get("queue").map(|node| queue(node, problems));
    let permits = match node.get("adaptive") {
        Some(node) => Permits::Adaptive(adaptive(node, problems)?),
        None => Permits::Fixed(node.get("max").and_then(integer)?),
    };
    Some(ConcurrencyRule { permits, queue: queue.flatten() })
}

fn queue(node: &Node, problems: &mut Problems) -> Option<QueueRule> {
    let max = node.get("max").and_then(integer).and_then(|max| usize::try_from(max).ok());
    let wait = node.get("wait").and_then(|node| {
        let wait = duration(node, problems)?;
        if wait > QUEUE_WAIT_MAX {
            problems.report(node.span, format!("{wait:?} is too long to wait; use at most 1h"));
        }
        Some(wait)
    });
    let order = match node.get("order").and_then(Node::text) {
        Some("adaptive_lifo") => QueueOrder::AdaptiveLifo,
        _ => QueueOrder::Fifo,
    };
    Some(QueueRule { max: max?, wait: wait?, order })
}

fn adaptive(node: &Node, problems: &mut Problems) -> Option<AdaptiveRule> {
    if boolean(node) == Some(false) {
        problems.report(
            node.span,
            "omit this field instead of setting it to false; use \"max\" for a fixed number",
        );
        return None;
    }
    let algorithm = node.get("algorithm").and_then(Node::text);
    let algorithm = algorithm.and_then(AdaptiveAlgorithm::of_name).unwrap_or_default();
    let target = node.get("target").and_then(|node| duration(node, problems));
    Some(AdaptiveRule { algorithm, bounds: bounds(node, problems)?, target })
}

fn bounds(node: &Node, problems: &mut Problems) -> Option<Bounds> {
    let get = |name: &str| node.get(name).and_then(integer).and_then(|n| u32::try_from(n).ok());
    let default = Bounds::DEFAULT;
    let min = get("min").unwrap_or(default.min());
    let max = get("max").unwrap_or(default.max().max(min));
    if min > max {
        let node = node.get("min").unwrap_or(node);
        problems.report(
            node.span,
            format!("the minimum, {min}, is above the maximum, {max}; use at most {max}"),
        );
        return None;
    }
    if min == max {
        let why = format!(
            "the limit cannot adapt between {min} and {max}; use \"max: {max}\" instead of \"adaptive\", or other bounds"
        );
        problems.warn(node.span, why);
    }
    let initial = get("initial").unwrap_or(default.initial().clamp(min, max));
    if !(min..=max).contains(&initial) {
        let node = node.get("initial").unwrap_or(node);
        problems.report(
            node.span,
            format!("the first limit, {initial}, is outside of the bounds; use {min} to {max}"),
        );
        return None;
    }
    Bounds::new(min, initial, max).ok()
}

/// Builds load shedding, and checks that the priority classes can be shed in order.
pub(super) fn shedding(
    root: &Node,
    priorities: &Priorities,
    callers: &Callers,
    problems: &mut Problems,
) -> Option<SheddingRule> {
    let Some(node) = root.get("shedding") else {
        warn_of_reserved(root, problems);
        return None;
    };
    let classes = &priorities.names;
    let Ok(count @ 1..=16) = u8::try_from(classes.len()) else {
        let why = match classes.len() {
            0 => "there are no priority classes to shed; add \"priorities\"".into(),
            n => format!("{n} priority classes cannot be shed in order; use at most 16"),
        };
        problems.report(node.span, why);
        return None;
    };
    if priorities.other.is_none() {
        let priorities = root.get("priorities").unwrap_or(node);
        let why = "shedding needs a class for all other requests: add one without a match, such as \
                   \"- { class: normal }\", at its place in the order";
        problems.report(priorities.span, why);
    }
    if let [only] = &classes[..] {
        problems.warn(node.span, format!("all requests are in the class {only}, so no request is shed before another; add a class"));
    }
    let mut config = ShedderConfig::DEFAULT.with_classes(count);
    for (class, percent) in priorities.reserved.iter().enumerate() {
        let Some(percent) = percent else { continue };
        config = config.with_reserved_percent(Class::new(class as u8), *percent);
    }
    let mut time = |name: &str| node.get(name).and_then(|node| duration(node, problems));
    if let Some(target) = time("queue_time") {
        config = config.with_queue_target(target);
    }
    if let Some(interval) = time("interval") {
        config = config.with_interval(interval);
    }
    if let Some(rotation) = time("rotation") {
        config = config.with_rotation(rotation);
    }
    let utilization = node.get("utilization").and_then(|node| whole_percentage(node, problems));
    if let Some(percent) = utilization {
        config = config.with_utilization_target_percent(percent);
    }
    if let Some(text) = node.get("seed").and_then(Node::text) {
        config = config.with_seed(seed(text));
    }
    let per = callers.user(node.get("per"), problems);
    if let Err(error) = Shedder::new(config) {
        problems.report(node.span, error.to_string());
    }
    Some(SheddingRule { config, per })
}

/// Returns the bits of a secret text.
fn seed(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

/// Warns of reserved shares without `shedding`.
fn warn_of_reserved(root: &Node, problems: &mut Problems) {
    let priorities = root.get("priorities").map_or(&[][..], Node::items);
    for node in priorities.iter().filter_map(|node| node.get("reserved")) {
        let why = "this has no effect without a \"shedding\" section: nothing is shed";
        problems.warn(node.span, why);
    }
}
