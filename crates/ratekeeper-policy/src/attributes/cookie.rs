//! Cookie values.

use std::borrow::Cow;

use super::{AttributeValues, trim_ows};
use crate::identity::MissingReason;
use crate::path::percent_decoded;
use crate::request::RequestAttributes;

/// Returns every value of a cookie, decoded. Names are case-sensitive.
///
/// Pairs are separated by `;` only (RFC 6265), over all lines.
///
/// `Err` if frameworks end a value in different places.
pub(crate) fn values<'r>(
    request: &RequestAttributes<'r>,
    name: &str,
) -> Result<AttributeValues<'r>, MissingReason> {
    let (mut values, mut is_clear) = (AttributeValues::default(), true);
    request.headers.each("cookie", &mut |line| {
        for pair in line.split(|byte| *byte == b';') {
            if let Some(at) = pair.iter().position(|byte| *byte == b'=')
                && trim_ows(&pair[..at]) == name.as_bytes()
            {
                let value = trim_ows(&pair[at + 1..]);
                is_clear &= ends_clearly(value);
                values.add(identity(decoded(value)));
            }
        }
    });
    if is_clear { Ok(values) } else { Err(MissingReason::Ambiguous) }
}

/// Some frameworks end a value at a space, and some remove what is a space in another character set. Neither
/// belongs into a cookie, but for a space in quotes.
fn ends_clearly(value: &[u8]) -> bool {
    let is_quoted = value.len() >= 2 && value.starts_with(b"\"") && value.ends_with(b"\"");
    let is_ascii = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii);
    let has_space = value.iter().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control());
    (is_quoted || !has_space) && is_ascii(value.first()) && is_ascii(value.last())
}

/// Returns the value as an identity. Some frameworks decode `+` as a space, so a space becomes `+`.
pub(crate) fn identity(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if !value.contains(&b' ') {
        return value;
    }
    value.iter().map(|byte| if *byte == b' ' { b'+' } else { *byte }).collect()
}

/// Decodes a value so that all spellings which a framework reads as the same value are equal.
///
/// Frameworks decode escapes, remove quotes, or both. Escapes of both kinds (`%7a`, and `\172` in
/// octal) are decoded once, and all quotes and backslashes are removed.
pub(crate) fn decoded(value: &[u8]) -> Cow<'_, [u8]> {
    if !value.iter().any(|byte| matches!(byte, b'"' | b'%' | b'\\')) {
        return value.into();
    }
    let unescaped = without_octal(value);
    percent_decoded(&unescaped).filter(|byte| !matches!(byte, b'"' | b'\\')).collect()
}

fn without_octal(mut text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    loop {
        let (byte, after) = match text {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                (((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'), after)
            }
            [byte, after @ ..] => (*byte, after),
            [] => return plain,
        };
        plain.push(byte);
        text = after;
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

    /// Returns all concatenations of at most `words_max` of these words.
    fn texts(words: &[&str], words_max: usize) -> Vec<String> {
        let mut texts = vec![String::new()];
        let mut longest = texts.clone();
        for _ in 0..words_max {
            longest = longest
                .iter()
                .flat_map(|text| words.iter().map(move |w| format!("{text}{w}")))
                .collect();
            texts.extend(longest.iter().cloned());
        }
        texts
    }

    type Framework = fn(&[u8]) -> Vec<u8>;

    fn php(value: &[u8]) -> Vec<u8> {
        percent_decoded(value).collect()
    }

    fn rack(value: &[u8]) -> Vec<u8> {
        let spaced: Vec<u8> = value.iter().map(|b| if *b == b'+' { b' ' } else { *b }).collect();
        php(&spaced)
    }

    fn django(value: &[u8]) -> Vec<u8> {
        match value {
            [b'"', inner @ .., b'"'] => without_octal(inner),
            value => value.to_vec(),
        }
    }

    fn express(value: &[u8]) -> Vec<u8> {
        match value {
            [b'"', inner @ .., b'"'] => php(inner),
            value => php(value),
        }
    }

    #[test]
    fn values_that_a_framework_reads_as_equal_have_one_key() {
        let frameworks: [Framework; 4] = [php, rack, django, express];
        let spellings = texts(&["z", "%7a", "\"", "%22", "\\172", "+", "%2B", "%20", " "], 4);
        for framework in frameworks {
            let mut keys = std::collections::HashMap::new();
            for spelling in &spellings {
                let key = identity(decoded(trim_ows(spelling.as_bytes()))).into_owned();
                let seen = framework(trim_ows(spelling.as_bytes()));
                let known = keys.entry(seen).or_insert_with(|| (key.clone(), spelling));
                assert_eq!(known.0, key, "{spelling:?} and {:?}", known.1);
            }
        }
    }

    #[test]
    fn a_value_that_frameworks_delimit_differently_is_ambiguous() {
        for value in ["zed", "\"a b\"", "", "z\u{e9}d", "\""] {
            assert!(ends_clearly(value.as_bytes()), "{value:?}");
        }
        for value in ["zed a=0", "zed\u{a0}", "\u{85}zed", "a\tb", "a\u{b}", "\"a b", "a b\""] {
            assert!(!ends_clearly(value.as_bytes()), "{value:?}");
        }
        assert!(!ends_clearly(b"zed\xa0"));
    }

    #[test]
    fn a_session_has_one_spelling() {
        let spellings = ["zed", "\"zed\"", "%7aed", "\"%7Aed\"", "%22zed%22", "%22zed\""];
        same("zed", &spellings);
        same("zed", &["\"\\172ed\"", "\"\\zed\"", "\"z\\145d\""]);
        same("a+b", &["a+b", "a%2Bb", "a%20b", "a%2bb", "\"a b\""]);
        same("%7a", &["%257a"]);
        same("Zed", &["Zed"]);
        same("", &["", "\"\"", "%22%22"]);
        same("ab", &["a\"b", "\"a\\\"b\"", "\"a\\\\b\""]);
    }
}
