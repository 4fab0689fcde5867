//! Builds the settings of responses and of the refusal log.

use super::values::{boolean, integer};
use crate::problems::{Problems, quoted};
use crate::refusals::{RefusalKeys, RefusalSettings};
use crate::response::{BodyKind, ResponseSettings};
use crate::suggest::closest;
use crate::yaml::Node;

const PLACEHOLDERS: [&str; 3] = ["limit", "retry_after", "quota"];

pub(super) fn response_settings(node: Option<&Node>, problems: &mut Problems) -> ResponseSettings {
    let mut settings = ResponseSettings::default();
    let Some(node) = node else { return settings };
    if let Some(headers) = node.get("headers") {
        let names: Vec<_> = headers.items().iter().filter_map(Node::text).collect();
        if names.contains(&"none") && names.len() > 1 {
            problems.report(headers.span, "\"none\" cannot be combined with other headers");
        }
        settings.ratelimit = names.contains(&"ratelimit");
        settings.x_ratelimit = names.contains(&"x-ratelimit");
    }
    if let Some(on_allowed) = node.get("on_allowed").and_then(boolean) {
        settings.on_allowed = on_allowed;
    }
    settings.body = match node.get("body").and_then(Node::text) {
        Some("problem") => BodyKind::Problem,
        Some("text") => BodyKind::Text,
        _ => BodyKind::Json,
    };
    settings.message = node.get("message").and_then(|node| message(node, problems));
    let status = node.get("status").and_then(integer).and_then(|n| u16::try_from(n).ok());
    settings.status = status.unwrap_or(settings.status);
    settings
}

/// Returns a message after checking its placeholders.
pub(super) fn message(node: &Node, problems: &mut Problems) -> Option<String> {
    let text = node.text()?;
    for (at, _) in text.match_indices('{') {
        let Some((name, _)) = text[at + 1..].split_once('}') else { break };
        if !PLACEHOLDERS.contains(&name) {
            let span = problems.span_of(node, at..at + name.len() + 2);
            let why = match closest(name, PLACEHOLDERS.into_iter()) {
                Some(meant) => format!("did you mean {{{meant}}}?"),
                None => format!("known placeholders are {{{}}}", PLACEHOLDERS.join("}, {")),
            };
            problems.report(span, format!("unknown placeholder {}; {why}", quoted(name)));
        }
    }
    Some(text.to_string())
}

/// Returns the settings of the refusal log.
pub(super) fn refusal_settings(node: Option<&Node>) -> RefusalSettings {
    let get = |name: &str| node.and_then(|node| node.get(name));
    let keys = match get("keys").and_then(Node::text) {
        Some("hashed") => RefusalKeys::Hashed,
        Some("off") => RefusalKeys::Off,
        _ => RefusalKeys::Plain,
    };
    let capacity = get("capacity").and_then(integer).and_then(|n| usize::try_from(n).ok());
    RefusalSettings { keys, capacity: capacity.unwrap_or(RefusalSettings::CAPACITY) }
}
