//! Query parameters.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::AttributeValues;
use crate::path::percent_decoded;

/// Returns the values of a parameter for each way in which upstreams read the query.
///
/// Some upstreams treat `;` as a separator like `&`, others as an ordinary character, so a query with
/// `;` has two readings.
pub(crate) fn readings<'r>(
    query: Option<&'r str>,
    name: &str,
) -> SmallVec<[AttributeValues<'r>; 1]> {
    let query = query.unwrap_or_default().as_bytes();
    let mut readings = SmallVec::new();
    readings.push(values(query.split(|byte| *byte == b'&'), name));
    if query.contains(&b';') {
        readings.push(values(query.split(|byte| matches!(byte, b'&' | b';')), name));
    }
    readings
}

fn values<'r>(pairs: impl Iterator<Item = &'r [u8]>, name: &str) -> AttributeValues<'r> {
    let named = pairs.filter_map(|pair| {
        let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let value = pair.get(end + 1..).unwrap_or_default();
        let is_named = !pair.is_empty() && *decoded(&pair[..end]) == *name.as_bytes();
        is_named.then(|| decoded(value))
    });
    named.collect()
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
        let readings = readings(Some(query), "user");
        readings.iter().map(|values| values.iter().map(text).collect()).collect()
    }

    #[test]
    fn names_and_values_are_decoded_once() {
        assert_eq!(shown("user=b%6fb&us%65r=a+b&user&x=user=1"), [["bob", "a b", ""]]);
        assert_eq!(shown("user=%256f&user=a%2Bb&user=a=b"), [["%6f", "a+b", "a=b"]]);
        assert_eq!(shown("User=bob&&"), [Vec::<String>::new()]);
    }

    #[test]
    fn a_query_with_a_semicolon_has_two_readings() {
        assert_eq!(shown("a=1;user=bob"), [vec![], vec!["bob"]]);
        assert_eq!(shown("user=bob;x"), [["bob;x"], ["bob"]]);
        assert_eq!(shown("x=1;y=2&user=bob"), [["bob"], ["bob"]]);
        assert_eq!(shown("user=b%3Bob"), [["b;ob"]]);
    }
}
