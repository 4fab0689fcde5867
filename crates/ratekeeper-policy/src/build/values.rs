//! Parses single values.

use std::time::Duration;

use ipnet::IpNet;
use ratekeeper_core::{Cost, FailureMode, MaxDebt, MaxDebtError, parse_duration};

use crate::client_ip::canonical_net;
use crate::json_fields::JsonPath;
use crate::problems::{Problems, quoted};
use crate::yaml::{Node, Value};

pub(crate) fn boolean(node: &Node) -> Option<bool> {
    node.text()?.parse().ok()
}

/// Parses an unquoted boolean; a quoted one is text.
pub(super) fn bare_boolean(node: &Node) -> Option<bool> {
    match &node.value {
        Value::Scalar { text, is_quoted: false } => text.parse().ok(),
        _ => None,
    }
}

pub(crate) fn integer(node: &Node) -> Option<u64> {
    node.text()?.parse().ok()
}

pub(super) fn cost(node: Option<&Node>) -> Option<Cost> {
    node.and_then(integer).and_then(Cost::new)
}

pub(super) fn failure_mode(node: &Node) -> Option<FailureMode> {
    match node.text()? {
        "local" => Some(FailureMode::Local),
        "open" => Some(FailureMode::Open),
        "closed" => Some(FailureMode::Closed),
        _ => None,
    }
}

pub(crate) fn duration(node: &Node, problems: &mut Problems) -> Option<Duration> {
    let parsed = parse_duration(node.text()?);
    let parsed = parsed
        .map_err(|error| problems.report(problems.span_of(node, error.span()), error.message()));
    parsed.ok()
}

/// Parses `overdraft`: true, or a section with the maximum debt. `None` if it is false or invalid.
pub(crate) fn overdraft(node: &Node, problems: &mut Problems) -> Option<MaxDebt> {
    let Some(max) = node.get("max") else {
        return boolean(node).filter(|is_on| *is_on).map(|_| MaxDebt::NONE);
    };
    let text = max.text()?;
    match text.parse() {
        Ok(max_debt) => Some(max_debt),
        Err(error) => {
            let error: MaxDebtError = error;
            problems.report(max.span, format!("{} is {error}", quoted(text)));
            None
        }
    }
}

/// Parses a percentage into hundredths of a percent.
pub(super) fn percentage(node: &Node, problems: &mut Problems) -> Option<u16> {
    let text = node.text()?;
    let parts = parse_percentage(text);
    if parts.is_none() {
        let why =
            format!("{} is not a percentage from 0% to 100%, such as 25% or 0.5%", quoted(text));
        problems.report(node.span, why);
    }
    parts
}

/// Parses a percentage without a fraction.
pub(super) fn whole_percentage(node: &Node, problems: &mut Problems) -> Option<u8> {
    let parts = percentage(node, problems)?;
    if parts % 100 != 0 {
        let text = quoted(node.text()?);
        problems.report(node.span, format!("{text} has a fraction; use a whole percentage"));
        return None;
    }
    u8::try_from(parts / 100).ok()
}

fn parse_percentage(text: &str) -> Option<u16> {
    let (whole, fraction) = match text.strip_suffix('%')?.trim().split_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None => (text.strip_suffix('%')?.trim(), ""),
    };
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) || fraction.len() > 2 {
        return None;
    }
    let parts: u16 = format!("{whole}{fraction:0<2}").parse().ok()?;
    (parts <= 10_000).then_some(parts)
}

/// Parses a network; a single address is a network of one.
pub(super) fn network(node: &Node, problems: &mut Problems) -> Option<IpNet> {
    let text = node.text()?;
    let parsed =
        text.parse::<IpNet>().ok().or_else(|| Some(text.parse::<std::net::IpAddr>().ok()?.into()));
    if parsed.is_none() {
        let named = quoted(text);
        let why = format!("{named} is not an address or a network such as 10.0.0.0/8 or fd00::/8");
        problems.report(node.span, why);
    }
    parsed.map(|network| canonical_net(network.trunc()))
}

/// Whether the text is an HTTP token, as header names and methods are (RFC 9110).
pub(super) fn is_token(text: &str) -> bool {
    let in_tokens = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(in_tokens)
}

/// Parses a header name into lower case.
pub(crate) fn header_name(node: &Node, problems: &mut Problems) -> Option<String> {
    let text = node.text()?;
    if !is_token(text) {
        problems.report(node.span, format!("{} is not a header name", quoted(text)));
        return None;
    }
    Some(text.to_ascii_lowercase())
}

/// Hop-by-hop headers, which a proxy removes, so that the upstream does not see them.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-connection",
];

fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.contains(&name) || name.starts_with("proxy-")
}

/// Parses the name of a header that identifies clients or sets the cost of a request.
pub(crate) fn end_to_end_header(node: &Node, problems: &mut Problems) -> Option<String> {
    let name = header_name(node, problems)?;
    if is_hop_by_hop(&name) {
        let why =
            format!("{name} is a hop-by-hop header and does not reach the upstream; use another");
        problems.report(node.span, why);
    }
    Some(name)
}

/// Parses the name of a header in a match condition. `Upgrade` is forwarded for WebSocket.
pub(super) fn matched_header(node: &Node, problems: &mut Problems) -> Option<String> {
    let name = header_name(node, problems)?;
    if is_hop_by_hop(&name) && name != "upgrade" {
        let why =
            format!("{name} is a hop-by-hop header: the upstream does not see what matches here");
        problems.warn(node.span, why);
    }
    Some(name)
}

/// Parses the path of a field in a JSON document.
pub(super) fn json_path(node: &Node, problems: &mut Problems) -> Option<JsonPath> {
    let text = node.text()?;
    text.parse()
        .map_err(|error| {
            problems.report(node.span, format!("{} is not a field: {error}", quoted(text)));
        })
        .ok()
}

/// Parses a user-defined name, which becomes part of keys and metrics.
pub(super) fn name<'n>(node: &'n Node, what: &str, problems: &mut Problems) -> Option<&'n str> {
    let text = node.text()?;
    let is_allowed =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':');
    if text.is_empty() || text.len() > 64 || !text.chars().all(is_allowed) {
        let named = quoted(text);
        let why = format!(
            "{named} is not a valid name for {what}; use 1 to 64 letters, digits and - _ . / :"
        );
        problems.report(node.span, why);
        return None;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_exact() {
        let cases =
            [("25%", Some(2_500)), ("0.5%", Some(50)), ("0.05%", Some(5)), ("100%", Some(10_000))];
        let invalid = ["100.01%", "25", "-1%", "%", ".5%", "1.234%", "a%", "", "99999999999%"];
        let invalid = invalid.map(|text| (text, None));
        for (text, parts) in cases.into_iter().chain(invalid) {
            assert_eq!(parse_percentage(text), parts, "{text}");
        }
    }
}
