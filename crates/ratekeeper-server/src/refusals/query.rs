//! The query of a request to the refusal log.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use ratekeeper::Micros;

/// Why a query is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidQuery {
    #[error("unknown parameter {name:?}; use {known}")]
    Unknown { name: String, known: String },
    #[error("the parameter {0:?} is not valid text; encode it in percent notation")]
    Encoding(String),
    #[error("the parameter {0:?} occurs twice")]
    Twice(String),
    #[error("invalid n; use 1 to 1000")]
    Count,
    #[error("invalid since; use a span such as 5m, or a time such as 2026-01-31T12:00:00Z")]
    Since,
    #[error("invalid outcome; use denied, shadow_denied or allowed")]
    Outcome,
    #[error("invalid rate: {0}")]
    Rate(String),
}

/// Parameters and their values.
pub(super) struct Parameters<'q>(Vec<(&'q str, String)>);

impl<'q> Parameters<'q> {
    pub(super) fn parse(query: Option<&'q str>, known: &[&str]) -> Result<Self, InvalidQuery> {
        let mut parameters = Vec::new();
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        for pair in pairs {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) {
                let (name, known) = (name.to_string(), known.join(", "));
                return Err(InvalidQuery::Unknown { name, known });
            }
            if parameters.iter().any(|(other, _)| *other == name) {
                return Err(InvalidQuery::Twice(name.to_string()));
            }
            let value = decoded(value).ok_or_else(|| InvalidQuery::Encoding(name.to_string()))?;
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// Decodes percent notation, and `+` for a space.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Decodes percent notation in a part of a path.
pub(super) fn decoded_segment(text: &str) -> Option<String> {
    decoded(&text.replace('+', "%2B"))
}

/// Encodes a value in percent notation.
pub(crate) fn encoded(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    if text.bytes().all(is_plain) {
        return text.into();
    }
    let encode = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect::<String>().into()
}

/// Parses a time, or how long ago.
pub(super) fn since(text: &str, now: Micros) -> Result<Micros, InvalidQuery> {
    if let Ok(ago) = ratekeeper_core::parse_duration(text) {
        return Ok(Micros::new(now.get().saturating_sub(micros(ago))));
    }
    let at: Timestamp = text.parse().map_err(|_| InvalidQuery::Since)?;
    Ok(Micros::new(u64::try_from(at.as_microsecond()).unwrap_or_default()))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_encoded() {
        let query = "key=a%2Fb+c&limit=";
        let parameters = Parameters::parse(Some(query), &["key", "limit"]).unwrap();
        assert_eq!((parameters.get("key"), parameters.get("limit")), (Some("a/b c"), Some("")));
        assert_eq!(parameters.get("since"), None);
        assert_eq!(decoded(&encoded("ö/ +%")).as_deref(), Some("ö/ +%"));
        assert_eq!(decoded_segment("a+b%2Fc").as_deref(), Some("a+b/c"));
    }

    #[test]
    fn an_invalid_query_says_what_is_valid() {
        let error = |query| Parameters::parse(Some(query), &["key"]).err().unwrap().to_string();
        assert!(error("kay=1").contains("use key"));
        assert!(error("key=%ff").contains("percent notation"));
        assert!(error("key=%f").contains("percent notation"));
        assert!(error("key=1&key=2").contains("twice"));
    }

    #[test]
    fn a_time_is_a_span_before_now_or_a_date() {
        let now = Micros::new(600_000_000);
        assert_eq!(since("5m", now), Ok(Micros::new(300_000_000)));
        assert_eq!(since("1970-01-01T00:00:02Z", now), Ok(Micros::new(2_000_000)));
        assert_eq!(since("yesterday", now), Err(InvalidQuery::Since));
    }
}
