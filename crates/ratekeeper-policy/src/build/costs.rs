//! Builds the costs of requests.

use ratekeeper_core::Cost;

use super::callers::Callers;
use super::conditions::condition;
use super::values::{cost, end_to_end_header, header_name, json_path};
use crate::problems::{Problems, quoted};
use crate::rule::CostRule;
use crate::usage::{Estimate, UsageCost, UsageFormat, Weight, Weights};
use crate::yaml::Node;

pub(super) fn cost_rule(
    node: Option<&Node>,
    callers: &Callers,
    problems: &mut Problems,
) -> CostRule {
    let Some(node) = node else { return CostRule::Fixed(Cost::ONE) };
    if let Some(cost) = cost(Some(node)) {
        return CostRule::Fixed(cost);
    }
    report_conflicts(node, problems);
    if let Some(usage) = node.get("usage") {
        return usage_cost(node, usage, problems);
    }
    let (default, max) = bounds(node, problems);
    if let Some(routes) = node.get("routes") {
        let routes = routes.items().iter().filter_map(|node| {
            Some((condition(node.get("match")?, callers, problems), cost(node.get("cost"))?))
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

/// Returns `default` and `max` of a cost or an estimate.
fn bounds(node: &Node, problems: &mut Problems) -> (Cost, Cost) {
    let default = cost(node.get("default")).unwrap_or(Cost::ONE);
    let max = cost(node.get("max")).unwrap_or(Cost::of(u64::from(u32::MAX)));
    if let Some(at) = node.get("default").filter(|_| default > max) {
        problems.report(at.span, "\"default\" is greater than \"max\"");
    }
    (default, max)
}

/// Reports fields that do not apply to this kind of cost.
fn report_conflicts(node: &Node, problems: &mut Problems) {
    let (is_routes, is_usage) = (node.get("routes").is_some(), node.get("usage").is_some());
    for (key, _) in node.entries() {
        let why = match key.text() {
            Some("max") if is_routes => {
                "\"max\" applies to costs from a header; the costs of routes are fixed"
            }
            Some("default" | "max") if is_usage => {
                "usage is charged in full; to bound what is charged before, set it in \"estimate\""
            }
            Some("estimate") if !is_usage => "an estimate requires \"usage\"; use \"default\"",
            Some("weights") if !is_usage => "weights require \"usage\"",
            _ => continue,
        };
        problems.report(key.span, why);
    }
}

fn usage_cost(node: &Node, usage: &Node, problems: &mut Problems) -> CostRule {
    let format = match usage.text() {
        Some("openai") => Some(UsageFormat::OpenAi),
        Some("anthropic") => Some(UsageFormat::Anthropic),
        _ => usage.get("json").and_then(|node| json_path(node, problems)).map(UsageFormat::Json),
    };
    let weights = node.get("weights").map(|node| weights(node, problems));
    if let (Some(UsageFormat::Json(_)), Some(node)) = (&format, node.get("weights")) {
        let why = "weights require \"usage: openai\" or \"usage: anthropic\", which state kinds of tokens";
        problems.report(node.span, why);
    }
    let estimate = estimate(node.get("estimate"), problems);
    match format {
        Some(format) => CostRule::Usage(Box::new(UsageCost { format, estimate, weights })),
        None => CostRule::Fixed(Cost::ONE),
    }
}

fn estimate(node: Option<&Node>, problems: &mut Problems) -> Estimate {
    let (default, max) = node.map_or((Cost::ONE, Cost::ONE), |node| bounds(node, problems));
    let fields = node.and_then(|node| node.get("request_json")).map_or(&[][..], Node::items);
    let request_json = fields.iter().filter_map(|node| json_path(node, problems)).collect();
    if let Some(at) = node.and_then(|node| node.get("max")).filter(|_| fields.is_empty()) {
        problems.report(at.span, "\"max\" requires \"request_json\"; \"default\" is fixed");
    }
    Estimate { request_json, default, max }
}

fn weights(node: &Node, problems: &mut Problems) -> Weights {
    let mut weight = |name: &str| node.get(name).and_then(|node| weight(node, problems));
    let input = weight("input").unwrap_or(Weight::ONE);
    Weights {
        input,
        cached: weight("cached").unwrap_or(input),
        cache_write: weight("cache_write").unwrap_or(input),
        output: weight("output").unwrap_or(Weight::ONE),
    }
}

fn weight(node: &Node, problems: &mut Problems) -> Option<Weight> {
    let text = node.text()?;
    text.parse()
        .map_err(|error| {
            problems.report(node.span, format!("{} is no weight: {error}", quoted(text)));
        })
        .ok()
}
