//! The claims of a token.

use std::sync::Arc;

use serde_json::{Map, Number, Value};

use super::error::JwtError;
use crate::json::check_unique_members;

/// The claims of a verified token. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims(Arc<Map<String, Value>>);

/// When a token is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validity {
    pub(super) starts: Option<u64>,
    pub(super) expires: Option<u64>,
}

impl Claims {
    pub(super) fn parse(json: &[u8]) -> Result<Self, JwtError> {
        // RFC 7519 section 4: a token with duplicate claims is rejected, or the last one counts. Another
        // reader of the token may have chosen the other way.
        check_unique_members(json)?;
        let claims = serde_json::from_slice(json).map_err(|_| JwtError::Malformed)?;
        Ok(Self(Arc::new(claims)))
    }

    /// Returns a claim as text: `sub`, or `org.id` for the `id` within `org`. A claim whose own name has
    /// dots takes precedence. Numbers and booleans are converted. Lists, objects, `null` and numbers that
    /// are too large to be distinct are not.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        match find(&self.0, path)? {
            Value::String(text) => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Number(number) => exact(number),
            _ => None,
        }
    }

    pub(super) fn validity(&self) -> Result<Validity, JwtError> {
        Ok(Validity { starts: self.seconds("nbf")?, expires: self.seconds("exp")? })
    }

    pub(super) fn issuer_is_among(&self, issuers: &[String]) -> bool {
        self.0.get("iss").is_some_and(|issuer| is_among(issuer, issuers))
    }

    pub(super) fn audience_is_among(&self, audiences: &[String]) -> bool {
        match self.0.get("aud") {
            Some(Value::Array(list)) => list.iter().any(|one| is_among(one, audiences)),
            Some(one) => is_among(one, audiences),
            None => false,
        }
    }

    fn seconds(&self, name: &str) -> Result<Option<u64>, JwtError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let whole = value.as_u64();
        // RFC 7519 allows fractions. The cast saturates: a time before 1970 is 0.
        let seconds = whole.or_else(|| value.as_f64().map(|seconds| seconds as u64));
        seconds.map(Some).ok_or(JwtError::Malformed)
    }
}

/// Tries the longest name first, then names within objects.
fn find<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    claims.get(path).or_else(|| {
        path.rmatch_indices('.').find_map(|(dot, _)| {
            let within = claims.get(&path[..dot])?.as_object()?;
            find(within, &path[dot + 1..])
        })
    })
}

fn is_among(value: &Value, texts: &[String]) -> bool {
    value.as_str().is_some_and(|value| texts.iter().any(|text| text == value))
}

/// Returns the number as text if it is exact. From 2^53 on, numbers that are not 64-bit integers are
/// rounded, so that different callers would share one number.
fn exact(number: &Number) -> Option<String> {
    const EXACT_MAX: f64 = (1_u64 << 53) as f64;
    let is_exact = number.is_u64()
        || number.is_i64()
        || number.as_f64().is_some_and(|value| value.abs() < EXACT_MAX);
    is_exact.then(|| number.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claims(value: &Value) -> Claims {
        Claims::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn claims_are_found_by_name_and_by_path() {
        let claims = claims(&json!({
            "sub": "ann",
            "org": {"id": 7, "plan": {"name": "pro"}, "a.b": "deep"},
            "org.plan": "flat",
            "https://x.example/tenant": {"id": "t"},
        }));
        let check =
            |path, text: Option<&str>| assert_eq!(claims.text(path).as_deref(), text, "{path}");
        check("sub", Some("ann"));
        check("org.id", Some("7"));
        check("org.plan", Some("flat"));
        check("org.plan.name", Some("pro"));
        check("org.a.b", Some("deep"));
        check("https://x.example/tenant.id", Some("t"));
        check("org", None);
        check("missing", None);
        check("sub.id", None);
        check("org.id.x", None);
        check("", None);
        check("..", None);
    }

    #[test]
    fn only_scalars_are_text() {
        let claims = claims(&json!({
            "no": -3, "big": u64::MAX, "half": 0.5, "yes": true, "list": ["a"], "null": null, "": "empty",
        }));
        assert_eq!(claims.text("no").as_deref(), Some("-3"));
        assert_eq!(claims.text("big").as_deref(), Some("18446744073709551615"));
        assert_eq!(claims.text("half").as_deref(), Some("0.5"));
        assert_eq!(claims.text("yes").as_deref(), Some("true"));
        assert_eq!(claims.text("").as_deref(), Some("empty"));
        assert_eq!(claims.text("list"), None);
        assert_eq!(claims.text("null"), None);
    }

    #[test]
    fn numbers_that_are_not_exact_are_not_text() {
        let claims = Claims::parse(br#"{"sub": 123456789012345678901}"#).unwrap();
        assert_eq!(claims.text("sub"), None);
    }
}
