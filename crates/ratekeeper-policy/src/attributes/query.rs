//! Query parameters.

use std::borrow::Cow;
use std::collections::HashMap;

use smallvec::SmallVec;

use super::AttributeValues;
use crate::path::percent_decoded;

/// More parameters than any program sends. A query with more may mean anything.
const PARAMETERS_MAX: usize = 1_024;

/// The parameters of a query, in every way in which upstreams may read it.
///
/// Some upstreams take `;` for a separator like `&`, others for a character like any other, so a query
/// with `;` has two readings. `None` if there are too many parameters.
pub(crate) struct Parameters<'r>(Option<SmallVec<[Parsed<'r>; 1]>>);

type Parsed<'r> = HashMap<Cow<'r, [u8]>, AttributeValues<'r>>;

impl<'r> Parameters<'r> {
    pub(crate) fn parse(query: Option<&'r str>) -> Self {
        let query = query.unwrap_or_default().as_bytes();
        let separators = query.iter().filter(|byte| matches!(byte, b'&' | b';')).count();
        if separators >= PARAMETERS_MAX {
            return Self(None);
        }
        let mut readings = SmallVec::new();
        readings.push(parsed(query.split(|byte| *byte == b'&')));
        if query.contains(&b';') {
            readings.push(parsed(query.split(|byte| matches!(byte, b'&' | b';'))));
        }
        Self(Some(readings))
    }

    /// The values of a parameter, by each reading.
    pub(crate) fn readings(&self, name: &str) -> SmallVec<[Cow<'_, AttributeValues<'r>>; 1]> {
        let Some(readings) = &self.0 else {
            return SmallVec::from_iter([Cow::Owned(AttributeValues::unknown())]);
        };
        let values = readings.iter().map(|parsed| parsed.get(name.as_bytes()));
        values.map(|values| values.map(Cow::Borrowed).unwrap_or_default()).collect()
    }
}

fn parsed<'r>(pairs: impl Iterator<Item = &'r [u8]>) -> Parsed<'r> {
    let mut parsed = Parsed::new();
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let value = pair.get(end + 1..).unwrap_or_default();
        parsed.entry(decoded(&pair[..end])).or_default().add(decoded(value));
    }
    parsed
}

/// Decodes form encoding: escapes once, and `+` as a space.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return text.into();
    }
    let spaced: Vec<u8> =
        text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_decoded(&spaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(query: &str) -> Vec<Vec<String>> {
        let text = |value: &Cow<'_, [u8]>| String::from_utf8_lossy(value).into_owned();
        let parameters = Parameters::parse(Some(query));
        let readings = parameters.readings("user");
        readings.iter().map(|values| values.known.iter().map(text).collect()).collect()
    }

    #[test]
    fn names_and_values_are_decoded_once() {
        assert_eq!(shown("user=b%6fb&us%65r=a+b&user&x=user=1"), [["bob", "a b", ""]]);
        assert_eq!(shown("user=%256f&user=a%2Bb&user=a=b"), [["%6f", "a+b", "a=b"]]);
        assert_eq!(shown("User=bob&&"), [Vec::<String>::new()]);
    }

    #[test]
    fn a_query_of_any_length_takes_bounded_work() {
        let values: Vec<_> = (0..100).map(|n| format!("user={n}")).collect();
        let parameters = Parameters::parse(Some("x=1"));
        assert!(!parameters.readings("user")[0].are_more);
        let query = values.join("&");
        let parameters = Parameters::parse(Some(&query));
        let values = &parameters.readings("user")[0];
        assert_eq!((values.known.len(), values.are_more), (super::super::VALUES_MAX, true));
        let same = "user=ann&".repeat(1_000);
        assert_eq!(shown(&same), [["ann"]]);
        let long = "x=1&".repeat(PARAMETERS_MAX);
        let parameters = Parameters::parse(Some(&long));
        assert!(parameters.readings("user")[0].are_more && shown(&long)[0].is_empty());
    }

    #[test]
    fn a_semicolon_may_separate() {
        assert_eq!(shown("a=1;user=bob"), [vec![], vec!["bob"]]);
        assert_eq!(shown("user=bob;x"), [["bob;x"], ["bob"]]);
        assert_eq!(shown("x=1;y=2&user=bob"), [["bob"], ["bob"]]);
        assert_eq!(shown("user=b%3Bob"), [["b;ob"]]);
    }
}
