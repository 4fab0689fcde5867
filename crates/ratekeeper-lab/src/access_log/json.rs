//! Lines of JSON: the fields by their names.

use std::borrow::Cow;
use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::field::Field;
use super::record::{AccessRecord, LineError};
use super::time::TimeCache;

/// The deepest nesting that is skipped; a log has none that deep.
const DEPTH_MAX: usize = 64;

/// The fields of JSON objects by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonFields {
    by_name: HashMap<Box<str>, JsonField, FixedState>,
    /// Beginnings of names that are those of headers.
    header_prefixes: Vec<(&'static str, HeaderOf)>,
}

#[derive(Clone, Debug)]
enum JsonField {
    Value(Field),
    Object(JsonFields),
    /// An object of headers, each with a value or a list of them.
    Headers(HeaderOf),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum HeaderOf {
    Request,
    Response,
}

impl HeaderOf {
    fn field(self, name: &str) -> Field {
        let name = name.to_ascii_lowercase().into();
        match self {
            Self::Request => Field::Header(name),
            Self::Response => Field::ResponseHeader(name),
        }
    }
}

impl JsonFields {
    pub(crate) fn with(mut self, name: &str, field: Field) -> Self {
        self.by_name.insert(name.into(), JsonField::Value(field));
        self
    }

    pub(crate) fn with_object(mut self, name: &str, fields: JsonFields) -> Self {
        self.by_name.insert(name.into(), JsonField::Object(fields));
        self
    }

    /// Reads headers of which the policy reads any from the object of this name.
    pub(crate) fn with_headers(mut self, name: &str, of: HeaderOf) -> Self {
        self.by_name.insert(name.into(), JsonField::Headers(of));
        self
    }

    /// Reads what follows this prefix of a name as the name of a header.
    pub(crate) fn with_header_prefix(mut self, prefix: &'static str, of: HeaderOf) -> Self {
        self.header_prefixes.push((prefix, of));
        self
    }

    /// Adds a field unless there is one of this name.
    pub(crate) fn add(&mut self, name: &str, field: Field) {
        let value = JsonField::Value(field);
        self.by_name.entry(name.into()).or_insert(value);
    }

    /// Replaces prefixes and objects of headers by the names of these headers.
    pub(crate) fn name_headers(&mut self, names: &[(&str, HeaderOf)]) {
        for (prefix, prefix_of) in std::mem::take(&mut self.header_prefixes) {
            for (name, of) in names {
                if std::mem::discriminant(of) == std::mem::discriminant(&prefix_of) {
                    self.add(&format!("{prefix}{}", canonical(name)), of.field(name));
                }
            }
        }
        for field in self.by_name.values_mut() {
            let JsonField::Headers(object_of) = field else {
                if let JsonField::Object(fields) = field {
                    fields.name_headers(names);
                }
                continue;
            };
            let mut fields = Self::default();
            for (name, of) in names {
                if std::mem::discriminant(of) == std::mem::discriminant(object_of) {
                    fields.add(&canonical(name), of.field(name));
                }
            }
            *field = JsonField::Object(fields);
        }
    }

    /// Calls `visit` with every field that the line has.
    pub(crate) fn fields_of<'f>(&'f self, line: &str, visit: &mut dyn FnMut(&'f Field)) -> bool {
        let mut scan = Scan { text: line, at: 0 };
        self.scan_object(&mut scan, 0, &mut |field, _| visit(field)).is_some()
    }

    pub(crate) fn parse<'a>(
        &'a self,
        line: &'a str,
        times: &mut TimeCache,
        record: &mut AccessRecord<'a>,
    ) -> Result<(), LineError> {
        let mut scan = Scan { text: line, at: 0 };
        let mut fill = |field: &'a Field, value| field.fill(value, record, times);
        self.scan_object(&mut scan, 0, &mut fill).ok_or(LineError::Json)?;
        scan.skip_space();
        if scan.at == line.len() { Ok(()) } else { Err(LineError::Json) }
    }

    fn scan_object<'f, 'a>(
        &'f self,
        scan: &mut Scan<'a>,
        depth: usize,
        fill: &mut dyn FnMut(&'f Field, Cow<'a, str>),
    ) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        scan.expect(b'{')?;
        if scan.eat(b'}') {
            return Some(());
        }
        loop {
            scan.skip_space();
            let name = scan.string()?;
            scan.expect(b':')?;
            match self.by_name.get(&*name) {
                Some(JsonField::Value(field)) => {
                    if let Some(value) = scan.first_value(depth)? {
                        fill(field, value);
                    }
                }
                Some(JsonField::Object(fields)) if scan.peek() == Some(b'{') => {
                    fields.scan_object(scan, depth + 1, fill)?;
                }
                _ => scan.skip_value(depth)?,
            }
            if !scan.eat(b',') {
                return scan.expect(b'}');
            }
        }
    }
}

/// The name of a header as servers in Go write it: `X-Api-Key`.
fn canonical(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    });
    words.collect::<Vec<_>>().join("-")
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn skip_space(&mut self) {
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        self.at += self.rest().iter().take_while(|byte| is_space(byte)).count();
    }

    /// Returns the next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.rest().first().copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.eat(byte).then_some(())
    }

    /// Returns the content of a string, which begins here.
    fn string(&mut self) -> Option<Cow<'a, str>> {
        let raw = self.raw_string()?;
        match memchr::memchr(b'\\', raw.as_bytes()) {
            None => Some(raw.into()),
            Some(_) => Some(unescaped(raw).into()),
        }
    }

    fn raw_string(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        if rest.first() != Some(&b'"') {
            return None;
        }
        let mut end = 1;
        loop {
            end += memchr::memchr2(b'"', b'\\', &rest[end..])?;
            if rest[end] == b'"' {
                break;
            }
            end += 2;
            if end > rest.len() {
                return None;
            }
        }
        let raw = &self.text[self.at + 1..self.at + end];
        self.at += end + 1;
        Some(raw)
    }

    /// Returns a string, a number, or the first of a list; `Some(None)` for anything else.
    fn first_value(&mut self, depth: usize) -> Option<Option<Cow<'a, str>>> {
        match self.peek()? {
            b'"' => self.string().map(Some),
            b'[' => {
                let start = self.at;
                self.at += 1;
                let first = match self.peek()? {
                    b'"' => self.string(),
                    _ => None,
                };
                self.at = start;
                self.skip_value(depth)?;
                Some(first)
            }
            b'-' | b'0'..=b'9' => Some(Some(self.bare().into())),
            _ => self.skip_value(depth).map(|()| None),
        }
    }

    /// Returns a number, `true`, `false` or `null`.
    fn bare(&mut self) -> &'a str {
        let is_bare = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let length = self.rest().iter().take_while(|byte| is_bare(byte)).count();
        let bare = &self.text[self.at..self.at + length];
        self.at += length;
        bare
    }

    fn skip_value(&mut self, depth: usize) -> Option<()> {
        let mut open = depth;
        loop {
            match self.peek()? {
                b'"' => drop(self.raw_string()?),
                b'{' | b'[' => {
                    self.at += 1;
                    open += 1;
                    if open > DEPTH_MAX {
                        return None;
                    }
                    continue;
                }
                b'}' | b']' if open > depth => {
                    self.at += 1;
                    open -= 1;
                }
                b',' | b':' if open > depth => {
                    self.at += 1;
                    continue;
                }
                _ if self.bare().is_empty() => return None,
                _ => {}
            }
            if open == depth {
                return Some(());
            }
        }
    }
}

/// Replaces the escapes of a JSON string, and those of half a surrogate pair by a replacement character.
fn unescaped(raw: &str) -> String {
    let quoted = format!("\"{raw}\"");
    // Envoy and nginx may write escapes that JSON does not have, such as \x22.
    serde_json::from_str(&quoted).unwrap_or_else(|_| raw.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields() -> JsonFields {
        let inner = JsonFields::default().with("method", Field::Method);
        let fields = JsonFields::default().with("user", Field::User).with("path", Field::Target);
        let fields = fields.with("status", Field::Status).with_object("request", inner);
        let mut fields = fields.with_headers("headers", HeaderOf::Request);
        fields.name_headers(&[("x-api-key", HeaderOf::Request)]);
        fields
    }

    #[test]
    fn fields_are_found_wherever_they_are() {
        let line = r#" {"a":[1,{"b":"}"}],"user":"\"ann\u00e9","request":{"x":{},"method":"PUT"},
            "status": 404, "n":null,"headers":{"X-Api-Key":["k","l"],"Other":["x"]},"path":"/p"} "#;
        let (fields, mut record) = (fields(), AccessRecord::default());
        fields.parse(line, &mut TimeCache::default(), &mut record).unwrap();
        assert_eq!(record.user.as_deref(), Some("\"anné"));
        assert_eq!((&*record.method, &*record.path, record.status), ("PUT", "/p", Some(404)));
        assert_eq!(record.headers.as_slice(), [("x-api-key", "k".into())]);
    }

    #[test]
    fn what_is_not_an_object_is_an_error() {
        let fields = fields();
        let deep = format!("{{\"a\":{}", "[".repeat(1_000_000));
        for line in [
            "",
            "{",
            "[]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1",
            "{\"a\":\"\\",
            "{}x",
            "{\"a\":\"b",
            &deep,
        ] {
            let mut record = AccessRecord::default();
            let parsed = fields.parse(line, &mut TimeCache::default(), &mut record);
            assert_eq!(parsed, Err(LineError::Json), "{line:.20}");
        }
    }

    proptest! {
        #[test]
        fn no_line_causes_a_panic(line in "[{}\\[\\]\":,a1\\\\ é]{0,40}") {
            let (fields, mut record) = (fields(), AccessRecord::default());
            let _ = fields.parse(&line, &mut TimeCache::default(), &mut record);
        }
    }
}
