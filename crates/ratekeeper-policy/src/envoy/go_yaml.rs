//! Reads YAML as envoyproxy/ratelimit does, by Go's yaml.v2 (YAML 1.1): merge keys, `yes` and `on`, and
//! numbers in other bases. Where that cannot be read alike, the difference is an error.

use std::collections::HashMap;

use serde_json::{Map, Number, Value as Json};

use crate::problems::{Problems, quoted};
use crate::schema::Schema;
use crate::yaml::{Node, Value};

/// The fields of a map, with their names.
type Entries = Vec<(Node, Node)>;

/// Returns the tree with merge keys applied, and with the booleans and numbers of the schema written as
/// `true`, `false` and decimal numbers.
pub(super) fn resolve(node: Node, schema: &Schema, problems: &mut Problems) -> Node {
    resolve_part(node, Some(schema), problems)
}

fn resolve_part(node: Node, schema: Option<&Schema>, problems: &mut Problems) -> Node {
    let span = node.span;
    let value = match node.value {
        Value::Scalar { .. } => return resolve_scalar(node, schema, problems),
        Value::List(items) => {
            let item = schema.and_then(Schema::item);
            let resolve = |node| resolve_part(node, item, problems);
            Value::List(items.into_iter().map(resolve).collect())
        }
        Value::Map(entries) => {
            let entries = merged(entries, problems);
            let resolve = |(key, value): (Node, Node)| {
                let name = key.text().unwrap_or_default();
                let field = schema.and_then(|schema| schema.field(name));
                let value = resolve_part(value, field, problems);
                (key, value)
            };
            Value::Map(entries.into_iter().map(resolve).collect())
        }
    };
    Node { span, value }
}

fn resolve_scalar(node: Node, schema: Option<&Schema>, problems: &mut Problems) -> Node {
    let Value::Scalar { text, is_quoted } = &node.value else { return node };
    let resolved = match schema.map(Schema::scalar) {
        Some(Schema::Integer(..)) => {
            let number = if *is_quoted { None } else { integer(text) };
            if number.is_none() && has_leading_zero(text) {
                problems.report(node.span, leading_zero(text));
            }
            number.map(|number| number.to_string())
        }
        _ if *is_quoted => None,
        Some(Schema::Boolean) => boolean(text).map(|value| value.to_string()),
        _ => matches!(text.as_str(), "Null" | "NULL").then(|| "null".to_string()),
    };
    match resolved {
        Some(text) => Node { value: Value::Scalar { text, is_quoted: *is_quoted }, ..node },
        None => node,
    }
}

fn has_leading_zero(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn leading_zero(text: &str) -> String {
    let decimal = text.trim_start_matches('0');
    let decimal = if decimal.is_empty() { "0" } else { decimal };
    format!(
        "envoyproxy/ratelimit does not read {} as a number: a leading 0 means octal; write {decimal}",
        quoted(text)
    )
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Some(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Some(false)
        }
        _ => None,
    }
}

/// Parses an integer: underscores are ignored, 0x is hexadecimal, 0b binary, and 0o or a leading 0 octal.
fn integer(text: &str) -> Option<i128> {
    text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-')).then_some(())?;
    let plain = text.replace('_', "").to_ascii_lowercase();
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let with_base = [("0x", 16), ("0b", 2), ("0o", 8)]
        .into_iter()
        .find_map(|(prefix, base)| Some((digits.strip_prefix(prefix)?, base)));
    let (digits, base) = with_base.unwrap_or_else(|| match digits.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => (octal, 8),
        _ => (digits, 10),
    });
    // The signs that Rust would accept here.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, base).ok().map(|number| sign * i128::from(number))
}

fn is_merge_key(key: &Node) -> bool {
    matches!(&key.value, Value::Scalar { text, is_quoted: false } if text == "<<")
}

/// Applies the merge keys of a map. Fields after a merge key override what it merges.
fn merged(entries: Entries, problems: &mut Problems) -> Entries {
    if !entries.iter().any(|(key, _)| is_merge_key(key)) {
        return entries;
    }
    let mut fields = Fields::default();
    for (key, value) in entries {
        if !is_merge_key(&key) {
            fields.set(key, value, problems);
            continue;
        }
        for (merged_key, merged_value) in sources(value, problems) {
            let name = merged_key.text().unwrap_or_default();
            if let Some((own, _)) = fields.get(name) {
                let why = format!(
                    "{} is before \"<<\", which sets it too: envoyproxy/ratelimit would use the merged \
                     value; put \"<<\" first",
                    quoted(name)
                );
                problems.report(own.span, why);
            } else {
                fields.set(merged_key, merged_value, problems);
            }
        }
    }
    fields.entries
}

/// Returns the fields that a merge key adds. Of a list of maps, earlier ones override later ones.
fn sources(value: Node, problems: &mut Problems) -> Entries {
    let maps = match value.value {
        Value::List(items) => items,
        _ => vec![value],
    };
    let mut fields = Fields::default();
    for map in maps.into_iter().rev() {
        let span = map.span;
        let Value::Map(entries) = map.value else {
            problems.report(span, "a merge key takes a map, such as *limit, or a list of maps");
            continue;
        };
        for (key, value) in merged(entries, problems) {
            fields.set(key, value, problems);
        }
    }
    fields.entries
}

/// The fields of a map to which others are merged.
#[derive(Default)]
struct Fields {
    entries: Entries,
    positions: HashMap<String, usize>,
}

impl Fields {
    fn get(&self, name: &str) -> Option<&(Node, Node)> {
        self.positions.get(name).map(|position| &self.entries[*position])
    }

    /// Sets a field. A map that overrides another one has to set all its fields: envoyproxy/ratelimit
    /// would keep those that it does not set.
    fn set(&mut self, key: Node, value: Node, problems: &mut Problems) {
        let name = key.text().unwrap_or_default().to_string();
        let Some(position) = self.positions.get(&name) else {
            self.positions.insert(name, self.entries.len());
            return self.entries.push((key, value));
        };
        let (_, overridden) = &self.entries[*position];
        let is_set = |name: &str| value.entries().iter().any(|(key, _)| key.text() == Some(name));
        let kept = overridden.entries().iter().filter_map(|(key, _)| key.text());
        let kept: Vec<_> = kept.filter(|name| !is_set(name)).map(quoted).collect();
        if matches!(value.value, Value::Map(_)) && !kept.is_empty() {
            let (kept, name) = (kept.join(", "), quoted(&name));
            let why = format!(
                "envoyproxy/ratelimit would keep {kept} of the merged {name}; set it here too, or merge \
                 a map without {name}"
            );
            problems.report(key.span, why);
        }
        self.entries[*position] = (key, value);
    }
}

/// Returns the metadata of a descriptor.
pub(super) fn metadata(node: &Node, problems: &mut Problems) -> Option<Map<String, Json>> {
    match json(node) {
        Json::Object(fields) if fields.is_empty() => None,
        Json::Object(fields) => Some(fields),
        _ => {
            problems.report(node.span, "metadata is a map of names and values");
            None
        }
    }
}

fn json(node: &Node) -> Json {
    match &node.value {
        Value::Scalar { text, is_quoted: true } => Json::from(text.as_str()),
        Value::Scalar { text, .. } if node.is_null() || matches!(&**text, "Null" | "NULL") => {
            Json::Null
        }
        Value::Scalar { text, .. } => plain_json(text),
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(entries) => {
            let mut fields = Map::new();
            for (key, value) in entries {
                fields.insert(key.text().unwrap_or_default().to_string(), json(value));
            }
            Json::Object(fields)
        }
    }
}

fn plain_json(text: &str) -> Json {
    let number = || {
        let integer = integer(text).and_then(Number::from_i128);
        // Words such as "inf" are text.
        let is_decimal = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
            && text.contains(|c: char| c.is_ascii_digit());
        integer.or_else(|| {
            let plain = is_decimal.then(|| text.replace('_', ""))?;
            Number::from_f64(plain.parse().ok()?)
        })
    };
    match boolean(text) {
        Some(value) => Json::Bool(value),
        None => number().map_or_else(|| Json::from(text), Json::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_go() {
        let cases = [
            ("10", Some(10)),
            ("0", Some(0)),
            ("010", Some(8)),
            ("0o17", Some(15)),
            ("0x1F", Some(31)),
            ("0b101", Some(5)),
            ("1_000_000", Some(1_000_000)),
            ("1__0", Some(10)),
            ("+5", Some(5)),
            ("-5", Some(-5)),
            ("-0x10", Some(-16)),
            ("08", None),
            ("_1", None),
            ("1e3", None),
            ("1.0", None),
            ("0x", None),
            ("--1", None),
            ("0x+1", None),
            ("", None),
            ("ten", None),
        ];
        for (text, expected) in cases {
            assert_eq!(integer(text), expected, "{text}");
        }
    }

    #[test]
    fn plain_values_of_metadata_are_those_of_go() {
        let cases = [
            ("yes", Json::Bool(true)),
            ("Off", Json::Bool(false)),
            ("0x10", 16.into()),
            ("1.5", Json::from(1.5)),
            ("-1e3", Json::from(-1000.0)),
            ("inf", "inf".into()),
            ("service_1", "service_1".into()),
            ("1.2.3", "1.2.3".into()),
        ];
        for (text, expected) in cases {
            assert_eq!(plain_json(text), expected, "{text}");
        }
    }
}
