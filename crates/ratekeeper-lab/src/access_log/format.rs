//! The formats of access logs, and how the format of a log is found.

use ratekeeper_policy::ReadAttribute;

use super::field::{Field, LogFields, header};
use super::formats::{alb, caddy, cloudfront, combined, envoy, gateway, haproxy, nginx, traefik};
use super::json::{HeaderOf, JsonFields};
use super::record::{AccessRecord, LineError};
use super::template::{Template, TemplateError};
use super::time::TimeCache;
use super::usage;

/// How many characters of a line an error shows.
const SHOWN_MAX: usize = 120;

/// A format of access logs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FormatEntry {
    /// Its name.
    pub name: &'static str,
    /// What writes it.
    pub about: &'static str,
    /// Returns the format of these lines, if they can be of it.
    make: fn(&[&str]) -> Option<LineFormat>,
}

/// The formats that are found by themselves. Of formats that fit equally well, the first is taken.
pub const FORMATS: &[FormatEntry] = &[
    entry("gateway", "\"ratekeeper gateway --access-log text\"", gateway::text),
    entry("gateway-json", "\"ratekeeper gateway --access-log json\"", gateway::json),
    entry("envoy", "Envoy's default, and Istio's", envoy::text),
    entry("alb", "Application Load Balancers of AWS", alb::format),
    entry("cloudfront", "CloudFront, with its line of #Fields", cloudfront::format),
    entry("haproxy", "HAProxy with \"option httplog\", with or without syslog", haproxy::format),
    entry("traefik", "Traefik's default", traefik::text),
    entry("traefik-json", "Traefik with \"format: json\"", traefik::json),
    entry("caddy", "Caddy's default", caddy::json),
    entry("envoy-json", "Envoy with a JSON format, and Istio's", envoy::json),
    entry("combined", "nginx and Apache; times or X-Forwarded-For may follow", combined::combined),
    entry("common", "Apache and many others; times may follow", combined::common),
    entry("nginx-json", "nginx and others with JSON of their variables", nginx::json),
];

const fn entry(
    name: &'static str,
    about: &'static str,
    make: fn(&[&str]) -> Option<LineFormat>,
) -> FormatEntry {
    FormatEntry { name, about, make }
}

/// The format of an access log.
#[derive(Clone, Debug)]
pub struct LogFormat {
    name: &'static str,
    line: LineFormat,
}

/// How the fields of a line are found.
#[derive(Clone, Debug)]
pub(crate) enum LineFormat {
    Template(Template),
    Json(JsonFields),
    /// A template after what syslog adds.
    AfterSyslog(Template),
    /// A template; lines that begin with `#` are comments.
    Commented(Template),
}

/// The format of a log is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetectError {
    /// There are no lines.
    #[error("the log is empty")]
    Empty,
    /// It is like no known format.
    #[error("the format of the log is not known; its first line is {0:?}")]
    Unknown(String),
}

impl LogFormat {
    /// Finds the format that fits most of these lines, the first ones of a log.
    ///
    /// # Errors
    ///
    /// If there is no line, or no format fits any.
    pub fn detect(lines: &[&str]) -> Result<Self, DetectError> {
        let lines: Vec<&str> = lines.iter().copied().filter(|line| !line.is_empty()).collect();
        let first = lines.first().ok_or(DetectError::Empty)?;
        let mut best: Option<(usize, Self)> = None;
        for entry in FORMATS {
            let Some(line) = (entry.make)(&lines) else { continue };
            let format = Self { name: entry.name, line };
            let mut times = TimeCache::default();
            let fits = lines.iter().filter(|line| format.parse(line, &mut times).is_ok()).count();
            if fits > best.as_ref().map_or(0, |(most, _)| *most) {
                best = Some((fits, format));
            }
        }
        let unknown = || DetectError::Unknown(first.chars().take(SHOWN_MAX).collect());
        best.map(|(_, format)| format).ok_or_else(unknown)
    }

    /// Returns the format of a `log_format` of nginx, such as `$remote_addr [$time_local] "$request" $status`.
    ///
    /// # Errors
    ///
    /// If it has no time or no request, or two variables without text between them.
    pub fn of_log_format(format: &str) -> Result<Self, TemplateError> {
        let line = LineFormat::Template(Template::of_log_format(format)?);
        Ok(Self { name: "custom", line })
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Skips headers that no policy reads. Also reads fields of lines of JSON that are named as what a policy reads: a header as `x_api_key`, `x-api-key` or
    /// `http_x_api_key`, an identity by its own name.
    #[must_use]
    pub fn reading<'r>(mut self, attributes: impl Iterator<Item = &'r ReadAttribute>) -> Self {
        let attributes: Vec<_> = attributes.collect();
        let fields = match &mut self.line {
            LineFormat::Json(fields) => fields,
            LineFormat::Template(template)
            | LineFormat::AfterSyslog(template)
            | LineFormat::Commented(template) => {
                template.retain(|field| field.is_read_by(&attributes));
                return self;
            }
        };
        let headers = attributes.iter().filter_map(|attribute| match attribute {
            ReadAttribute::Header(name) => Some((name.as_str(), HeaderOf::Request)),
            ReadAttribute::Cookie(_) => Some(("cookie", HeaderOf::Request)),
            ReadAttribute::ResponseHeader(name) => Some((name.as_str(), HeaderOf::Response)),
            _ => None,
        });
        fields.name_headers(&headers.collect::<Vec<_>>());
        for attribute in attributes {
            match attribute {
                ReadAttribute::Custom(name) => fields.add(name, Field::Named(name.as_str().into())),
                ReadAttribute::Usage => {
                    usage::names().for_each(|name| fields.add(name, Field::Named(name.into())));
                }
                ReadAttribute::Header(name) => {
                    let folded = name.replace('-', "_");
                    for spelling in [name, &folded, &format!("http_{folded}")] {
                        fields.add(spelling, header(name));
                    }
                }
                ReadAttribute::ResponseHeader(name) => {
                    let folded = name.replace('-', "_");
                    for spelling in [name, &folded, &format!("sent_http_{folded}")] {
                        fields.add(spelling, Field::ResponseHeader(name.as_str().into()));
                    }
                }
                _ => {}
            }
        }
        self
    }

    /// Returns the attributes that these lines have.
    #[must_use]
    pub fn fields(&self, lines: &[&str]) -> LogFields {
        match &self.line {
            LineFormat::Json(json) => {
                let mut found = Vec::new();
                let mut visit = |field| found.push(field);
                lines.iter().for_each(|line| {
                    json.fields_of(line, &mut visit);
                });
                LogFields::of(found.into_iter())
            }
            LineFormat::Template(template)
            | LineFormat::AfterSyslog(template)
            | LineFormat::Commented(template) => LogFields::of(template.fields()),
        }
    }

    /// Reads a line.
    ///
    /// # Errors
    ///
    /// If it is not of the format, or lacks the time or the request.
    pub fn parse<'a>(
        &'a self,
        line: &'a str,
        times: &mut TimeCache,
    ) -> Result<AccessRecord<'a>, LineError> {
        let mut record = AccessRecord::default();
        self.parse_into(line, times, &mut record)?;
        Ok(record)
    }

    /// Reads a line into an empty record, which need not be moved.
    pub(crate) fn parse_into<'a>(
        &'a self,
        line: &'a str,
        times: &mut TimeCache,
        record: &mut AccessRecord<'a>,
    ) -> Result<(), LineError> {
        match &self.line {
            _ if line.is_empty() => return Err(LineError::Blank),
            LineFormat::Template(template) => template.parse(line, times, record)?,
            LineFormat::Json(fields) => fields.parse(line, times, record)?,
            LineFormat::AfterSyslog(template) => {
                template.parse(haproxy::without_syslog(line), times, record)?;
            }
            LineFormat::Commented(_) if line.starts_with('#') => return Err(LineError::Blank),
            LineFormat::Commented(template) => template.parse(line, times, record)?,
        }
        let is_method = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
        if record.at.get() == 0 {
            return Err(LineError::Time);
        }
        if record.method.is_empty()
            || record.path.is_empty()
            || !record.method.bytes().all(is_method)
        {
            return Err(LineError::Request);
        }
        Ok(())
    }
}
