//! Which headers pass, and what is said about the client.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::client::Client;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
static HOP_BY_HOP: [HeaderName; 6] =
    [CONNECTION, TRANSFER_ENCODING, TE, UPGRADE, KEEP_ALIVE, HTTP2_SETTINGS];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Whether the headers request a switch to WebSocket. A switch to anything else is not forwarded: with
/// HTTP/2, for example, later requests would bypass the gateway.
pub(super) fn requests_websocket(headers: &HeaderMap) -> bool {
    let is_websocket =
        |upgrade: &HeaderValue| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket");
    headers.get(UPGRADE).is_some_and(is_websocket)
        && headers.get_all(UPGRADE).iter().count() == 1
        && has_token(headers, &CONNECTION, "upgrade")
}

/// HTTP/2 may spread cookies over several headers; HTTP/1 has one.
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    let (Some(first), Some(_)) = (cookies.next(), cookies.next()) else { return };
    let mut all = first.as_bytes().to_vec();
    for cookie in headers.get_all(COOKIE).iter().skip(1) {
        all.extend_from_slice(b"; ");
        all.extend_from_slice(cookie.as_bytes());
    }
    if let Ok(all) = HeaderValue::from_bytes(&all) {
        headers.insert(COOKIE, all);
    }
}

/// Removes the headers that `Connection` names.
pub(super) fn remove_named(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        for name in named(headers).collect::<Vec<_>>() {
            headers.remove(name);
        }
    }
}

/// Removes from a request what is between the client and the gateway only. `check` has rejected a
/// request that would have more removed; `ours` is not the client's to remove.
pub(super) fn strip_request(headers: &mut HeaderMap, is_upgrade: bool, ours: &HeaderName) {
    let takes_trailers = headers.contains_key(TE) && has_token(headers, &TE, "trailers");
    let upgrade = headers.get(UPGRADE).filter(|_| is_upgrade).cloned();
    strip(headers, ours);
    // The gateway itself has sent `100 Continue`.
    headers.remove(EXPECT);
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    keep_upgrade(headers, upgrade);
}

/// Removes from a response what is between the upstream and the gateway only.
pub(super) fn strip_response(headers: &mut HeaderMap, is_upgrade: bool, ours: &HeaderName) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let upgrade = headers.get(UPGRADE).filter(|_| is_upgrade).cloned();
    strip(headers, ours);
    keep_upgrade(headers, upgrade);
}

fn keep_upgrade(headers: &mut HeaderMap, upgrade: Option<HeaderValue>) {
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

fn strip(headers: &mut HeaderMap, ours: &HeaderName) {
    // Checking is cheaper than removing, and many messages have none of these.
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let named: Vec<HeaderName> = named(headers).collect();
    let is_safe = |name: &HeaderName| *name != HOST && *name != CONTENT_LENGTH && name != ours;
    for name in named.iter().filter(|name| is_safe(name)).chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    while let Some(name) = headers.keys().find(|name| is_for_proxies(name)).cloned() {
        headers.remove(name);
    }
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name) || is_for_proxies(name)
}

fn is_for_proxies(name: &HeaderName) -> bool {
    name.as_str().starts_with("proxy-")
}

/// What `Connection` may always name: these are options, or headers that are removed in any case.
const CONNECTION_OPTIONS: [&str; 5] = ["close", "http2-settings", "keep-alive", "te", "upgrade"];

/// The other headers that `Connection` names.
pub(super) fn named(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let is_option =
        |token: &&str| CONNECTION_OPTIONS.iter().any(|known| token.eq_ignore_ascii_case(known));
    let names = tokens(headers, &CONNECTION).filter(move |token| !is_option(token));
    names.filter_map(|token| HeaderName::try_from(token).ok())
}

fn has_token(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    tokens(headers, name).any(|token| token.eq_ignore_ascii_case(wanted))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

/// Says who the client is. What it says itself about others is kept only if it is trusted.
pub(super) fn set_forwarded(headers: &mut HeaderMap, client: &Client, host: HeaderValue) {
    if !client.is_trusted {
        headers.remove(FORWARDED);
        headers.insert(FORWARDED_FOR, client.ip.clone());
        headers.insert(FORWARDED_PROTO, client.scheme());
        headers.insert(FORWARDED_HOST, host);
        return;
    }
    let all = joined(headers, &client.ip).unwrap_or_else(|| client.ip.clone());
    headers.insert(FORWARDED_FOR, all);
    headers.entry(FORWARDED_PROTO).or_insert_with(|| client.scheme());
    headers.entry(FORWARDED_HOST).or_insert(host);
}

/// Those whom the client forwards for, and then the client.
fn joined(headers: &HeaderMap, ip: &HeaderValue) -> Option<HeaderValue> {
    let mut all = Vec::new();
    for value in headers.get_all(FORWARDED_FOR).iter().chain([ip]) {
        if !all.is_empty() {
            all.extend_from_slice(b", ");
        }
        all.extend_from_slice(value.as_bytes());
    }
    HeaderValue::from_bytes(&all).ok()
}

/// How long an upstream keeps an unused connection, as its `Keep-Alive` header says.
pub(super) fn kept_for_s(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(KEEP_ALIVE)?.to_str().ok()?;
    let parameter = |part: &str| part.trim().strip_prefix("timeout=")?.parse().ok();
    value.split(',').find_map(parameter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: HeaderName = HeaderName::from_static("x-request-id");

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        all.iter().map(pair).collect()
    }

    #[test]
    fn what_the_connection_header_names_does_not_pass() {
        let mut request = headers(&[
            ("connection", "x-secret, close, host, content-length, x-request-id"),
            ("x-secret", "1"),
            ("host", "a"),
            ("content-length", "1"),
            ("x-request-id", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "x"),
            ("proxy-anything", "x"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
        ]);
        strip_request(&mut request, false, &ID);
        let left = headers(&[("host", "a"), ("content-length", "1"), ("x-request-id", "1")]);
        assert_eq!(request, left);
    }

    #[test]
    fn a_request_for_trailers_and_an_upgrade_pass() {
        let mut request = headers(&[("te", "gzip, trailers"), ("connection", "te")]);
        strip_request(&mut request, false, &ID);
        assert_eq!(request, headers(&[("te", "trailers"), ("connection", "te")]));

        let mut request =
            headers(&[("upgrade", "websocket"), ("connection", "keep-alive, Upgrade")]);
        assert!(requests_websocket(&request));
        strip_request(&mut request, true, &ID);
        assert_eq!(request, headers(&[("upgrade", "websocket"), ("connection", "upgrade")]));
    }

    #[test]
    fn a_chunked_response_has_no_length() {
        let mut response = headers(&[("content-length", "3"), ("transfer-encoding", "chunked")]);
        strip_response(&mut response, false, &ID);
        assert!(response.is_empty());
    }

    #[test]
    fn an_upstream_can_say_how_long_it_waits() {
        assert_eq!(kept_for_s(&headers(&[("keep-alive", "max=9, timeout=5")])), Some(5));
        assert_eq!(kept_for_s(&headers(&[])), None);
    }
}
