//! Where providers state the usage of a request.

use std::fmt;
use std::sync::LazyLock;

use super::TokenUsage;
use crate::json_fields::{JsonFields, JsonPath, JsonPaths};

/// Where a response states its usage.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_policy as policy; }
/// use ratekeeper::policy::usage::UsageFormat;
///
/// let format = UsageFormat::Json("usage.total_tokens".parse()?);
/// assert_eq!(format.to_string(), "usage.total_tokens");
/// # Ok::<(), ratekeeper::policy::json_fields::JsonPathError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UsageFormat {
    /// As OpenAI's APIs do, and the many that are compatible: chat completions, embeddings, responses.
    OpenAi,
    /// As Anthropic's Messages API does.
    Anthropic,
    /// In this field of the document, or of the last event that has it.
    Json(JsonPath),
}

impl fmt::Display for UsageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenAi => f.write_str("openai"),
            Self::Anthropic => f.write_str("anthropic"),
            Self::Json(path) => path.fmt(f),
        }
    }
}

/// The type of an event.
const TYPE: &str = "type";

const OPENAI: [&str; 12] = [
    TYPE,
    "usage.prompt_tokens",
    "usage.completion_tokens",
    "usage.total_tokens",
    "usage.prompt_tokens_details.cached_tokens",
    "usage.input_tokens",
    "usage.output_tokens",
    "usage.input_tokens_details.cached_tokens",
    // The events of the Responses API contain the whole response.
    "response.usage.input_tokens",
    "response.usage.output_tokens",
    "response.usage.total_tokens",
    "response.usage.input_tokens_details.cached_tokens",
];

const ANTHROPIC: [&str; 9] = [
    TYPE,
    "usage.input_tokens",
    "usage.output_tokens",
    "usage.cache_read_input_tokens",
    "usage.cache_creation_input_tokens",
    // The first event of a stream contains the message.
    "message.usage.input_tokens",
    "message.usage.output_tokens",
    "message.usage.cache_read_input_tokens",
    "message.usage.cache_creation_input_tokens",
];

fn paths(of: &[&str]) -> JsonPaths {
    JsonPaths::new(of.iter().map(|path| path.parse().expect("a valid path")))
}

impl UsageFormat {
    /// Returns the fields to look for.
    pub(super) fn paths(&self) -> JsonPaths {
        static OF_OPENAI: LazyLock<JsonPaths> = LazyLock::new(|| paths(&OPENAI));
        static OF_ANTHROPIC: LazyLock<JsonPaths> = LazyLock::new(|| paths(&ANTHROPIC));
        match self {
            Self::OpenAi => OF_OPENAI.clone(),
            Self::Anthropic => OF_ANTHROPIC.clone(),
            Self::Json(path) => JsonPaths::new([path.clone()]),
        }
    }

    /// Adds what a document or an event states. Returns whether it states the usage of the whole request.
    pub(super) fn read(
        &self,
        fields: &JsonFields,
        usage: &mut Option<TokenUsage>,
    ) -> Result<bool, Unreadable> {
        let stated = match self {
            Self::OpenAi => match openai(fields, "usage")? {
                None => openai(fields, "response.usage")?,
                stated => stated,
            },
            Self::Anthropic => return anthropic(fields, usage),
            Self::Json(path) => number(fields, &path.to_string())?
                .map(|total| TokenUsage { total: Some(total), ..TokenUsage::default() }),
        };
        *usage = stated.or(*usage);
        Ok(stated.is_some())
    }

    /// Returns whether no event of interest follows this one.
    pub(super) fn is_last(&self, fields: &JsonFields) -> bool {
        let last: &[&str] = match self {
            Self::OpenAi => &["response.completed", "response.incomplete", "response.failed"],
            Self::Anthropic => &["message_stop"],
            Self::Json(_) => &[],
        };
        let kind = fields.get(TYPE).and_then(|values| values.known.first());
        kind.is_some_and(|kind| last.iter().any(|last| last.as_bytes() == kind))
    }
}

/// A number is stated and cannot be read, so that a sum of the others would be too low.
pub(super) struct Unreadable;

/// Returns a number, if it is stated.
fn number(fields: &JsonFields, path: &str) -> Result<Option<u64>, Unreadable> {
    match fields.get(path).filter(|values| !values.is_empty()) {
        Some(values) => values.integer().map(Some).ok_or(Unreadable),
        None => Ok(None),
    }
}

/// Reads the usage of OpenAI, whose input includes what was cached. Chat completions call it a prompt.
fn openai(fields: &JsonFields, at: &str) -> Result<Option<TokenUsage>, Unreadable> {
    let number = |name: &str| number(fields, &format!("{at}.{name}"));
    let input = number("prompt_tokens")?.or(number("input_tokens")?);
    let output = number("completion_tokens")?.or(number("output_tokens")?);
    let total = number("total_tokens")?;
    let cached = number("prompt_tokens_details.cached_tokens")?
        .or(number("input_tokens_details.cached_tokens")?);
    if input.or(output).or(total).is_none() {
        return Ok(None);
    }
    let input = input.unwrap_or(0);
    let cached = cached.unwrap_or(0).min(input);
    let output = output.unwrap_or_else(|| total.unwrap_or(0).saturating_sub(input));
    Ok(Some(TokenUsage { input: input - cached, cached, cache_write: 0, output, total }))
}

/// Reads the usage of Anthropic, whose input excludes what was cached. In a stream, the numbers of an event
/// replace those of earlier events; the first event states only the input.
fn anthropic(fields: &JsonFields, usage: &mut Option<TokenUsage>) -> Result<bool, Unreadable> {
    let mut is_stated = |at: &str| {
        let number = |name: &str| number(fields, &format!("{at}.{name}"));
        let stated = [
            number("input_tokens")?,
            number("cache_read_input_tokens")?,
            number("cache_creation_input_tokens")?,
            number("output_tokens")?,
        ];
        if stated.iter().all(Option::is_none) {
            return Ok(false);
        }
        let usage = usage.get_or_insert_default();
        let kinds =
            [&mut usage.input, &mut usage.cached, &mut usage.cache_write, &mut usage.output];
        for (kind, stated) in kinds.into_iter().zip(stated) {
            *kind = stated.unwrap_or(*kind);
        }
        Ok(true)
    };
    is_stated("message.usage")?;
    is_stated("usage")
}
