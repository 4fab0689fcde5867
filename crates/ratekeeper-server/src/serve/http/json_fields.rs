//! Reads the fields of a JSON body.

use std::time::Duration;

use ratekeeper::policy::json::check_unique_members;
use ratekeeper::{Cost, MaxDebt};
use serde_json::{Map, Value};

use super::error::RequestError;
use crate::serve::hold_time;

/// The longest key, in bytes.
pub(super) const KEY_MAX: usize = 1_024;
pub(super) type JsonObject = Map<String, Value>;

/// Parses a body, which must be an object without duplicate members.
pub(super) fn parse_object(body: &[u8]) -> Result<JsonObject, RequestError> {
    check_unique_members(body)?;
    match serde_json::from_slice(body).map_err(RequestError::Json)? {
        Value::Object(object) => Ok(object),
        _ => Err(RequestError::NotAnObject),
    }
}

/// Rejects unknown fields: a misspelt one must not be ignored.
pub(super) fn check_known(object: &JsonObject, known: &[&'static str]) -> Result<(), RequestError> {
    let Some(unknown) = object.keys().find(|name| !known.contains(&name.as_str())) else {
        return Ok(());
    };
    let closest = ratekeeper::policy::suggest::closest(unknown, known.iter().copied());
    Err(RequestError::UnknownField { field: unknown.clone(), closest, known: known.to_vec() })
}

pub(super) fn string<'o>(
    object: &'o JsonObject,
    field: &'static str,
) -> Result<Option<&'o str>, RequestError> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(RequestError::FieldType { field, expected: "a string" }),
    }
}

/// Returns `overdraft`, which is true, false or an object with the maximum debt.
pub(super) fn overdraft(object: &JsonObject) -> Result<Option<MaxDebt>, RequestError> {
    let expected = "true, false, or an object such as {\"max\": 500} or {\"max\": \"2x\"}";
    let wrong = || RequestError::FieldType { field: "overdraft", expected };
    let section = match object.get("overdraft") {
        None | Some(Value::Null | Value::Bool(false)) => return Ok(None),
        Some(Value::Bool(true)) => return Ok(Some(MaxDebt::NONE)),
        Some(Value::Object(section)) => section,
        Some(_) => return Err(wrong()),
    };
    check_known(section, &["max"])?;
    match section.get("max") {
        Some(Value::String(text)) => text.parse().map(Some).map_err(|_| wrong()),
        Some(units @ Value::Number(_)) => {
            whole_number(units).map(MaxDebt::of_units).map(Some).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

pub(super) fn required_string<'o>(
    object: &'o JsonObject,
    field: &'static str,
    expected: &'static str,
) -> Result<&'o str, RequestError> {
    string(object, field)?.ok_or(RequestError::MissingField { field, expected })
}

pub(super) fn integer(
    object: &JsonObject,
    field: &'static str,
) -> Result<Option<u64>, RequestError> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match whole_number(value) {
            Some(number) => Ok(Some(number)),
            None => {
                Err(RequestError::FieldType { field, expected: "a whole number, not negative" })
            }
        },
    }
}

/// Returns an integer, also one that is written as `424.0`: to JSON Schema, and to languages without integers,
/// that is the same number.
fn whole_number(value: &Value) -> Option<u64> {
    const END: f64 = 18_446_744_073_709_551_616.0;
    let is_whole = |number: &f64| number.fract() == 0.0 && (0.0..END).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(is_whole).map(|number| number as u64))
}

pub(super) fn required_integer(
    object: &JsonObject,
    field: &'static str,
    expected: &'static str,
) -> Result<u64, RequestError> {
    integer(object, field)?.ok_or(RequestError::MissingField { field, expected })
}

pub(super) fn key(object: &JsonObject) -> Result<String, RequestError> {
    checked_key(required_string(object, "key", "who is limited, such as \"user:42\"")?)
}

pub(super) fn checked_key(key: &str) -> Result<String, RequestError> {
    match key.len() {
        0 => Err(RequestError::EmptyKey),
        len if len > KEY_MAX => Err(RequestError::KeyTooLong(len)),
        _ => Ok(key.to_string()),
    }
}

/// Returns `cost`, which is 1 by default.
pub(super) fn cost(object: &JsonObject) -> Result<Cost, RequestError> {
    Cost::new(integer(object, "cost")?.unwrap_or(1)).ok_or(RequestError::ZeroCost)
}

/// Returns how long to hold a reservation or a permit, from `valid_ms`.
pub(super) fn hold_time(object: &JsonObject) -> Result<Duration, RequestError> {
    hold_time::hold_time(integer(object, "valid_ms")?).ok_or(RequestError::HoldTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        let parse = |text: &str| whole_number(&serde_json::from_str(text).unwrap());
        assert_eq!(parse("424"), Some(424));
        assert_eq!(parse("424.0"), Some(424));
        assert_eq!(parse("4.24e2"), Some(424));
        assert_eq!(parse("-0.0"), Some(0));
        assert_eq!(parse("18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse("18446744073709549568.0"), Some(u64::MAX - 2_047));
        for text in ["424.5", "-1", "-1.0", "18446744073709551616", "1e300", "\"1\"", "true"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
