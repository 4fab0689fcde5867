//! Single fields of a JSON document, found while the document streams by.
//!
//! The memory is bounded whatever the document is: nothing of it is kept but the values of the fields
//! that are looked for, and of those only short ones.

mod scanner;
mod string;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::attributes::AttributeValues;

pub use scanner::JsonScanner;

/// Maximum number of names in a path.
const NAMES_MAX: usize = 8;

/// Maximum length of a name in a path, in bytes.
const NAME_MAX: usize = 64;

/// Maximum number of paths that are looked for at once.
pub(crate) const PATHS_MAX: usize = 32;

/// Maximum number of different values of one field that are kept.
const VALUES_MAX: usize = 8;

/// The path of a field: the names of nested members, joined by dots.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_policy as policy; }
/// use ratekeeper::policy::json_fields::JsonPath;
///
/// let path: JsonPath = "usage.total_tokens".parse()?;
/// assert_eq!(path.to_string(), "usage.total_tokens");
/// assert!("usage..total".parse::<JsonPath>().is_err());
/// # Ok::<(), ratekeeper::policy::json_fields::JsonPathError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(Arc<str>);

/// Why a text is not the path of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a field is 1 to {NAMES_MAX} names of 1 to {NAME_MAX} bytes, joined by dots, such as usage.total_tokens"
)]
pub struct JsonPathError;

impl std::str::FromStr for JsonPath {
    type Err = JsonPathError;

    fn from_str(text: &str) -> Result<Self, JsonPathError> {
        let is_name = |name: &str| (1..=NAME_MAX).contains(&name.len());
        let is_path = text.split('.').all(is_name) && text.split('.').count() <= NAMES_MAX;
        is_path.then(|| Self(text.into())).ok_or(JsonPathError)
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonPath {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }
}

/// The fields to look for in a document.
#[derive(Clone, Debug, Default)]
pub struct JsonPaths(Arc<[JsonPath]>);

impl JsonPaths {
    /// Returns these paths without duplicates.
    ///
    /// # Panics
    ///
    /// If there are more than 32.
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = JsonPath>) -> Self {
        let mut distinct: Vec<JsonPath> = Vec::new();
        for path in paths {
            if !distinct.contains(&path) {
                distinct.push(path);
            }
        }
        assert!(distinct.len() <= PATHS_MAX, "at most {PATHS_MAX} fields are looked for");
        Self(distinct.into())
    }

    /// Returns whether nothing is looked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn position(&self, path: &str) -> Option<usize> {
        self.0.iter().position(|known| &*known.0 == path)
    }
}

/// The values of one field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldValues {
    /// The different values, in order. A string is its content; a number or boolean is its text. `null` is
    /// no value.
    pub known: SmallVec<[Vec<u8>; 1]>,
    /// Whether there are values that are not known: too many, too long, an object or an array.
    pub are_more: bool,
}

impl FieldValues {
    /// Returns the value as a whole number, if there is one value and it is one. `150.0` and `1.5e2` are 150.
    #[must_use]
    pub fn integer(&self) -> Option<u64> {
        match (&self.known[..], self.are_more) {
            ([value], false) => whole_number(std::str::from_utf8(value).ok()?),
            _ => None,
        }
    }

    /// Returns whether there is no value.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && !self.are_more
    }

    fn add(&mut self, value: &[u8]) {
        match self.known.iter().any(|known| known == value) {
            true => {}
            false if self.known.len() < VALUES_MAX => self.known.push(value.to_vec()),
            false => self.are_more = true,
        }
    }
}

/// Parses a JSON number that is whole and not negative.
fn whole_number(text: &str) -> Option<u64> {
    let (decimal, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = decimal.split_once('.').unwrap_or((decimal, ""));
    let digits = [whole, fraction].concat();
    if whole.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let exponent = i64::from(exponent.parse::<i32>().ok()?);
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    let zeros = exponent + whole.len() as i64 - significant.len() as i64;
    let factor = 10_u64.checked_pow(u32::try_from(zeros).ok()?)?;
    significant.parse::<u64>().ok()?.checked_mul(factor)
}

/// The fields that were found in a document.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_policy as policy; }
/// use ratekeeper::policy::json_fields::{JsonFields, JsonPaths};
///
/// let paths = JsonPaths::new(["model".parse()?, "max_tokens".parse()?]);
/// let fields = JsonFields::of(br#"{"model": "large", "max_tokens": 500}"#, &paths).expect("valid JSON");
/// assert_eq!(fields.get("max_tokens").and_then(|values| values.integer()), Some(500));
/// # Ok::<(), ratekeeper::policy::json_fields::JsonPathError>(())
/// ```
#[derive(Clone, Debug)]
pub struct JsonFields {
    paths: JsonPaths,
    values: SmallVec<[FieldValues; 4]>,
}

impl JsonFields {
    fn none_of(paths: &JsonPaths) -> Self {
        let values = paths.0.iter().map(|_| FieldValues::default()).collect();
        Self { paths: paths.clone(), values }
    }

    /// Returns the fields of a whole document; `None` if it is not valid JSON or is nested too deeply.
    #[must_use]
    pub fn of(document: &[u8], paths: &JsonPaths) -> Option<Self> {
        let mut scanner = JsonScanner::new(paths);
        scanner.feed(document);
        scanner.finish().cloned()
    }

    /// Returns the values of a field as those of an attribute. If it was not looked for, any is possible.
    pub(crate) fn values(&self, path: &JsonPath) -> AttributeValues<'_> {
        let Some(values) = self.get(&path.0) else { return AttributeValues::unknown() };
        let known = values.known.iter().map(|value| value.as_slice().into()).collect();
        AttributeValues { known, are_more: values.are_more }
    }

    /// Returns the values of a field; `None` if it was not looked for.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&FieldValues> {
        self.values.get(self.paths.position(path)?)
    }
}
