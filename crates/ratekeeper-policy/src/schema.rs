//! The schema of a file format. It validates files, and the JSON Schema is generated from it.

use crate::problems::{Problems, quoted};
use crate::suggest::closest;
use crate::yaml::{Node, Value};

/// The schema of a value.
pub(crate) enum Schema {
    /// Any text, with a description for errors and editors.
    Text(&'static str),
    /// Any value, with a description.
    Anything(&'static str),
    /// A text whose format is checked elsewhere: a rate, a duration, a pattern.
    Form {
        what: &'static str,
        pattern: &'static str,
    },
    /// An integer in an inclusive range.
    Integer(u64, u64),
    Boolean,
    /// One of these words, each with a description.
    Choice(&'static [(&'static str, &'static str)]),
    List(&'static Schema),
    /// One value, or a list of values.
    OneOrMany(&'static Schema),
    /// A map with arbitrary names.
    Map(&'static Schema),
    Section(&'static Section),
    /// A map that is the section if it has any of its fields, else a map with arbitrary names.
    SectionOrMap {
        section: &'static Section,
        map: &'static Schema,
    },
    /// `tagged` if the map has one of the fields in `by`, else `plain`.
    Tagged {
        by: &'static [&'static str],
        tagged: &'static Section,
        plain: &'static Section,
    },
    /// Any of these schemas.
    Either(&'static [Schema]),
}

/// A map with a fixed set of fields.
pub(crate) struct Section {
    /// Its name with an article, as in "unknown field of a limit".
    pub(crate) what: &'static str,
    pub(crate) fields: &'static [Field],
    /// Exactly one of these fields is required.
    pub(crate) one_of: &'static [&'static str],
}

pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) is_required: bool,
    /// Whether the value may be null or empty.
    pub(crate) may_be_empty: bool,
    pub(crate) schema: Schema,
    pub(crate) doc: &'static str,
}

impl Schema {
    /// Reports everything that violates this schema, which is that of a whole file.
    pub(crate) fn check(&self, node: &Node, problems: &mut Problems) {
        self.check_part(node, self, problems);
    }

    /// Returns the schema of the items of a list.
    pub(crate) fn item(&self) -> Option<&Schema> {
        match self {
            Self::List(item) | Self::OneOrMany(item) => Some(item),
            Self::Either(schemas) => schemas.iter().find_map(Schema::item),
            _ => None,
        }
    }

    /// Returns the schema of a field of a map.
    pub(crate) fn field(&self, name: &str) -> Option<&Schema> {
        match self {
            Self::Section(section) => {
                let field = section.fields.iter().find(|field| field.name == name);
                field.map(|field| &field.schema)
            }
            Self::OneOrMany(item) => item.field(name),
            Self::Either(schemas) => schemas.iter().find_map(|schema| schema.field(name)),
            _ => None,
        }
    }

    /// Returns the schema of a scalar: the first alternative that is a number or a boolean.
    pub(crate) fn scalar(&self) -> &Schema {
        let is_typed = |schema: &&Schema| matches!(schema, Self::Integer(..) | Self::Boolean);
        match self {
            Self::Either(schemas) => schemas.iter().find(is_typed).unwrap_or(self),
            _ => self,
        }
    }

    /// Reports everything that violates this schema, which is a part of `root`.
    fn check_part(&self, node: &Node, root: &Schema, problems: &mut Problems) {
        if problems.is_full() {
            return;
        }
        match (self, &node.value) {
            (Self::Anything(_), _) => {}
            (Self::Either(schemas), _) => self.check_either(schemas, node, root, problems),
            // An empty value would match either everything or nothing.
            (Self::List(_) | Self::OneOrMany(_) | Self::Map(_), _)
                if node.is_empty() && !node.is_null() =>
            {
                let expected = self.expected();
                problems.report(node.span, format!("this is empty: expected {expected}"));
            }
            (Self::List(item), Value::List(items)) => {
                items.iter().for_each(|node| item.check_part(node, root, problems));
            }
            (Self::OneOrMany(item), Value::Map(_) | Value::Scalar { .. }) => {
                item.check_part(node, root, problems);
            }
            (Self::OneOrMany(item), Value::List(items)) => {
                items.iter().for_each(|node| item.check_part(node, root, problems));
            }
            (Self::Map(of), Value::Map(entries)) => {
                entries.iter().for_each(|(_, value)| of.check_part(value, root, problems));
            }
            (Self::Section(section), Value::Map(entries)) => {
                section.check(node, entries, root, problems);
            }
            (Self::SectionOrMap { section, map }, Value::Map(entries)) => {
                match section.is_meant(node) {
                    true => section.check(node, entries, root, problems),
                    false => map.check_part(node, root, problems),
                }
            }
            (Self::Tagged { by, tagged, plain }, Value::Map(entries)) => {
                let is_tagged = entries.iter().any(|(key, _)| plain.is_misspelling_of(key, by));
                (if is_tagged { tagged } else { plain }).check(node, entries, root, problems);
            }
            (_, Value::Scalar { text, .. }) if !node.is_null() && self.accepts_text(text) => {}
            _ => problems.report(node.span, self.error_message(node)),
        }
    }

    /// Checks a node against the alternatives of its kind (scalar, list or map).
    fn check_either(
        &self,
        schemas: &[Schema],
        node: &Node,
        root: &Schema,
        problems: &mut Problems,
    ) {
        let of_kind = |schema: &&Schema| schema.is_of_kind(node);
        if let Value::Scalar { text, .. } = &node.value {
            let mut meant = schemas.iter().filter(of_kind);
            if node.is_null() || !meant.any(|schema| schema.accepts_text(text)) {
                problems.report(node.span, self.error_message(node));
            }
            return;
        }
        match schemas.iter().find(of_kind) {
            Some(schema) => schema.check_part(node, root, problems),
            None => problems.report(node.span, self.error_message(node)),
        }
    }

    fn is_of_kind(&self, node: &Node) -> bool {
        match self {
            Self::Anything(_) => true,
            Self::Map(_) | Self::Section(_) | Self::SectionOrMap { .. } | Self::Tagged { .. } => {
                matches!(node.value, Value::Map(_))
            }
            Self::List(_) => matches!(node.value, Value::List(_)),
            Self::OneOrMany(item) => matches!(node.value, Value::List(_)) || item.is_of_kind(node),
            Self::Either(schemas) => schemas.iter().any(|schema| schema.is_of_kind(node)),
            _ => matches!(node.value, Value::Scalar { .. }),
        }
    }

    fn accepts_text(&self, text: &str) -> bool {
        match self {
            Self::Anything(_) => true,
            Self::Text(_) | Self::Form { .. } => !text.is_empty(),
            Self::Integer(least, most) => {
                text.parse().is_ok_and(|n: u64| (*least..=*most).contains(&n))
            }
            Self::Boolean => matches!(text, "true" | "false"),
            Self::Choice(words) => words.iter().any(|(word, _)| *word == text),
            Self::OneOrMany(item) => item.accepts_text(text),
            Self::Either(schemas) => schemas.iter().any(|schema| schema.accepts_text(text)),
            _ => false,
        }
    }

    fn error_message(&self, node: &Node) -> String {
        let expected = self.expected_of(node);
        let text = match &node.value {
            Value::Scalar { text, .. } => text,
            Value::List(_) => return format!("expected {expected}, found a list"),
            Value::Map(entries) => return self.found_map(&expected, entries),
        };
        if let Some(mistake) = self.section().and_then(|section| section.missing_punctuation(text))
        {
            return mistake;
        }
        let suggestion = self.words().and_then(|words| closest(text, words.into_iter()));
        match suggestion {
            _ if node.is_null() || text.is_empty() => format!("a value is missing: {expected}"),
            Some(word) => {
                format!("{} is not {expected}; did you mean \"{word}\"?", quoted(text))
            }
            None => format!("expected {expected}, found {}", quoted(text)),
        }
    }

    /// Describes a map in place of something else. In place of a list, it may be an item without a dash.
    fn found_map(&self, expected: &str, entries: &[(Node, Node)]) -> String {
        let first = entries.first().and_then(|(key, _)| key.text());
        let field = first.filter(|name| self.section().is_some_and(|section| section.has(name)));
        match field {
            Some(name) => {
                format!("expected a list: begin each item with a dash, as in \"- {name}\"")
            }
            None => format!("expected {expected}, found a map"),
        }
    }

    /// Returns the section that this is, or that its items are.
    fn section(&self) -> Option<&'static Section> {
        match self {
            Self::Section(section) | Self::Tagged { plain: section, .. } => Some(section),
            Self::List(item) | Self::OneOrMany(item) => item.section(),
            _ => None,
        }
    }

    /// Returns what sections below this one with such a field are called, at most three.
    fn sections_with(&self, name: &str) -> Vec<&'static str> {
        let mut sections = Vec::new();
        self.collect_sections(&mut sections);
        let mut found: Vec<_> = Vec::new();
        for section in sections.iter().filter(|section| section.has(name)) {
            if !found.contains(&section.what) {
                found.push(section.what);
            }
        }
        found.truncate(3);
        found
    }

    fn collect_sections(&self, sections: &mut Vec<&'static Section>) {
        match self {
            Self::Section(section) => section.collect(sections),
            Self::SectionOrMap { section, map } => {
                section.collect(sections);
                map.collect_sections(sections);
            }
            Self::Tagged { tagged, plain, .. } => {
                plain.collect(sections);
                tagged.collect(sections);
            }
            Self::List(item) | Self::OneOrMany(item) | Self::Map(item) => {
                item.collect_sections(sections);
            }
            Self::Either(schemas) => {
                schemas.iter().for_each(|schema| schema.collect_sections(sections));
            }
            _ => {}
        }
    }

    /// Describes what is expected in place of this node.
    fn expected_of(&self, node: &Node) -> String {
        let Self::Either(schemas) = self else { return self.expected() };
        let meant: Vec<_> = schemas.iter().filter(|schema| schema.is_of_kind(node)).collect();
        match meant.is_empty() {
            true => self.expected(),
            false => meant.iter().map(|schema| schema.expected()).collect::<Vec<_>>().join(", or "),
        }
    }

    fn words(&self) -> Option<Vec<&'static str>> {
        match self {
            Self::Choice(words) => Some(words.iter().map(|(word, _)| *word).collect()),
            Self::OneOrMany(item) => item.words(),
            Self::Either(schemas) => schemas.iter().find_map(Schema::words),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Text(what) | Self::Anything(what) | Self::Form { what, .. } => (*what).into(),
            Self::Integer(least, most) if least == most => least.to_string(),
            Self::Integer(least, most) => format!("a whole number from {least} to {most}"),
            Self::Boolean => "true or false".into(),
            Self::Choice(words) => {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                match words[..] {
                    [only] => only.into(),
                    _ => format!("one of {}", words.join(", ")),
                }
            }
            Self::List(item) => format!("a list, each item {}", item.expected()),
            Self::OneOrMany(item) => format!("{}, or a list of such", item.expected()),
            Self::Map(of) => format!("names, each with {}", of.expected()),
            Self::Section(section) | Self::Tagged { plain: section, .. } => section.expected(),
            Self::SectionOrMap { section, map } => {
                format!("{}, or {}", section.expected(), map.expected())
            }
            Self::Either(schemas) => {
                let each: Vec<_> = schemas.iter().map(Schema::expected).collect();
                each.join(", or ")
            }
        }
    }
}

impl Section {
    /// Whether a map where there could be one with arbitrary names is this section.
    pub(crate) fn is_meant(&self, node: &Node) -> bool {
        node.entries().iter().any(|(key, _)| key.text().is_some_and(|name| self.has(name)))
    }

    fn check(&self, node: &Node, entries: &[(Node, Node)], root: &Schema, problems: &mut Problems) {
        let mut meant = Vec::new();
        for (key, value) in entries {
            let name = key.text().unwrap_or_default();
            match self.fields.iter().find(|field| field.name == name) {
                Some(field) => field.check(key, value, root, problems),
                None if problems.is_full() => return,
                None => {
                    let near = self.closest(name);
                    meant.extend(near.or_else(|| self.missing_space(name)));
                    problems.report(key.span, self.unknown(name, near, root));
                }
            }
        }
        let is_there = |name: &str| {
            meant.contains(&name) || entries.iter().any(|(key, _)| key.text() == Some(name))
        };
        let first = entries.first().map_or(node.span, |(key, _)| key.span);
        let missing = self.missing(&is_there);
        if !missing.is_empty() && !is_there("<<") {
            let needs = missing.join(", and ");
            problems.report_also(first, format!("{} needs {needs}", self.what));
        }
        self.report_too_many(entries, problems);
    }

    fn missing(&self, is_there: &dyn Fn(&str) -> bool) -> Vec<String> {
        let required = self.fields.iter().filter(|field| field.is_required);
        let missing = required.filter(|field| !is_there(field.name));
        let missing = missing.map(|Field { name, schema, .. }| match schema {
            Schema::Text(_) | Schema::Form { .. } | Schema::Integer(..) => {
                format!("\"{name}\": {}", schema.expected())
            }
            _ => format!("\"{name}\""),
        });
        let mut missing: Vec<_> = missing.collect();
        if !self.one_of.is_empty() && !self.one_of.iter().any(|name| is_there(name)) {
            missing.push(format!("one of {}", self.one_of.join(", ")));
        }
        missing
    }

    /// Reports the second and further of mutually exclusive fields.
    fn report_too_many(&self, entries: &[(Node, Node)], problems: &mut Problems) {
        let is_one = |key: &&Node| key.text().is_some_and(|name| self.one_of.contains(&name));
        let mut there = entries.iter().map(|(key, _)| key).filter(is_one);
        let Some(first) = there.next().and_then(Node::text) else { return };
        for other in there {
            let (what, name) = (self.what, other.text().unwrap_or_default());
            problems
                .report_also(other.span, format!("{what} has \"{first}\" or \"{name}\", not both"));
        }
    }

    fn has(&self, name: &str) -> bool {
        self.field(name).is_some()
    }

    fn field(&self, name: &str) -> Option<&'static str> {
        self.fields.iter().map(|field| field.name).find(|known| *known == name)
    }

    fn collect(&'static self, sections: &mut Vec<&'static Section>) {
        if !sections.iter().any(|known| std::ptr::eq(*known, self)) {
            sections.push(self);
            self.fields.iter().for_each(|field| field.schema.collect_sections(sections));
        }
    }

    /// Describes a text in place of this section: a field without a colon, or without a space after it.
    fn missing_punctuation(&self, text: &str) -> Option<String> {
        let what = self.what;
        if let Some(name) = self.missing_space(text) {
            return Some(format!("expected {what}; a space is missing after \"{name}:\""));
        }
        let name = self.missing_colon(text)?;
        Some(format!("expected {what}; a colon is missing after \"{name}\""))
    }

    fn closest(&self, name: &str) -> Option<&'static str> {
        closest(name, self.fields.iter().map(|field| field.name))
    }

    /// Whether this key is not a field, but one of these names or a misspelling of one.
    fn is_misspelling_of(&self, key: &Node, names: &[&'static str]) -> bool {
        let name = key.text().unwrap_or_default();
        self.closest(name).is_none() && closest(name, names.iter().copied()).is_some()
    }

    fn unknown(&self, name: &str, near: Option<&str>, root: &Schema) -> String {
        if name == "<<" {
            return "merge keys are not supported; write out the fields".into();
        }
        let (what, named) = (self.what, quoted(name));
        let remedy = match near {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => match (self.missing_space(name), root.sections_with(name)) {
                (Some(field), _) => format!("a space is missing after \"{field}:\""),
                (None, others) if !others.is_empty() => {
                    format!("it is a field of {}: check the indentation", others.join(" or "))
                }
                _ => format!("known fields are {}", self.names()),
            },
        };
        format!("unknown field {named} of {what}; {remedy}")
    }

    /// Returns the field at the start of a text such as `name:api`, which is not a field and a value.
    fn missing_space(&self, text: &str) -> Option<&'static str> {
        text.split_once(':').and_then(|(name, _)| self.field(name))
    }

    /// Returns the field at the start of a text such as `name api`.
    fn missing_colon(&self, text: &str) -> Option<&'static str> {
        text.split_once(' ').and_then(|(name, _)| self.field(name))
    }

    fn names(&self) -> String {
        self.fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", ")
    }

    fn expected(&self) -> String {
        format!("{} ({})", self.what, self.names())
    }
}

impl Field {
    fn check(&self, key: &Node, value: &Node, root: &Schema, problems: &mut Problems) {
        if value.is_null() && (self.is_required || !self.may_be_empty) {
            let (name, expected) = (self.name, self.schema.expected());
            return problems
                .report(key.span, format!("\"{name}\" has no value: expected {expected}"));
        }
        if !(self.may_be_empty && value.is_empty()) {
            self.schema.check_part(value, root, problems);
        }
    }
}
