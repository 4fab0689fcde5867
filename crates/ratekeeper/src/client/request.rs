//! What limits and rules read of a request that is about to be sent.

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Uri, header};
use ratekeeper_policy::RequestAttributes;
use ratekeeper_policy::json_fields::JsonFields;

use crate::tower::InMap;

/// A request that is about to be sent, as limits see it.
///
/// ```
/// use ratekeeper::client::{Outbound, OutboundRequest};
///
/// // GitHub counts searches apart from everything else.
/// let outbound = Outbound::new("5000/hour per host")?.quota_by(|request: &OutboundRequest<'_>| {
///     let is_search = request.path.starts_with("/search/");
///     format!("{} {is_search}", request.host)
/// });
/// # Ok::<(), ratekeeper::PolicyErrors>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OutboundRequest<'a> {
    /// The method.
    pub method: &'a Method,
    /// The host that is called, without the port; empty if it is not known.
    pub host: &'a str,
    /// The port, if it is not the default of the scheme.
    pub port: Option<u16>,
    /// The path.
    pub path: &'a str,
    /// The query, without the question mark.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The extensions.
    pub extensions: &'a Extensions,
    /// Host and port as they are written in the request, to be used without a copy.
    authority: &'a str,
}

impl<'a> OutboundRequest<'a> {
    pub(super) fn of_parts(parts: &'a Parts) -> Self {
        let host_line = || parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let authority = match parts.uri.authority() {
            Some(authority) => authority.as_str(),
            None => host_line().unwrap_or_default(),
        };
        let (host, port) = split_authority(authority, &parts.uri);
        Self {
            method: &parts.method,
            host,
            port,
            path: parts.uri.path(),
            query: parts.uri.query(),
            headers: &parts.headers,
            extensions: &parts.extensions,
            authority: if port.is_some() { authority } else { host },
        }
    }

    #[cfg(feature = "reqwest")]
    pub(super) fn of_reqwest(request: &'a reqwest::Request, extensions: &'a Extensions) -> Self {
        let url = request.url();
        let host = url.host_str().unwrap_or_default();
        Self {
            method: request.method(),
            host,
            port: url.port(),
            path: url.path(),
            query: url.query(),
            headers: request.headers(),
            extensions,
            authority: host,
        }
    }

    /// Returns what a policy reads.
    pub(super) fn attributes<'r>(
        &'r self,
        headers: &'r InMap<'a>,
        json: Option<&'r JsonFields>,
        custom: &'r dyn Fn(&str) -> Option<Vec<u8>>,
        unix_secs: u64,
    ) -> RequestAttributes<'r> {
        RequestAttributes {
            host: Some(self.authority),
            port: self.port,
            query: self.query,
            headers,
            json,
            custom,
            unix_secs,
            ..RequestAttributes::new(self.method.as_str(), self.path)
        }
    }
}

/// Splits `user@host:port`. The port is `None` if it is the default of the scheme.
fn split_authority<'a>(authority: &'a str, uri: &Uri) -> (&'a str, Option<u16>) {
    if !authority.bytes().any(|byte| matches!(byte, b'@' | b':')) {
        return (authority, None);
    }
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match host.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, None),
    };
    let default = match uri.scheme_str() {
        Some("https") => 443,
        _ => 80,
    };
    (host, port.filter(|port| *port != default))
}

/// In the extensions of a request: when it has to be done. It is not waited for nor retried beyond that.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::client::Deadline;
///
/// let mut request = http::Request::get("https://api.example.com/").body(()).unwrap();
/// request.extensions_mut().insert(Deadline::after(Duration::from_secs(2)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Deadline(pub tokio::time::Instant);

impl Deadline {
    /// Returns the time that is this far from now.
    #[must_use]
    pub fn after(time: std::time::Duration) -> Self {
        let now = tokio::time::Instant::now();
        // A time that cannot be represented is some decades away.
        Self(now.checked_add(time).unwrap_or(now + std::time::Duration::from_secs(1 << 30)))
    }
}

/// In the extensions of a request: it can be repeated although its method is not idempotent.
///
/// ```
/// use ratekeeper::client::Repeatable;
///
/// let mut request = http::Request::post("https://api.example.com/search").body(()).unwrap();
/// request.extensions_mut().insert(Repeatable);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Repeatable;

/// In the extensions of a request: what it is expected to cost, in units of limits whose cost is the usage that the
/// response states (`cost: { usage }`).
///
/// ```
/// use ratekeeper::client::EstimatedCost;
///
/// let mut request = http::Request::post("https://api.example.com/v1/messages").body(()).unwrap();
/// request.extensions_mut().insert(EstimatedCost(1_200));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EstimatedCost(pub u64);

/// In the extensions of a request that is sent again, and of a response: the number of the attempt, from 1. The
/// first attempt has no extension.
///
/// ```
/// use ratekeeper::client::Attempt;
///
/// fn attempts<B>(response: &http::Response<B>) -> u32 {
///     response.extensions().get::<Attempt>().map_or(1, |attempt| attempt.0)
/// }
/// # assert_eq!(attempts(&http::Response::new(())), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt(pub u32);
