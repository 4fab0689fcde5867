//! Rejects JSON objects with duplicate members.
//!
//! Parsers disagree about such an object: some take the first value, some the last. If the upstream
//! takes another value, the wrong client is counted.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashSet;
use std::error::Error;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::problems::quoted;

/// Why JSON is rejected.
#[derive(Debug)]
#[non_exhaustive]
pub enum JsonError {
    /// The text is not valid JSON.
    Invalid(serde_json::Error),
    /// An object has two members with this name.
    Duplicate {
        /// The name, as it was written the second time.
        name: String,
        /// The line of the second one, counted from 1.
        line: usize,
        /// The column in which that name ends, counted from 1.
        column: usize,
    },
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => write!(f, "invalid JSON: {error}"),
            Self::Duplicate { name, line, column } => {
                let name = quoted(name);
                write!(f, "{name} is given twice at line {line} column {column}; give it once")
            }
        }
    }
}

impl Error for JsonError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Invalid(error) => Some(error),
            Self::Duplicate { .. } => None,
        }
    }
}

/// Checks that the text is valid JSON and that no object in it has two members of one name.
///
/// ```
/// # use ratekeeper_policy::json::check_unique_members;
/// assert!(check_unique_members(br#"{"a": {"b": 1}, "b": 2}"#).is_ok());
/// assert!(check_unique_members(br#"{"a": 1, "\u0061": 2}"#).is_err());
/// ```
///
/// # Errors
///
/// Returns the first duplicate, or why the text is not valid JSON.
pub fn check_unique_members(json: &[u8]) -> Result<(), JsonError> {
    check_unique_members_by(json, |name| Cow::Borrowed(name))
}

/// Does the same for a format in which one name has several spellings: names are compared as
/// `canonical` writes them.
///
/// # Errors
///
/// Returns the first duplicate, or why the text is not valid JSON.
pub fn check_unique_members_by(
    json: &[u8],
    canonical: fn(&str) -> Cow<'_, str>,
) -> Result<(), JsonError> {
    let duplicate = RefCell::new(None);
    let mut text = serde_json::Deserializer::from_slice(json);
    let check = UniqueMembers { canonical, duplicate: &duplicate };
    let checked = check.deserialize(&mut text).and_then(|()| text.end());
    checked.map_err(|error| match duplicate.take() {
        Some(name) => JsonError::Duplicate { name, line: error.line(), column: error.column() },
        None => JsonError::Invalid(error),
    })
}

/// Visits a value and keeps nothing of it but the names of the objects that are still open.
#[derive(Clone, Copy)]
struct UniqueMembers<'c> {
    canonical: fn(&str) -> Cow<'_, str>,
    duplicate: &'c RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for UniqueMembers<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueMembers<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            if !names.insert((self.canonical)(&name).into_owned()) {
                self.duplicate.replace(Some(name));
                return Err(A::Error::custom("duplicate member"));
            }
            members.next_value_seed(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(json: &str) -> String {
        check_unique_members(json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn duplicates_are_found_at_any_depth() {
        let position = "at line 1 column 10; give it once";
        assert_eq!(error(r#"{"a":1,"a":1}"#), format!("\"a\" is given twice {position}"));
        for json in [
            r#"{"a":1,"b":2,"a":3}"#,
            r#"{"a":null,"a":null}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"x":{"a":1,"a":2}}"#,
            r#"[0,[{"x":1},{"a":1,"a":[]}]]"#,
            r#"{"":1,"":2}"#,
        ] {
            assert!(error(json).contains("is given twice"), "{json}");
        }
    }

    #[test]
    fn objects_side_by_side_and_within_each_other_may_have_the_same_names() {
        for json in [
            r#"[{"a":1},{"a":2}]"#,
            r#"{"a":{"a":{"a":1}}}"#,
            r#"{"a":1,"A":2,"a ":3}"#,
            " -1.5e3 ",
            r#"[null,true,false,18446744073709551615,-9223372036854775808,""]"#,
        ] {
            assert!(check_unique_members(json.as_bytes()).is_ok(), "{json}");
        }
    }

    #[test]
    fn invalid_json_is_rejected() {
        for json in ["", "{", "{\"a\":1} x", "nul", "{'a':1}", "\"\u{1}\""] {
            assert!(error(json).starts_with("invalid JSON: "), "{json}");
        }
        assert!(error(&"[".repeat(100_000)).contains("recursion limit"));
    }

    #[test]
    fn long_names_are_shortened_in_errors() {
        let name = "x".repeat(10_000);
        let error = error(&format!(r#"{{"{name}":1,"{name}":2}}"#));
        assert!(error.len() < 200, "{error}");
    }

    #[test]
    fn names_may_have_several_spellings() {
        let lower = |name: &str| Cow::<str>::Owned(name.to_ascii_lowercase());
        assert!(check_unique_members_by(br#"{"a":1,"A":2}"#, lower).is_err());
        assert!(check_unique_members_by(br#"{"a":1,"B":2}"#, lower).is_ok());
    }

    proptest! {
        #[test]
        fn it_accepts_what_serde_json_accepts_and_has_no_duplicates(text in "[\\[\\]{}:,\"ab1 ]{0,12}") {
            let parsed = serde_json::from_str::<serde_json::Value>(&text);
            match check_unique_members(text.as_bytes()) {
                Ok(()) => prop_assert!(parsed.is_ok()),
                Err(JsonError::Invalid(_)) => prop_assert!(parsed.is_err()),
                Err(JsonError::Duplicate { .. }) => {}
            }
        }
    }
}
