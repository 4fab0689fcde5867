//! Checks which requests can be forwarded, and normalizes them.
//!
//! The policy must see what the upstream will see, so a request is normalized before the policy reads it:
//! header values without whitespace around them, cookies in one line, and the host in
//! the `Host` header.

use http::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};
use ratekeeper::Policy;
use ratekeeper::policy::attributes::{canonical_host, trim_ows};

use super::error::ProxyError;
use super::headers;

/// What a request is checked against.
pub(super) struct CheckRules<'a> {
    pub(super) headers_max: usize,
    pub(super) request_id_header: &'a HeaderName,
    pub(super) policy: &'a Policy,
    /// The host of a request that names none, which only HTTP/1.0 allows.
    pub(super) default_host: &'a HeaderValue,
}

/// Rejects what upstreams could understand in more than one way, and normalizes the rest.
pub(super) fn check<B>(request: &mut Request<B>, rules: &CheckRules<'_>) -> Result<(), ProxyError> {
    // One is the request's id. hyper has counted those of HTTP/1.
    if request.version() > Version::HTTP_11 && request.headers().len() > rules.headers_max + 1 {
        return Err(ProxyError::TooManyHeaders);
    }
    if *request.method() == Method::CONNECT {
        return Err(ProxyError::Connect);
    }
    check_target(request.uri(), request.method())?;
    trim_values(request.headers_mut());
    check_host(request.uri(), request.headers(), request.version())?;
    check_length(request.headers())?;
    check_names(request.headers(), rules)?;
    if request.version() > Version::HTTP_11 {
        headers::join_cookies(request.headers_mut());
    }
    // The upstream does not get them, so nothing here sees them.
    headers::remove_named(request.headers_mut());
    set_host(request, rules.default_host)
}

fn check_target(uri: &Uri, method: &Method) -> Result<(), ProxyError> {
    let path = uri.path();
    if path.starts_with('/') || (path == "*" && *method == Method::OPTIONS) {
        return Ok(());
    }
    Err(ProxyError::BadRequest("the request's target is not a path"))
}

/// HTTP/1 has no whitespace around values, so that an upstream would not see it. HTTP/2 lets it through.
fn trim_values(headers: &mut HeaderMap) {
    for value in headers.values_mut() {
        let trimmed = trim_ows(value.as_bytes());
        if trimmed.len() < value.len()
            && let Ok(trimmed) = HeaderValue::from_bytes(trimmed)
        {
            *value = trimmed;
        }
    }
}

fn check_host(uri: &Uri, headers: &HeaderMap, version: Version) -> Result<(), ProxyError> {
    let mut hosts = headers.get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(ProxyError::BadRequest("the request has more than one Host header"));
    }
    let is_http2 = version > Version::HTTP_11;
    match (host, uri.authority()) {
        (Some(host), _) if !is_host(host.as_bytes()) => Err(ProxyError::BadRequest(
            "the request's Host header is not NAME, NAME:PORT or [IPV6]:PORT",
        )),
        (_, Some(authority)) if !is_host(authority.as_str().as_bytes()) => Err(
            ProxyError::BadRequest("the request's authority is not NAME, NAME:PORT or [IPV6]:PORT"),
        ),
        (Some(host), Some(authority)) if is_http2 && host != authority.as_str() => {
            Err(ProxyError::BadRequest("the request's Host header is not its authority"))
        }
        (None, Some(_)) if is_http2 => Ok(()),
        (None, _) if version != Version::HTTP_10 => {
            Err(ProxyError::BadRequest("the request has no Host header"))
        }
        _ => Ok(()),
    }
}

fn is_host(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| canonical_host(text).is_ok())
}

/// Checks that there is one length, and that it is a number. `framing` does that for HTTP/1.
fn check_length(headers: &HeaderMap) -> Result<(), ProxyError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_number = |length: &HeaderValue| {
        !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit)
    };
    match (lengths.next(), lengths.next()) {
        (_, Some(_)) => {
            Err(ProxyError::BadRequest("the request has more than one Content-Length header"))
        }
        (Some(length), None) if !is_number(length) => {
            Err(ProxyError::BadRequest("the request's Content-Length is not a number"))
        }
        _ => Ok(()),
    }
}

/// Rejects a request that would remove a header which the policy or the upstream depends on, or that has a
/// header whose name some upstreams take for such a one.
fn check_names(headers: &HeaderMap, rules: &CheckRules<'_>) -> Result<(), ProxyError> {
    let is_needed = |name: &HeaderName| {
        is_end_to_end(name)
            || name == rules.request_id_header
            || rules.policy.reads_header(name.as_str())
    };
    if headers::named(headers).any(|name| is_needed(&name)) {
        return Err(ProxyError::BadRequest(
            "the Connection header names a header that is not only for this connection",
        ));
    }
    if headers.keys().any(|name| is_lookalike(name, rules)) {
        return Err(ProxyError::BadRequest(
            "the name of a header differs only in punctuation from one that is read here; use that one",
        ));
    }
    Ok(())
}

/// Headers that a request means for the upstream.
fn is_end_to_end(name: &HeaderName) -> bool {
    let text = name.as_str();
    [AUTHORIZATION, COOKIE, FORWARDED, HOST].contains(name)
        || text == "x-real-ip"
        || text.starts_with("content-")
        || text.starts_with("x-forwarded-")
}

/// To CGI, WSGI and PHP, `X_Forwarded_For` is `X-Forwarded-For`.
fn is_lookalike(name: &HeaderName, rules: &CheckRules<'_>) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let text = name.as_str();
    let folded = || text.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    !text.bytes().all(is_plain)
        && HeaderName::try_from(folded()).is_ok_and(|folded| is_end_to_end(&folded))
        || rules.policy.reads_header_like(text)
}

/// The authority counts more than a `Host` header beside it (RFC 9112, 3.2.2).
fn set_host<B>(request: &mut Request<B>, default: &HeaderValue) -> Result<(), ProxyError> {
    let Some(authority) = request.uri().authority() else {
        request.headers_mut().entry(HOST).or_insert_with(|| default.clone());
        return Ok(());
    };
    let host = HeaderValue::from_str(authority.as_str());
    let host = host.map_err(|_| ProxyError::BadRequest("the request's authority is not a host"))?;
    request.headers_mut().insert(HOST, host);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<B>(request: &mut Request<B>) -> Result<(), ProxyError> {
        let policy = Policy::one_line("1/s per header x-api-key").unwrap();
        let rules = CheckRules {
            headers_max: 100,
            request_id_header: &HeaderName::from_static("x-trace"),
            policy: &policy,
            default_host: &HeaderValue::from_static("upstream:81"),
        };
        super::check(request, &rules)
    }

    fn request(uri: &str, headers: &[(&str, &str)], version: Version) -> Request<()> {
        let mut request = Request::builder().uri(uri).version(version);
        for (name, value) in headers {
            request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        request.body(()).unwrap()
    }

    fn checked(uri: &str, hosts: &[&str], version: Version) -> bool {
        let hosts: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
        check(&mut request(uri, &hosts, version)).is_ok()
    }

    fn passes(headers: &[(&str, &str)]) -> bool {
        let headers = [&[("host", "a")], headers].concat();
        check(&mut request("/", &headers, Version::HTTP_11)).is_ok()
    }

    #[test]
    fn a_request_has_one_host() {
        use Version as V;
        assert!(checked("/", &["a:80"], V::HTTP_11) && checked("/", &["[::1]"], V::HTTP_11));
        assert!(checked("http://a/", &["b"], V::HTTP_11) && checked("/", &[], V::HTTP_10));
        assert!(checked("http://a/", &[], V::HTTP_2) && checked("http://a/", &["a"], V::HTTP_2));
        assert!(!checked("/", &[], V::HTTP_11) && !checked("/", &["a", "a"], V::HTTP_11));
        assert!(!checked("/", &["a", "b"], V::HTTP_10) && !checked("http://a/", &[], V::HTTP_11));
        assert!(!checked("http://a/", &["b"], V::HTTP_2) && !checked("/", &[], V::HTTP_2));
        for wrong in ["", "a b", "a,b", "u@a", "a/b", "a\tb", "a:80:80", "::", ":a:b", "ü.example"]
        {
            assert!(!checked("/", &[wrong], V::HTTP_11), "{wrong:?}");
        }
        let mut absolute = request("http://a:81/x", &[("host", "b")], V::HTTP_11);
        check(&mut absolute).unwrap();
        assert_eq!(absolute.headers()[HOST], "a:81");
        let mut old = request("/", &[], V::HTTP_10);
        check(&mut old).unwrap();
        assert_eq!(old.headers()[HOST], "upstream:81", "as the upstream will see it");
    }

    #[test]
    fn what_connection_names_is_gone_before_it_is_read() {
        let headers = [("host", "a"), ("connection", "close, x-lang"), ("x-lang", "de")];
        let mut sent = request("/", &headers, Version::HTTP_11);
        check(&mut sent).unwrap();
        assert!(sent.headers().get("x-lang").is_none());
        assert_eq!(sent.headers()["connection"], "close, x-lang");
    }

    #[test]
    fn a_target_is_a_path() {
        assert!(checked("/a/../b//c?%2e", &["a"], Version::HTTP_11));
        assert!(!checked("a:80", &["a"], Version::HTTP_11));
        assert!(!checked("*", &["a"], Version::HTTP_11));
    }

    #[test]
    fn values_are_passed_on_as_they_are_read() {
        let headers = [("x-a", " \tb c\t "), ("cookie", " a=1 "), ("cookie", "b=2"), ("x-b", " ")];
        let mut sent = request("http://a/", &headers, Version::HTTP_2);
        check(&mut sent).unwrap();
        assert_eq!(sent.headers()["x-a"], "b c");
        assert_eq!(sent.headers()["x-b"], "");
        assert_eq!(sent.headers()["cookie"], "a=1; b=2");
        assert_eq!(sent.headers()[HOST], "a");
    }

    #[test]
    fn a_request_has_one_length() {
        assert!(passes(&[("content-length", "3")]));
        assert!(!passes(&[("content-length", "3"), ("content-length", "3")]));
        assert!(!passes(&[("content-length", "3, 3")]) && !passes(&[("content-length", "+3")]));
        assert!(!passes(&[("content-length", "")]));
    }

    #[test]
    fn connection_cannot_remove_headers_that_are_needed() {
        for option in ["close", "keep-alive, Upgrade", "TE, x", "x-mine", "http2-settings"] {
            assert!(passes(&[("connection", option)]), "{option}");
        }
        for name in [
            "x-api-key",
            "close, X-Api-Key",
            "Host",
            "authorization",
            "Cookie",
            "content-length",
            "x-forwarded-for",
            "forwarded",
            "x-real-ip",
            "x-trace",
        ] {
            assert!(!passes(&[("connection", name)]), "{name}");
            assert!(!passes(&[("connection", "close"), ("connection", name)]), "{name}");
        }
    }

    #[test]
    fn no_header_looks_like_one_that_is_read() {
        assert!(passes(&[("x-api-key", "k"), ("some_thing", "x"), ("x-forwarded-for", "::1")]));
        for name in ["x_api_key", "x_forwarded_for", "content_length", "x-forwarded.for"] {
            assert!(!passes(&[(name, "k")]), "{name}");
        }
    }
}
