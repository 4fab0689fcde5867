//! Parses the entries of a forwarding header, starting with that of the nearest proxy.

use std::net::IpAddr;

use super::ForwardedBy;

/// Returns the addresses in all lines of a header, from right to left. `None` is an entry without a
/// valid address.
pub(super) fn from_the_right<'h>(
    source: ForwardedBy,
    lines: impl DoubleEndedIterator<Item = &'h [u8]>,
) -> impl Iterator<Item = Option<IpAddr>> {
    let lines_max = if source == ForwardedBy::XRealIp { 1 } else { usize::MAX };
    let elements =
        lines.rev().take(lines_max).flat_map(move |line| Elements { source, line: Some(line) });
    elements.map(move |element| match source {
        ForwardedBy::Forwarded => address(unquoted(for_value(element)?)?),
        _ => address(unquoted(element)?),
    })
}

/// The non-empty elements of one line, from right to left.
struct Elements<'h> {
    source: ForwardedBy,
    line: Option<&'h [u8]>,
}

impl<'h> Iterator for Elements<'h> {
    type Item = &'h [u8];

    fn next(&mut self) -> Option<&'h [u8]> {
        while let Some(line) = self.line {
            let comma = match self.source {
                ForwardedBy::XForwardedFor => line.iter().rposition(|byte| *byte == b','),
                ForwardedBy::Forwarded => last_comma(line),
                ForwardedBy::XRealIp => None,
            };
            self.line = comma.map(|at| &line[..at]);
            let element = line[comma.map_or(0, |at| at + 1)..].trim_ascii();
            if !element.is_empty() {
                return Some(element);
            }
        }
        None
    }
}

/// Returns the last comma outside of quotes, scanning from the right: a quote that a client left open
/// cannot hide what a proxy appended.
fn last_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    (0..line.len()).rev().find(|at| {
        quoted ^= line[*at] == b'"' && !is_escaped(line, *at);
        line[*at] == b',' && !quoted
    })
}

fn is_escaped(text: &[u8], at: usize) -> bool {
    text[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Returns the value of `for` in an element such as `for="[::1]:80";proto=http` (RFC 7239).
fn for_value(element: &[u8]) -> Option<&[u8]> {
    let mut quoted = false;
    let mut escaped = false;
    let pairs = element.split(|byte| {
        quoted ^= *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        *byte == b';' && !quoted
    });
    let mut found = pairs.filter_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        name.trim_ascii().eq_ignore_ascii_case(b"for").then_some(value[1..].trim_ascii())
    });
    // With two of them, readers would disagree.
    found.next().filter(|_| found.next().is_none())
}

fn unquoted(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', inner @ .., b'"'] => Some(inner.trim_ascii()),
        [b'"', ..] => None,
        _ => Some(value),
    }
}

/// Parses `1.2.3.4`, `1.2.3.4:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let ip = if let Some(bracketed) = text.strip_prefix('[') {
        let (ip, port) = bracketed.split_once(']')?;
        if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
            return None;
        }
        IpAddr::V6(ip.parse().ok()?)
    } else {
        match text.split_once(':') {
            Some((ip, port)) if is_port(port) => IpAddr::V4(ip.parse().ok()?),
            _ => text.parse().ok()?,
        }
    };
    Some(ip.to_canonical())
}

/// Whether the text is a port: digits, or an obfuscated port (RFC 7239).
fn is_port(text: &str) -> bool {
    let in_names = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(in_names),
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
