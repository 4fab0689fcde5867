//! The shape of a file: one description that checks it and from which its schema is made.

use serde_json::{Map, Value as Json, json};

use crate::problems::Problems;
use crate::suggest::closest;
use crate::yaml::{Node, Value};

/// What may stand at a place.
pub(crate) enum Shape {
    /// Any text. The words say what, for errors and editors.
    Text(&'static str),
    /// A text of a form that is checked elsewhere: a rate, a duration, a pattern.
    Form {
        what: &'static str,
        pattern: &'static str,
    },
    /// A whole number from the one to the other.
    Integer(u64, u64),
    Boolean,
    /// One of these words, each with what it means.
    Choice(&'static [(&'static str, &'static str)]),
    List(&'static Shape),
    /// One, or a list of them.
    OneOrMany(&'static Shape),
    /// Names of one's own, each with one of these.
    Map(&'static Shape),
    Section(&'static Section),
    /// The one if it has one of these fields, else the other.
    Tagged {
        by: &'static [&'static str],
        tagged: &'static Section,
        plain: &'static Section,
    },
    /// Any of these.
    Either(&'static [Shape]),
}

/// A map whose names are known.
pub(crate) struct Section {
    /// What it is, as in "unknown field of a limit".
    pub(crate) what: &'static str,
    pub(crate) fields: &'static [Field],
    /// Exactly one of these has to be there.
    pub(crate) one_of: &'static [&'static str],
}

pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) is_required: bool,
    pub(crate) shape: Shape,
    pub(crate) doc: &'static str,
}

impl Shape {
    /// Reports whatever does not have this shape.
    pub(crate) fn check(&self, node: &Node, problems: &mut Problems) {
        match (self, &node.value) {
            (Self::Either(shapes), _) => self.check_either(shapes, node, problems),
            (Self::List(item), Value::List(items)) => {
                items.iter().for_each(|node| item.check(node, problems));
            }
            (Self::OneOrMany(item), _) => {
                node.items().iter().for_each(|node| item.check(node, problems));
            }
            (Self::Map(of), Value::Map(entries)) => {
                entries.iter().for_each(|(_, value)| of.check(value, problems));
            }
            (Self::Section(section), Value::Map(entries)) => {
                section.check(node, entries, problems);
            }
            (Self::Tagged { by, tagged, plain }, Value::Map(entries)) => {
                let is_tagged = by.iter().any(|name| node.get(name).is_some());
                (if is_tagged { tagged } else { plain }).check(node, entries, problems);
            }
            (_, Value::Scalar { text, .. }) if self.accepts_text(text) => {}
            _ => problems.report(node.span, self.complaint(node)),
        }
    }

    /// The alternatives that could be meant are those of the node's own kind.
    fn check_either(&self, shapes: &[Shape], node: &Node, problems: &mut Problems) {
        let of_kind = |shape: &&Shape| shape.is_of_kind(node);
        if let Value::Scalar { text, .. } = &node.value {
            let mut meant = shapes.iter().filter(of_kind);
            return match meant.any(|shape| shape.accepts_text(text)) {
                true => {}
                false => problems.report(node.span, self.complaint(node)),
            };
        }
        match shapes.iter().find(of_kind) {
            Some(shape) => shape.check(node, problems),
            None => problems.report(node.span, self.complaint(node)),
        }
    }

    fn is_of_kind(&self, node: &Node) -> bool {
        match self {
            Self::Map(_) | Self::Section(_) | Self::Tagged { .. } => {
                matches!(node.value, Value::Map(_))
            }
            Self::List(_) => matches!(node.value, Value::List(_)),
            Self::OneOrMany(item) => matches!(node.value, Value::List(_)) || item.is_of_kind(node),
            Self::Either(shapes) => shapes.iter().any(|shape| shape.is_of_kind(node)),
            _ => matches!(node.value, Value::Scalar { .. }),
        }
    }

    fn accepts_text(&self, text: &str) -> bool {
        match self {
            Self::Text(_) | Self::Form { .. } => !text.is_empty(),
            Self::Integer(least, most) => {
                text.parse().is_ok_and(|n: u64| (*least..=*most).contains(&n))
            }
            Self::Boolean => matches!(text, "true" | "false"),
            Self::Choice(words) => words.iter().any(|(word, _)| *word == text),
            Self::OneOrMany(item) => item.accepts_text(text),
            Self::Either(shapes) => shapes.iter().any(|shape| shape.accepts_text(text)),
            _ => false,
        }
    }

    fn complaint(&self, node: &Node) -> String {
        let expected = self.expected();
        let Value::Scalar { text, .. } = &node.value else {
            let found = if matches!(node.value, Value::List(_)) { "a list" } else { "a map" };
            return format!("expected {expected}, found {found}");
        };
        let suggestion = self.words().and_then(|words| closest(text, words.into_iter()));
        match suggestion {
            Some(word) => format!("\"{text}\" is none of {expected}; did you mean \"{word}\"?"),
            None if text.is_empty() => format!("a value is missing: {expected}"),
            None => format!("expected {expected}, found \"{text}\""),
        }
    }

    fn words(&self) -> Option<Vec<&'static str>> {
        match self {
            Self::Choice(words) => Some(words.iter().map(|(word, _)| *word).collect()),
            Self::OneOrMany(item) => item.words(),
            Self::Either(shapes) => shapes.iter().find_map(Shape::words),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Text(what) | Self::Form { what, .. } => (*what).into(),
            Self::Integer(least, most) => format!("a whole number from {least} to {most}"),
            Self::Boolean => "true or false".into(),
            Self::Choice(words) => {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                words.join(", ")
            }
            Self::List(item) => format!("a list of {}", item.expected()),
            Self::OneOrMany(item) => format!("{} or a list of such", item.expected()),
            Self::Map(of) => format!("names with {}", of.expected()),
            Self::Section(section) | Self::Tagged { plain: section, .. } => section.what.into(),
            Self::Either(shapes) => {
                let each: Vec<_> = shapes.iter().map(Shape::expected).collect();
                each.join(", or ")
            }
        }
    }
}

impl Section {
    fn check(&self, node: &Node, entries: &[(Node, Node)], problems: &mut Problems) {
        for (key, value) in entries {
            let name = key.text().unwrap_or_default();
            match self.fields.iter().find(|field| field.name == name) {
                Some(field) if value.is_null() && field.is_required => {
                    let expected = field.shape.expected();
                    problems.report(key.span, format!("\"{name}\" has no value: {expected}"));
                }
                Some(_) if value.is_null() => {}
                Some(field) => field.shape.check(value, problems),
                None => problems.report(key.span, self.unknown(name)),
            }
        }
        let first = entries.first().map_or(node.span, |(key, _)| key.span);
        let is_there = |name: &str| entries.iter().any(|(key, _)| key.text() == Some(name));
        for field in self.fields.iter().filter(|field| field.is_required && !is_there(field.name)) {
            let Field { name, shape, .. } = field;
            let (what, expected) = (self.what, shape.expected());
            problems.report(first, format!("{what} needs \"{name}\": {expected}"));
        }
        self.check_one_of(first, is_there, problems);
    }

    fn check_one_of(
        &self,
        at: crate::yaml::Span,
        is_there: impl Fn(&str) -> bool,
        problems: &mut Problems,
    ) {
        let there: Vec<_> = self.one_of.iter().filter(|name| is_there(name)).collect();
        if !self.one_of.is_empty() && there.len() != 1 {
            let (what, names) = (self.what, self.one_of.join(", "));
            problems.report(at, format!("{what} has exactly one of these: {names}"));
        }
    }

    fn unknown(&self, name: &str) -> String {
        let names = || self.fields.iter().map(|field| field.name);
        let what = self.what;
        match closest(name, names()) {
            Some(near) => format!("unknown field \"{name}\" of {what}; did you mean \"{near}\"?"),
            None => {
                let names = names().collect::<Vec<_>>().join(", ");
                format!("unknown field \"{name}\" of {what}; it may have {names}")
            }
        }
    }
}

/// The JSON Schema of a file of this shape.
pub(crate) fn json_schema(root: &'static Section, title: &str) -> Json {
    let mut definitions = Map::new();
    let of_root = section_schema(root, &mut definitions);
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
    });
    if let (Json::Object(schema), Json::Object(of_root)) = (&mut schema, of_root) {
        schema.extend(of_root);
        schema.insert("$defs".into(), Json::Object(definitions));
    }
    schema
}

fn shape_schema(shape: &Shape, definitions: &mut Map<String, Json>) -> Json {
    match shape {
        Shape::Text(what) => {
            json!({ "type": ["string", "number", "boolean"], "description": what })
        }
        Shape::Form { what, pattern } => {
            json!({ "type": ["string", "number"], "description": what, "pattern": pattern })
        }
        Shape::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Shape::Boolean => json!({ "type": "boolean" }),
        Shape::Choice(words) => {
            let one = |(word, doc): &(&str, &str)| json!({ "const": word, "description": doc });
            json!({ "oneOf": words.iter().map(one).collect::<Vec<_>>() })
        }
        Shape::List(item) => json!({ "type": "array", "items": shape_schema(item, definitions) }),
        Shape::OneOrMany(item) => {
            let item = shape_schema(item, definitions);
            json!({ "anyOf": [item.clone(), { "type": "array", "items": item }] })
        }
        Shape::Map(of) => {
            json!({ "type": "object", "additionalProperties": shape_schema(of, definitions) })
        }
        Shape::Section(section) => reference(section, definitions),
        Shape::Tagged { tagged, plain, .. } => {
            json!({ "anyOf": [reference(plain, definitions), reference(tagged, definitions)] })
        }
        Shape::Either(shapes) => {
            let each = shapes.iter().map(|shape| shape_schema(shape, definitions));
            json!({ "anyOf": each.collect::<Vec<_>>() })
        }
    }
}

/// Sections are named once and referred to, for some contain themselves.
fn reference(section: &Section, definitions: &mut Map<String, Json>) -> Json {
    let name = section.what.trim_start_matches(['a', 'n']).trim().replace(' ', "_");
    if !definitions.contains_key(&name) {
        definitions.insert(name.clone(), Json::Null);
        let schema = section_schema(section, definitions);
        definitions.insert(name.clone(), schema);
    }
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn section_schema(section: &Section, definitions: &mut Map<String, Json>) -> Json {
    let mut properties = Map::new();
    for field in section.fields {
        let mut schema = shape_schema(&field.shape, definitions);
        if let Json::Object(schema) = &mut schema {
            schema.insert("description".into(), field.doc.into());
        }
        properties.insert(field.name.into(), schema);
    }
    let required = section.fields.iter().filter(|field| field.is_required).map(|field| field.name);
    let mut schema = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "required": required.collect::<Vec<_>>(),
    });
    if !section.one_of.is_empty() {
        let one = |name: &&str| json!({ "required": [name] });
        schema["oneOf"] = section.one_of.iter().map(one).collect();
    }
    schema
}
