//! The cost of a request by its usage: estimated before, and known afterwards.

use ratekeeper_core::Cost;

use super::{TokenUsage, UsageFormat, Weights};
use crate::context::RequestContext;
use crate::json_fields::JsonPath;

/// How the usage of a request is charged.
#[derive(Debug)]
pub(crate) struct UsageCost {
    pub(crate) format: UsageFormat,
    pub(crate) estimate: Estimate,
    /// Without weights, every token costs 1.
    pub(crate) weights: Option<Weights>,
}

/// What a request is charged until its usage is known.
#[derive(Debug)]
pub(crate) struct Estimate {
    /// Fields of the request that state the maximum number of output tokens.
    pub(crate) request_json: Vec<JsonPath>,
    pub(crate) default: Cost,
    pub(crate) max: Cost,
}

impl UsageCost {
    /// Returns the cost of this usage.
    pub(crate) fn of(&self, usage: &TokenUsage) -> u64 {
        self.weights.map_or(usage.total(), |weights| weights.cost(usage))
    }

    /// Returns the estimate for a request: the largest number in the fields, as output tokens.
    pub(crate) fn estimate(&self, context: &RequestContext<'_, '_>) -> Cost {
        let Estimate { request_json, default, max } = &self.estimate;
        let numbers = request_json.iter().map(|path| largest_number(context, path));
        let tokens = numbers.max().flatten();
        let cost = |tokens| self.weights.map_or(tokens, |weights| weights.output_cost(tokens));
        tokens.map(cost).and_then(Cost::new).map_or(*default, |cost| cost.min(*max))
    }
}

/// Returns the largest whole number of a field that a client may have sent several times.
fn largest_number(context: &RequestContext<'_, '_>, path: &JsonPath) -> Option<u64> {
    let values = context.json(path);
    let numbers = values.known.iter().filter_map(|value| {
        let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let number = || std::str::from_utf8(value).ok()?.parse().ok();
        is_number.then(|| number().unwrap_or(u64::MAX))
    });
    numbers.max()
}
