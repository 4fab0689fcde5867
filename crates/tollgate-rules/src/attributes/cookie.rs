//! Cookie values.

use std::borrow::Cow;

use super::{Values, trim_ows};
use crate::path::percent_decoded;
use crate::request::Request;

/// Every value of a cookie, without quotes and percent-decoded. Names differ by case.
///
/// Pairs are separated by `;` only (RFC 6265), over all lines.
pub(crate) fn values<'r>(request: &Request<'r>, name: &str) -> Values<'r> {
    let mut values = Values::new();
    request.headers.each("cookie", &mut |line| {
        for pair in line.split(|byte| *byte == b';') {
            if let Some(at) = pair.iter().position(|byte| *byte == b'=')
                && trim_ows(&pair[..at]) == name.as_bytes()
            {
                values.push(decoded(trim_ows(&pair[at + 1..])));
            }
        }
    });
    values
}

/// A value as callers are told apart by it: some frameworks take `+` for a space, so both are one.
pub(crate) fn identity(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if !value.contains(&b' ') {
        return value;
    }
    value.iter().map(|byte| if *byte == b' ' { b'+' } else { *byte }).collect()
}

/// What frameworks make of a value: they remove quotes, decode escapes, or both.
pub(crate) fn decoded(value: &[u8]) -> Cow<'_, [u8]> {
    if !value.iter().any(|byte| matches!(byte, b'"' | b'%')) {
        return value.into();
    }
    let once: Vec<u8> = percent_decoded(&unquoted(value)).collect();
    unquoted(&once).into_owned().into()
}

/// Without the quotes around it, and then without backslashes: `\c` is `c`, and `\172` the byte of that
/// octal number.
fn unquoted(value: &[u8]) -> Cow<'_, [u8]> {
    let [b'"', quoted @ .., b'"'] = value else { return value.into() };
    let mut rest = quoted;
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((byte, after)) = unescape(rest) {
        plain.push(byte);
        rest = after;
    }
    plain.into()
}

/// The byte that a text begins with, and what follows it.
fn unescape(text: &[u8]) -> Option<(u8, &[u8])> {
    match text {
        [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
            Some((((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'), after))
        }
        [b'\\', byte, after @ ..] | [byte, after @ ..] => Some((*byte, after)),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn same(canonical: &str, spellings: &[&str]) {
        for spelling in spellings {
            let value = identity(decoded(spelling.as_bytes()));
            assert_eq!(String::from_utf8_lossy(&value), canonical, "{spelling:?}");
        }
    }

    #[test]
    fn a_session_has_one_spelling() {
        let spellings = ["zed", "\"zed\"", "%7aed", "\"%7Aed\"", "%22zed%22", "%22zed\""];
        same("zed", &spellings);
        same("zed", &["\"\\172ed\"", "\"\\zed\"", "\"z\\145d\""]);
        same("a+b", &["a+b", "a%2Bb", "a%20b", "a%2bb", "\"a b\""]);
        same("%7a", &["%257a"]);
        same("Zed", &["Zed"]);
        same("\"", &["\"", "%22"]);
        same("", &["", "\"\"", "%22%22"]);
        same("a\"b", &["a\"b", "\"a\\\"b\""]);
    }
}
