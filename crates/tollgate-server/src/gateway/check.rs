//! Which requests can be passed on at all.

use http::header::HOST;
use http::{HeaderMap, Method, Request, Uri, Version};

use super::error::ProxyError;

/// Refuses what upstreams could understand in more than one way.
pub(super) fn check<B>(request: &Request<B>, headers_max: usize) -> Result<(), ProxyError> {
    // One is the request's id. hyper has counted those of HTTP/1.
    if request.version() > Version::HTTP_11 && request.headers().len() > headers_max + 1 {
        return Err(ProxyError::TooManyHeaders);
    }
    if *request.method() == Method::CONNECT {
        return Err(ProxyError::Connect);
    }
    check_target(request.uri(), request.method())?;
    check_host(request.uri(), request.headers(), request.version())
}

fn check_target(uri: &Uri, method: &Method) -> Result<(), ProxyError> {
    let path = uri.path();
    if path.starts_with('/') || (path == "*" && *method == Method::OPTIONS) {
        return Ok(());
    }
    Err(ProxyError::BadRequest("the request's target is not a path"))
}

fn check_host(uri: &Uri, headers: &HeaderMap, version: Version) -> Result<(), ProxyError> {
    let mut hosts = headers.get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(ProxyError::BadRequest("the request has more than one Host header"));
    }
    let is_http2 = version > Version::HTTP_11;
    match (host, uri.authority()) {
        (Some(host), _) if !is_host(host.as_bytes()) => {
            Err(ProxyError::BadRequest("the request's Host header is not a host"))
        }
        (_, Some(authority)) if !is_host(authority.as_str().as_bytes()) => {
            Err(ProxyError::BadRequest("the request's authority is not a host"))
        }
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

/// A name or an address, perhaps with a port. No user, no list.
fn is_host(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%[]:!$&'()*+;=".contains(byte);
    !text.is_empty() && text.iter().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(uri: &str, hosts: &[&str], version: Version) -> bool {
        let mut request = Request::builder().uri(uri).version(version);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        check(&request.body(()).unwrap(), 100).is_ok()
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
        for wrong in ["", "a b", "a,b", "u@a", "a/b", "a\tb"] {
            assert!(!checked("/", &[wrong], V::HTTP_11), "{wrong:?}");
        }
    }

    #[test]
    fn a_target_is_a_path() {
        assert!(checked("/a/../b//c?%2e", &["a"], Version::HTTP_11));
        assert!(!checked("a:80", &["a"], Version::HTTP_11));
        assert!(!checked("*", &["a"], Version::HTTP_11));
    }
}
