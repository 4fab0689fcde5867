//! The usage of a request as a log may have it: fields with the names that providers give their numbers.

use ratekeeper_policy::usage::{TokenUsage, UsageFormat};

use super::record::AccessRecord;

const INPUT: [&str; 2] = ["input_tokens", "prompt_tokens"];
const OUTPUT: [&str; 2] = ["output_tokens", "completion_tokens"];
const CACHED: [&str; 2] = ["cached_tokens", "cache_read_input_tokens"];
const CACHE_WRITE: [&str; 1] = ["cache_creation_input_tokens"];
const TOTAL: [&str; 2] = ["total_tokens", "usage"];

/// The names of all fields.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let all: [&[&str]; 5] = [&INPUT, &OUTPUT, &CACHED, &CACHE_WRITE, &TOTAL];
    all.into_iter().flatten().copied()
}

impl AccessRecord<'_> {
    /// Returns the usage, if the log states enough of it to charge it.
    pub(crate) fn usage(&self, format: &UsageFormat) -> Option<TokenUsage> {
        let number =
            |names: &[&str]| names.iter().find_map(|name| self.field(name)?.parse::<u64>().ok());
        let (input, output, total) = (number(&INPUT), number(&OUTPUT), number(&TOTAL));
        match format {
            UsageFormat::OpenAi | UsageFormat::Anthropic => _ = input.or(output).or(total)?,
            // A number of the application's own.
            _ => _ = total?,
        }
        let (input, cached) = (input.unwrap_or(0), number(&CACHED).unwrap_or(0));
        let (input, cached) = match format {
            // The input includes what was cached.
            UsageFormat::OpenAi => (input - cached.min(input), cached.min(input)),
            _ => (input, cached),
        };
        let output = output.or_else(|| Some(total?.saturating_sub(input.saturating_add(cached))));
        let cache_write = number(&CACHE_WRITE).unwrap_or(0);
        Some(TokenUsage { input, cached, cache_write, output: output.unwrap_or(0), total })
    }
}
