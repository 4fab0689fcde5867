//! Lines of text by a template: fields, and the text between them.

use std::borrow::Cow;

use super::field::{Field, SECONDS, header};
use super::record::{AccessRecord, LineError};
use super::time::TimeCache;

/// The template of a line.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    prefix: Box<str>,
    parts: Vec<Part>,
}

/// A field, and the text that follows it: nothing for the last field of a line.
#[derive(Clone, Debug)]
struct Part {
    field: Field,
    until: Box<str>,
    /// The end is not searched for before this.
    length_min: usize,
}

/// The length of `2026-10-10`.
const DATE_LENGTH: usize = 10;

/// Why a format string is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// It has no variables.
    #[error(
        "the format has no variables; write it as nginx does: '$remote_addr [$time_local] \"$request\" $status'"
    )]
    Empty,
    /// Two variables follow each other without text between them.
    #[error(
        "${0} is followed by another variable without text between them, so its end is unknown"
    )]
    Adjacent(String),
    /// There is no variable for the time.
    #[error("the format has no time; add $time_local, $time_iso8601 or $msec")]
    NoTime,
    /// There is no variable for the request.
    #[error("the format has no request; add $request, or $request_method and $request_uri")]
    NoRequest,
}

impl Template {
    /// Creates a template of fields that each end with a text.
    pub(crate) fn new<'t>(prefix: &str, parts: impl IntoIterator<Item = (Field, &'t str)>) -> Self {
        let parts = parts.into_iter();
        let parts = parts
            .map(|(field, until)| Part { field, until: until.into(), length_min: 0 })
            .collect();
        Self { prefix: prefix.into(), parts }
    }

    /// Creates the template of a `log_format` of nginx.
    pub(crate) fn of_log_format(format: &str) -> Result<Self, TemplateError> {
        let (prefix, mut rest) = format.split_once('$').ok_or(TemplateError::Empty)?;
        let mut parts: Vec<Part> = Vec::new();
        loop {
            let (name, after) = variable(rest);
            let (until, next) = match after.split_once('$') {
                Some((until, next)) => (until, Some(next)),
                None => (after, None),
            };
            if next.is_some() && until.is_empty() {
                return Err(TemplateError::Adjacent(name.to_string()));
            }
            parts.push(Part { field: nginx_field(name), until: until.into(), length_min: 0 });
            match next {
                Some(next) => rest = next,
                None => break,
            }
        }
        let template = Self { prefix: prefix.into(), parts };
        let has = |wanted: &[Field]| template.fields().any(|field| wanted.contains(field));
        if !has(&[Field::Time]) {
            return Err(TemplateError::NoTime);
        }
        match has(&[Field::Request, Field::Target, Field::Path]) {
            true => Ok(template),
            false => Err(TemplateError::NoRequest),
        }
    }

    /// Reads a time whose first tab is between the date and the time of day.
    pub(crate) fn with_tab_in_time(mut self) -> Self {
        for part in self.parts.iter_mut().filter(|part| part.field == Field::Time) {
            part.length_min = DATE_LENGTH + 1;
        }
        self
    }

    /// Returns the template followed by these fields.
    pub(crate) fn followed_by(&self, until: &str, parts: Vec<(Field, &str)>) -> Self {
        let mut template = self.clone();
        if let Some(last) = template.parts.last_mut() {
            last.until = format!("{}{until}", last.until).into();
        }
        template.parts.extend(Self::new("", parts).parts);
        template
    }

    /// Skips the fields that are not wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&Field) -> bool) {
        for part in self.parts.iter_mut().filter(|part| !is_wanted(&part.field)) {
            part.field = Field::Skip;
        }
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = &Field> {
        self.parts.iter().map(|part| &part.field)
    }

    /// Reads a line. What follows the last text of the template is ignored.
    pub(crate) fn parse<'a>(
        &'a self,
        line: &'a str,
        times: &mut TimeCache,
        record: &mut AccessRecord<'a>,
    ) -> Result<(), LineError> {
        self.rest_after(line, times, record).map(drop)
    }

    /// Reads a line, and returns what follows the last text of the template.
    pub(crate) fn rest_after<'a>(
        &'a self,
        line: &'a str,
        times: &mut TimeCache,
        record: &mut AccessRecord<'a>,
    ) -> Result<&'a str, LineError> {
        let mut rest = line.strip_prefix(&*self.prefix).ok_or(LineError::Fields)?;
        let has_escapes = memchr::memchr(b'\\', line.as_bytes()).is_some();
        for Part { field, until, length_min } in &self.parts {
            let end = match until.as_bytes() {
                [] => rest.len(),
                until => find(rest.as_bytes(), *length_min, until, has_escapes)
                    .ok_or(LineError::Fields)?,
            };
            let value = &rest[..end];
            rest = &rest[end + until.len()..];
            match field {
                Field::Skip => {}
                field if has_escapes => field.fill(unescaped(value), record, times),
                field => field.fill(value.into(), record, times),
            }
        }
        Ok(rest)
    }
}

/// Finds the text that ends a field. In a quoted field, a quote after a backslash does not.
fn find(text: &[u8], start: usize, until: &[u8], has_escapes: bool) -> Option<usize> {
    let mut from = start;
    loop {
        let found = from + memchr::memchr(until[0], text.get(from..)?)?;
        let is_escaped = has_escapes && until[0] == b'"' && is_escaped(&text[..found]);
        // Faster than comparing slices: the text is short, and its first byte is there.
        let mut rest = until[1..].iter().zip(&text[found + 1..]);
        let is_whole = text.len() - found >= until.len() && rest.all(|(one, other)| one == other);
        if !is_escaped && is_whole {
            return Some(found);
        }
        from = found + 1;
    }
}

/// Whether what follows is escaped: the text ends in an odd number of backslashes.
fn is_escaped(text: &[u8]) -> bool {
    text.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Replaces the escapes of nginx and Apache: `\x22`, `\"` and `\\`.
fn unescaped(text: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\\', text.as_bytes()).is_none() {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, after) = match (first, after) {
            (b'\\', [b'x', high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (b'x', &rest[2..]),
            },
            (b'\\', [byte, after @ ..]) => (*byte, after),
            (byte, after) => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    match String::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned().into(),
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

/// Splits after the name of a variable, which may be in braces.
fn variable(text: &str) -> (&str, &str) {
    if let Some((name, rest)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) {
        return (name, rest);
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split_at(text.find(|c| !is_name(c)).unwrap_or(text.len()))
}

/// Returns what a variable of nginx means. One that nginx does not have is a field by its name.
pub(crate) fn nginx_field(name: &str) -> Field {
    match name {
        "time_local" | "time_iso8601" | "msec" => Field::Time,
        "remote_addr" | "realip_remote_addr" => Field::Client,
        "remote_user" => Field::User,
        "request" => Field::Request,
        "request_method" => Field::Method,
        "request_uri" => Field::Target,
        "uri" | "document_uri" => Field::Path,
        "args" | "query_string" => Field::Query,
        "host" | "http_host" => Field::Host,
        "status" => Field::Status,
        "request_time" => SECONDS,
        "remote_port"
        | "server_port"
        | "server_addr"
        | "server_name"
        | "server_protocol"
        | "scheme"
        | "body_bytes_sent"
        | "bytes_sent"
        | "request_length"
        | "request_id"
        | "connection"
        | "connection_requests"
        | "pipe"
        | "gzip_ratio"
        | "limit_req_status"
        | "limit_conn_status"
        | "is_args"
        | "hostname"
        | "pid"
        | "nginx_version"
        | "https" => Field::Skip,
        _ => prefixed_field(name),
    }
}

fn prefixed_field(name: &str) -> Field {
    let dashed = |name: &str| name.replace('_', "-").to_ascii_lowercase();
    let response = name.strip_prefix("sent_http_").or(name.strip_prefix("upstream_http_"));
    if let Some(name) = response {
        return Field::ResponseHeader(dashed(name).into());
    }
    if let Some(name) = name.strip_prefix("http_") {
        return header(&dashed(name));
    }
    let others = ["upstream_", "ssl_", "proxy_", "arg_", "cookie_", "tcpinfo_", "geoip_"];
    match others.iter().any(|prefix| name.starts_with(prefix)) {
        true => Field::Skip,
        false => Field::Named(name.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(template: &'a Template, line: &'a str) -> AccessRecord<'a> {
        let mut record = AccessRecord::default();
        template.parse(line, &mut TimeCache::default(), &mut record).unwrap();
        record
    }

    #[test]
    fn a_log_format_of_nginx_is_a_template() {
        let format = r#"$remote_addr [$time_local] "$request" ${status} "$http_x_api_key" $sent_http_x_cost $tenant $request_time"#;
        let template = Template::of_log_format(format).unwrap();
        let line = r#"192.0.2.1 [10/Oct/2026:13:55:36 +0000] "POST /a?b HTTP/1.1" 201 "k \x22é\" 1" 17 acme 0.250"#;
        let record = read(&template, line);
        assert_eq!((&*record.method, &*record.path), ("POST", "/a"));
        assert_eq!((record.status, record.duration_us), (Some(201), Some(250_000)));
        assert_eq!(record.headers[0], ("x-api-key", "k \"é\" 1".into()));
        assert_eq!(record.response_headers[0], ("x-cost", "17".into()));
        assert_eq!(record.fields[0], ("tenant", "acme".into()));
    }

    #[test]
    fn a_format_without_an_end_of_a_field_a_time_or_a_request_is_an_error() {
        let error = |format| Template::of_log_format(format).unwrap_err();
        assert_eq!(error("combined"), TemplateError::Empty);
        assert_eq!(error("$status$request"), TemplateError::Adjacent("status".into()));
        assert_eq!(error("$remote_addr $request"), TemplateError::NoTime);
        assert_eq!(error("$remote_addr $time_local"), TemplateError::NoRequest);
    }

    #[test]
    fn a_line_that_lacks_a_field_is_an_error() {
        let template = Template::of_log_format("$msec \"$request\" $status").unwrap();
        let mut record = AccessRecord::default();
        for line in ["", "1", "1 \"GET /", "GET / 200"] {
            let parsed = template.parse(line, &mut TimeCache::default(), &mut record);
            assert_eq!(parsed, Err(LineError::Fields), "{line}");
        }
    }
}
