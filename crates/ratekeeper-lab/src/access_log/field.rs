//! The fields of access logs, and how each becomes part of a record.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use ratekeeper_policy::ReadAttribute;
use ratekeeper_policy::attributes::Target;

use super::record::AccessRecord;
use super::time::TimeCache;
use super::usage;

/// What a field of a log means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Skip,
    Time,
    /// An address, maybe with a port.
    Client,
    User,
    /// `GET /path HTTP/1.1`.
    Request,
    Method,
    /// A path with its query, or a URL.
    Target,
    Path,
    Query,
    Host,
    Status,
    /// A duration in this many nanoseconds.
    Duration(u64),
    /// A part of the duration, to be added, in this many nanoseconds.
    DurationPart(u64),
    /// Timers of HAProxy in milliseconds, of which the last is the total.
    Timers,
    Header(Box<str>),
    ResponseHeader(Box<str>),
    Named(Box<str>),
}

pub(crate) const SECONDS: Field = Field::Duration(1_000_000_000);
pub(crate) const MILLIS: Field = Field::Duration(1_000_000);
pub(crate) const MICROS: Field = Field::Duration(1_000);
pub(crate) const NANOS: Field = Field::Duration(1);

pub(crate) fn header(name: &str) -> Field {
    Field::Header(name.into())
}

impl Field {
    /// Whether one of these attributes may depend on it. Of headers that are not read, only those that a browser sends
    /// with every request are certain not to have the client's address.
    pub(crate) fn is_read_by(&self, attributes: &[&ReadAttribute]) -> bool {
        let Self::Header(name) = self else { return true };
        let is_header =
            |of: &&ReadAttribute| matches!(of, ReadAttribute::Header(read) if **read == **name);
        !matches!(&**name, "referer" | "user-agent") || attributes.iter().any(is_header)
    }

    /// Adds a value to the record. A value of `-`, or an empty one, is none.
    pub(crate) fn fill<'a>(
        &'a self,
        value: Cow<'a, str>,
        record: &mut AccessRecord<'a>,
        times: &mut TimeCache,
    ) {
        if matches!(&*value, "-" | "") {
            return;
        }
        match self {
            Self::Skip => {}
            Self::Time => record.at = times.parse(value.as_bytes()).unwrap_or_default(),
            Self::Client => record.client = address(&value).or(record.client),
            Self::User => record.user = Some(value),
            Self::Request => fill_request(value, record),
            Self::Method => record.method = value,
            Self::Target => fill_target(value, record),
            Self::Path => record.path = value,
            Self::Query => record.query = Some(value),
            Self::Host => record.host = Some(value),
            Self::Status => record.status = value.parse().ok(),
            Self::Duration(unit_ns) => {
                record.duration_us = duration_us(value.as_bytes(), *unit_ns).or(record.duration_us);
            }
            Self::DurationPart(unit_ns) => {
                let part = duration_us(value.as_bytes(), *unit_ns);
                record.duration_us = match (record.duration_us, part) {
                    (Some(so_far), Some(part)) => Some(so_far.saturating_add(part)),
                    (so_far, part) => so_far.or(part),
                };
            }
            Self::Timers => {
                let total = value.rsplit('/').next().unwrap_or_default();
                let total = total.trim_start_matches('+');
                record.duration_us = duration_us(total.as_bytes(), 1_000_000);
            }
            Self::Header(name) => record.headers.push((name, value)),
            Self::ResponseHeader(name) => record.response_headers.push((name, value)),
            Self::Named(name) => record.fields.push((name, value)),
        }
    }
}

fn fill_request<'a>(value: Cow<'a, str>, record: &mut AccessRecord<'a>) {
    match value {
        Cow::Borrowed(request) => {
            let Some((method, target)) = split_request(request) else { return };
            record.method = method.into();
            fill_target(target.into(), record);
        }
        Cow::Owned(request) => {
            let Some((method, target)) = split_request(&request) else { return };
            record.method = method.to_string().into();
            fill_target(target.to_string().into(), record);
        }
    }
}

/// Splits a request line into its method and its target, which may have spaces in it.
fn split_request(request: &str) -> Option<(&str, &str)> {
    let (method, rest) = request.split_at(memchr::memchr(b' ', request.as_bytes())?);
    let rest = &rest[1..];
    match memchr::memrchr(b' ', rest.as_bytes()) {
        Some(space) if rest[space..].starts_with(" HTTP/") => Some((method, &rest[..space])),
        _ => Some((method, rest)),
    }
}

fn fill_target<'a>(value: Cow<'a, str>, record: &mut AccessRecord<'a>) {
    match value {
        Cow::Borrowed(target) => {
            // A path without a query, as most are.
            if target.starts_with('/') && memchr::memchr2(b'?', b'#', target.as_bytes()).is_none() {
                record.path = target.into();
                return;
            }
            let Target { authority, path, query } = Target::parse(target);
            record.path = path.into();
            record.query = query.map(Cow::from).or(record.query.take());
            record.host = authority.map(Cow::from).or(record.host.take());
        }
        Cow::Owned(target) => {
            let Target { authority, path, query } = Target::parse(&target);
            record.path = path.to_string().into();
            record.query = query.map(|query| query.to_string().into()).or(record.query.take());
            record.host = authority.map(|host| host.to_string().into()).or(record.host.take());
        }
    }
}

/// Parses an address that may have a port or be the first of a list.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    if let Some(ip) = ipv4(text.as_bytes()) {
        return Some(ip.into());
    }
    let text = text.split(',').next()?.trim();
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split(']').next()?.parse().ok();
    }
    text.rsplit_once(':')?.0.parse().ok()
}

/// Parses an IPv4 address and nothing else, faster than the standard library does.
fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let (mut at, mut digits, mut value) = (0, 0, 0u16);
    for byte in text {
        match byte {
            b'0'..=b'9' if digits < 3 && !(digits > 0 && value == 0) => {
                value = value * 10 + u16::from(byte - b'0');
                digits += 1;
            }
            b'.' if digits > 0 && at < 3 => {
                octets[at] = u8::try_from(value).ok()?;
                (at, digits, value) = (at + 1, 0, 0);
            }
            _ => return None,
        }
    }
    octets[3] = u8::try_from(value).ok()?;
    (at == 3 && digits > 0).then(|| octets.into())
}

/// Parses a number such as `0.123` of this unit. A suffix such as `ms` or `s` overrides the unit; of a list, as nginx
/// logs the times of several upstreams, the parts are added.
fn duration_us(text: &[u8], unit_ns: u64) -> Option<u64> {
    if memchr::memchr2(b',', b':', text).is_some() {
        let parts = text.split(|byte| matches!(byte, b',' | b':'));
        let parts = parts.filter_map(|part| duration_us(part.trim_ascii(), unit_ns));
        return parts.reduce(u64::saturating_add);
    }
    let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let unit_ns = match suffix {
        b"" => unit_ns,
        b"ns" => 1,
        b"us" | b"\xc2\xb5s" => 1_000,
        b"ms" => 1_000_000,
        b"s" => 1_000_000_000,
        _ => return None,
    };
    let dot = number.iter().position(|byte| *byte == b'.').unwrap_or(number.len());
    let (whole, fraction) = (&number[..dot], number.get(dot + 1..).unwrap_or_default());
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(9)];
    let unit_ns = u128::from(unit_ns);
    let part_ns = u128::from(digits(fraction)?) * unit_ns / 10u128.pow(fraction.len() as u32);
    u64::try_from((u128::from(digits(whole)?) * unit_ns + part_ns) / 1_000).ok()
}

/// Parses a whole number; an empty text is 0.
pub(crate) fn digits(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The attributes that a log has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFields(Vec<Field>);

impl LogFields {
    pub(crate) fn of<'f>(fields: impl Iterator<Item = &'f Field>) -> Self {
        Self(fields.cloned().collect())
    }

    /// Returns whether the log has this attribute.
    #[must_use]
    pub fn have(&self, attribute: &ReadAttribute) -> bool {
        let has = |test: &dyn Fn(&Field) -> bool| self.0.iter().any(test);
        let is_target = |field: &Field| matches!(field, Field::Request | Field::Target);
        match attribute {
            ReadAttribute::Method => has(&|of| matches!(of, Field::Request | Field::Method)),
            ReadAttribute::Path => has(&|of| is_target(of) || *of == Field::Path),
            ReadAttribute::Query => has(&|of| is_target(of) || *of == Field::Query),
            ReadAttribute::Host => has(&|of| *of == Field::Host),
            ReadAttribute::Client => {
                has(&|of| *of == Field::Client || *of == header("x-forwarded-for"))
            }
            ReadAttribute::Header(name) => {
                has(&|of| matches!(of, Field::Header(known) if **known == **name))
                    || name == "host" && has(&|of| *of == Field::Host)
            }
            ReadAttribute::Cookie(_) => {
                has(&|of| matches!(of, Field::Header(known) if &**known == "cookie"))
            }
            ReadAttribute::Custom(name) => {
                has(&|of| matches!(of, Field::Named(known) if **known == **name))
                    || name == "user" && has(&|of| *of == Field::User)
            }
            ReadAttribute::Usage => {
                let is_usage = |known: &str| usage::names().any(|name| name == known);
                has(&|of| matches!(of, Field::Named(known) if is_usage(known)))
            }
            ReadAttribute::Status => has(&|of| *of == Field::Status),
            ReadAttribute::ResponseHeader(name) => {
                has(&|of| matches!(of, Field::ResponseHeader(known) if **known == **name))
            }
            ReadAttribute::Duration => {
                has(&|of| matches!(of, Field::Duration(_) | Field::DurationPart(_) | Field::Timers))
            }
            _ => false,
        }
    }

    /// Adds the fields that another log has.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_a_port_or_be_the_first_of_a_list() {
        let parsed = |text| address(text).map(|ip| ip.to_string());
        assert_eq!(parsed("192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(parsed("192.0.2.1:80").as_deref(), Some("192.0.2.1"));
        assert_eq!(parsed("[2001:db8::1]:80").as_deref(), Some("2001:db8::1"));
        assert_eq!(parsed("2001:db8::1").as_deref(), Some("2001:db8::1"));
        assert_eq!(parsed("192.0.2.1, 10.0.0.1").as_deref(), Some("192.0.2.1"));
        for text in ["unix:", "host", "1.2.3", "1.2.3.4.5", "1.2.3.256", "01.2.3.4", "1.2.3."] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_numbers_with_or_without_a_unit() {
        let parsed = |text: &str, unit| duration_us(text.as_bytes(), unit);
        assert_eq!(parsed("0.123", 1_000_000_000), Some(123_000));
        assert_eq!(parsed("12", 1_000_000), Some(12_000));
        assert_eq!(parsed("12.345ms", 1), Some(12_345));
        assert_eq!(parsed("1500000", 1), Some(1_500));
        assert_eq!(parsed("0.001, 0.002 : 0.003", 1_000_000_000), Some(6_000));
        assert_eq!(parsed("4.2e-05", 1_000_000_000), None);
        assert_eq!(parsed("-1", 1), None);
    }

    #[test]
    fn a_request_line_may_lack_its_protocol_and_have_spaces_in_its_target() {
        let parsed = |text| split_request(text);
        assert_eq!(parsed("GET /a b HTTP/1.1"), Some(("GET", "/a b")));
        assert_eq!(parsed("GET /"), Some(("GET", "/")));
        assert_eq!(parsed("\\x16\\x03"), None);
    }
}
