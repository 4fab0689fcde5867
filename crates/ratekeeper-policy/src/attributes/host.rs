//! Canonical form and validation of hosts.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::net::Ipv6Addr;

/// Maximum length of a DNS name.
const NAME_MAX: usize = 253;

/// Why the host of a request cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostError {
    /// The text is not a valid host.
    Malformed,
    /// There is more than one `Host` header.
    SentTwice,
    /// The `Host` header names another host than the request's target.
    Contradicted,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => {
                "the host is not NAME, NAME:PORT or [IPV6]:PORT; write a name in ASCII, as xn--"
            }
            Self::SentTwice => "the request has more than one Host header",
            Self::Contradicted => "the Host header is not the host of the request's target",
        })
    }
}

impl Error for HostError {}

/// Returns the canonical form of a host (`name[:port]`, `v4[:port]` or `[v6][:port]`): in lower case,
/// without port and trailing dot, an IPv6 address in its shortest form.
///
/// A name consists of letters, digits, `-`, `_` and dots. Everything else is rejected, because
/// upstreams interpret it differently: nginx reads `a:80:80` as `a`. Internationalized names must be
/// in ASCII form (`xn--`).
///
/// ```
/// use ratekeeper_policy::attributes::canonical_host;
///
/// assert_eq!(canonical_host("API.example.com.:443")?, "api.example.com");
/// assert_eq!(canonical_host("[2001:DB8:0::1]")?, "[2001:db8::1]");
/// assert!(canonical_host("api.example.com:80:80").is_err());
/// # Ok::<(), ratekeeper_policy::attributes::HostError>(())
/// ```
///
/// # Errors
///
/// Returns [`HostError::Malformed`] if the text is not a valid host.
pub fn canonical_host(text: &str) -> Result<Cow<'_, str>, HostError> {
    // Most hosts are a name, in lower case.
    if Case::of_name(text) == Some(Case::Lower) {
        return Ok(text.into());
    }
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']').ok_or(HostError::Malformed)?;
        if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
            return Err(HostError::Malformed);
        }
        let address: Ipv6Addr = address.parse().map_err(|_| HostError::Malformed)?;
        return Ok(format!("[{address}]").into());
    }
    let (name, port) = text.split_once(':').unwrap_or((text, ""));
    let name = name.strip_suffix('.').unwrap_or(name);
    if !is_port(port) {
        return Err(HostError::Malformed);
    }
    Ok(match Case::of_name(name).ok_or(HostError::Malformed)? {
        Case::Lower => name.into(),
        Case::Mixed => name.to_ascii_lowercase().into(),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Lower,
    Mixed,
}

impl Case {
    /// Returns whether a name has letters in upper case; `None` if it is not a name: labels of letters, digits, `-`
    /// and `_` between dots.
    fn of_name(name: &str) -> Option<Self> {
        let (mut kinds, mut has_empty_label, mut last) = (0, false, b'.');
        for byte in name.bytes() {
            kinds |= KINDS[usize::from(byte)];
            has_empty_label |= byte == b'.' && last == b'.';
            last = byte;
        }
        if kinds & INVALID != 0 || has_empty_label || last == b'.' || name.len() > NAME_MAX {
            return None;
        }
        Some(if kinds & UPPER == 0 { Self::Lower } else { Self::Mixed })
    }
}

/// Kinds of bytes in a name, as bits; 0 for all others.
const INVALID: u8 = 1;
const UPPER: u8 = 2;
static KINDS: [u8; 256] = {
    let mut kinds = [INVALID; 256];
    let mut byte = 0;
    while byte < 256 {
        match byte as u8 {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => kinds[byte] = 0,
            b'A'..=b'Z' => kinds[byte] = UPPER,
            _ => {}
        }
        byte += 1;
    }
    kinds
};

/// Whether the text is a port. RFC 3986 allows an empty one.
fn is_port(text: &str) -> bool {
    let is_number = text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.is_empty() || is_number && text.parse::<u16>().is_ok()
}

/// Returns the host of a request: the authority of its target (in HTTP/2, `:authority`) or its `Host`
/// header. If both are present, they must be the same host.
///
/// # Errors
///
/// Returns why the host cannot be determined. Such a request is rejected with 400, because the
/// application might read another host than the one chosen here.
pub fn request_host<'a>(
    authority: Option<&'a str>,
    mut host_lines: impl Iterator<Item = &'a [u8]>,
) -> Result<Option<&'a str>, HostError> {
    let line = host_lines.next();
    if host_lines.next().is_some() {
        return Err(HostError::SentTwice);
    }
    let line = line.map(super::trim_ows).filter(|line| !line.is_empty());
    let line = line.map(std::str::from_utf8).transpose().map_err(|_| HostError::Malformed)?;
    let authority = authority.filter(|authority| !authority.is_empty());
    let canonical = |host: Option<&'a str>| host.map(canonical_host).transpose();
    match (canonical(authority)?, canonical(line)?) {
        (Some(one), Some(other)) if one != other => Err(HostError::Contradicted),
        _ => Ok(authority.or(line)),
    }
}

/// Returns a host pattern of a policy (`*` matches any characters) in canonical form, or why it is
/// invalid.
pub(crate) fn host_pattern(text: &str) -> Result<String, &'static str> {
    if text.contains(['/', '@', ' ', ',']) {
        return Err("a host is a name alone, such as api.example.com");
    }
    if text.starts_with('[') && text.ends_with(']') {
        return match canonical_host(text) {
            Ok(host) => Ok(host.into_owned()),
            Err(_) if text.contains('*') => Ok(text.to_ascii_lowercase()),
            Err(_) => Err("this is not an IPv6 address in brackets"),
        };
    }
    if text.contains(':') {
        return Err(
            "a host has no port here, because ports are ignored; put an IPv6 address in brackets",
        );
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return Err("a host is missing");
    }
    let labels = name.split('.').map(ascii_label).collect::<Result<Vec<_>, _>>()?;
    let name = labels.join(".").to_ascii_lowercase();
    match Case::of_name(&name.replace('*', "x")).is_some() {
        true => Ok(name),
        false => Err("a host has letters, digits, - and _ between dots, and * for any characters"),
    }
}

/// Returns a label in ASCII form: an internationalized label as `xn--`.
fn ascii_label(label: &str) -> Result<Cow<'_, str>, &'static str> {
    match label.is_ascii() {
        true => Ok(label.into()),
        false if label.contains('*') => {
            Err("a label with * and non-ASCII letters must be written in ASCII form: xn--")
        }
        false => idna::domain_to_ascii(label).map(Cow::from).map_err(|_| "this is not a host name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_host_have_one_canonical_form() {
        for host in ["a.b", "A.b", "a.b.", "a.b:80", "a.B.:65535", "a.b:"] {
            assert_eq!(canonical_host(host).as_deref(), Ok("a.b"), "{host}");
        }
        for host in ["[2001:db8::1]", "[2001:DB8:0:0::1]:80", "[2001:db8::0001]:"] {
            assert_eq!(canonical_host(host).as_deref(), Ok("[2001:db8::1]"), "{host}");
        }
        assert_eq!(canonical_host("192.0.2.1:8080").as_deref(), Ok("192.0.2.1"));
        assert_eq!(canonical_host("my_service").as_deref(), Ok("my_service"));
    }

    #[test]
    fn invalid_hosts_are_rejected() {
        let long = "a".repeat(254);
        for text in [
            "",
            ".",
            ":80",
            "::",
            ":a:b",
            "a:80:80",
            "a:b",
            "a::",
            "a:+80",
            "a:65536",
            "a:000080",
            "a..b",
            ".a",
            "a..",
            "a b",
            "a,b",
            "u@a",
            "a/b",
            "a%2eb",
            "a\0",
            "bücher.example",
            "[::1",
            "[::1]a",
            "[::1]:a",
            "[::1]:80:80",
            "[::1%25lo]",
            "[v1.a]",
            "::1",
            "*",
            &long,
        ] {
            assert_eq!(canonical_host(text), Err(HostError::Malformed), "{text}");
        }
    }

    #[test]
    fn a_request_has_one_host() {
        let host = |authority, lines: &[&'static str]| {
            request_host(authority, lines.iter().map(|line| line.as_bytes()))
        };
        assert_eq!(host(None, &[]), Ok(None));
        assert_eq!(host(None, &[""]), Ok(None));
        assert_eq!(host(None, &[" a:80 "]), Ok(Some("a:80")));
        assert_eq!(host(Some("a"), &[]), Ok(Some("a")));
        assert_eq!(host(Some("a"), &["A.:80"]), Ok(Some("a")));
        assert_eq!(host(Some("a"), &["b"]), Err(HostError::Contradicted));
        assert_eq!(host(None, &["a", "a"]), Err(HostError::SentTwice));
        assert_eq!(host(Some("a"), &["a:80:80"]), Err(HostError::Malformed));
        assert_eq!(host(Some("u@a"), &[]), Err(HostError::Malformed));
        assert_eq!(request_host(None, [&b"a\xff"[..]].into_iter()), Err(HostError::Malformed));
    }

    #[test]
    fn a_pattern_gets_the_canonical_form_of_hosts() {
        let pattern = |text| host_pattern(text).unwrap();
        assert_eq!(pattern("API.Example.com."), "api.example.com");
        assert_eq!(pattern("*.BÜCHER.example"), "*.xn--bcher-kva.example");
        assert_eq!(pattern("[2001:DB8:0::1]"), "[2001:db8::1]");
        for wrong in ["a:80", "::1", "http://a", ".", "a..b", "a%b", "b*ü.example", "[::x]", ""] {
            assert!(host_pattern(wrong).is_err(), "{wrong}");
        }
    }
}
