//! Header values.

use std::borrow::Cow;

use super::{AttributeValues, canonical_host};
use crate::request::RequestAttributes;

/// Removes optional whitespace (OWS: spaces and tabs) around a value. HTTP/1 strips it, HTTP/2 does
/// not.
#[must_use]
pub fn trim_ows(value: &[u8]) -> &[u8] {
    trim(value, |byte| matches!(byte, b' ' | b'\t'))
}

/// Removes OWS and empty list elements at both ends, which a recipient of a list must ignore.
fn trim_list(value: &[u8]) -> &[u8] {
    trim(value, |byte| matches!(byte, b' ' | b'\t' | b','))
}

fn trim(value: &[u8], is_padding: impl Fn(u8) -> bool) -> &[u8] {
    let Some(first) = value.iter().position(|byte| !is_padding(*byte)) else { return &[] };
    let last = value.iter().rposition(|byte| !is_padding(*byte)).unwrap_or(first);
    &value[first..=last]
}

/// Returns every value of a header in canonical form. `name` is in lower case.
pub(crate) fn values<'r>(request: &RequestAttributes<'r>, name: &str) -> AttributeValues<'r> {
    match name {
        // HTTP/2 sends the host as `:authority`; HTTP/1 may send it in the request line.
        "host" => request.host.map(|host| canonical(name, host.as_bytes())).into_iter().collect(),
        "cookie" => joined(request.headers.all(name).as_slice()).into_iter().collect(),
        _ => request.headers.all(name).into_iter().map(|line| canonical(name, line)).collect(),
    }
}

/// Returns the canonical form of one value.
pub(crate) fn canonical<'v>(name: &str, value: &'v [u8]) -> Cow<'v, [u8]> {
    match name {
        "host" => {
            let host = std::str::from_utf8(value).ok().and_then(|text| canonical_host(text).ok());
            match host {
                Some(Cow::Borrowed(host)) => host.as_bytes().into(),
                Some(Cow::Owned(host)) => host.into_bytes().into(),
                None => trim_ows(value).into(),
            }
        }
        "authorization" => credentials(trim_list(value)),
        _ => trim_list(value).into(),
    }
}

/// Returns a pattern of a policy in the canonical form of the values it is compared with.
pub(crate) fn canonical_pattern(name: &str, pattern: &str) -> String {
    let pattern = pattern.trim_matches([' ', '\t', ',']);
    match name {
        "host" => pattern.to_ascii_lowercase(),
        "authorization" => {
            let scheme = pattern.find([' ', '*']).unwrap_or(0);
            pattern[..scheme].to_ascii_lowercase() + &pattern[scheme..]
        }
        _ => pattern.to_string(),
    }
}

/// Joins `Cookie` lines. HTTP/2 may send several, which an HTTP/1 upstream receives as one.
fn joined<'r>(lines: &[&'r [u8]]) -> Option<Cow<'r, [u8]>> {
    match lines {
        [] => None,
        [line] => Some(trim_ows(line).into()),
        lines => {
            let lines: Vec<_> = lines.iter().map(|line| trim_ows(line)).collect();
            Some(lines.join(&b"; "[..]).into())
        }
    }
}

/// Returns credentials in canonical form: `Bearer  abc` and `bearer abc` are equal. A value without a
/// scheme is case-sensitive.
fn credentials(value: &[u8]) -> Cow<'_, [u8]> {
    let Some(end) = value.iter().position(|byte| matches!(byte, b' ' | b'\t')) else {
        return value.into();
    };
    let mut canonical = value[..end].to_ascii_lowercase();
    let is_basic = canonical == b"basic";
    canonical.push(b' ');
    match (is_basic, trim_ows(&value[end..])) {
        (true, credentials) => push_base64(credentials, &mut canonical),
        (false, credentials) => canonical.extend_from_slice(credentials),
    }
    canonical.into()
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends base64 as a lenient decoder reads it: without other characters, without what follows the
/// padding, and with unused trailing bits cleared.
fn push_base64(text: &[u8], to: &mut Vec<u8>) {
    let (start, mut padding) = (to.len(), 0);
    for byte in text {
        let digits = to.len() - start;
        match byte {
            b'=' if digits % 4 >= 2 => {
                padding += 1;
                if digits % 4 + padding >= 4 {
                    break;
                }
            }
            b'-' => to.push(b'+'),
            b'_' => to.push(b'/'),
            byte if DIGITS.contains(byte) => to.push(*byte),
            _ => continue,
        }
        if *byte != b'=' {
            padding = 0;
        }
    }
    let unused_bits = match (to.len() - start) % 4 {
        2 => 4,
        3 => 2,
        _ => 0,
    };
    if let Some(last) = to[start..].last_mut()
        && let Some(digit) = DIGITS.iter().position(|known| known == last)
    {
        *last = DIGITS[digit >> unused_bits << unused_bits];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn same(name: &str, canonical_form: &str, spellings: &[&str]) {
        for spelling in spellings {
            let value = canonical(name, spelling.as_bytes());
            assert_eq!(String::from_utf8_lossy(&value), canonical_form, "{spelling:?}");
        }
    }

    #[test]
    fn surrounding_whitespace_and_empty_list_elements_are_removed() {
        same("x-api-key", "k", &["k", " k", "k\t", " \t k \t", "k,", ", ,k , "]);
        same("x-api-key", "a, b", &["a, b", " a, b ,"]);
        same("x-api-key", "", &["", " ", "\t", ",", " , ,"]);
    }

    #[test]
    fn spellings_of_credentials_have_one_canonical_form() {
        same("authorization", "bearer aB", &["Bearer aB", "bEARER  aB ", "bearer\taB"]);
        same("authorization", "aB", &["aB", " aB"]);
        let basic = ["Basic dXNlcjpwYQ==", "basic dXNlcjpwYQ", "BASIC  dXN!lcj pwYQ==junk"];
        same("authorization", "basic dXNlcjpwYQ", &basic);
        same("authorization", "basic dXNlcjpwYQ", &["Basic dXNlcjpwYR==", "Basic =dXNlcjpw=YQ=="]);
        same("authorization", "basic ab+/", &["Basic ab-_"]);
        same("x-other", "Bearer  aB", &["Bearer  aB"]);
    }

    #[test]
    fn a_pattern_gets_the_canonical_form_of_values() {
        assert_eq!(canonical_pattern("authorization", "Bearer *X"), "bearer *X");
        assert_eq!(canonical_pattern("authorization", "*X"), "*X");
        assert_eq!(canonical_pattern("x-a", " Ab* "), "Ab*");
    }
}
