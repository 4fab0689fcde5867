//! The attributes of a request that policies read.

use std::net::IpAddr;

use smallvec::SmallVec;

use crate::json_fields::JsonFields;

/// The attributes of a request that a policy reads.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_policy as policy; }
/// use ratekeeper::policy::RequestAttributes;
///
/// let headers = vec![("x-api-key".to_string(), "k-123".to_string())];
/// let request = RequestAttributes {
///     headers: &headers,
///     peer: Some([203, 0, 113, 9].into()),
///     ..RequestAttributes::new("POST", "/checkout")
/// };
/// assert_eq!(request.method, "POST");
/// ```
#[derive(Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// The method.
    pub method: &'a str,
    /// The host, with or without a port: see
    /// [`request_host`](crate::attributes::request_host).
    pub host: Option<&'a str>,
    /// The port of the server that a client calls, if it is not the default of the scheme. It is part of the
    /// identity `host`. A server leaves it out: the port in a `Host` header is what the client says.
    pub port: Option<u16>,
    /// The path as received, without the query.
    pub path: &'a str,
    /// The query, without the question mark.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a dyn Headers,
    /// The fields of the body that the policy reads ([`Policy::request_json`](crate::Policy::request_json)), if
    /// the body is valid JSON and was read.
    pub json: Option<&'a JsonFields>,
    /// The peer address of the connection.
    pub peer: Option<IpAddr>,
    /// Returns the values of `custom` identities, by name, which the application supplies.
    pub custom: &'a dyn Fn(&str) -> Option<Vec<u8>>,
    /// The current time as a Unix timestamp, to check the expiry of tokens.
    pub unix_secs: u64,
}

impl<'a> RequestAttributes<'a> {
    /// Creates the attributes of a request without host, query, headers and peer.
    #[must_use]
    pub fn new(method: &'a str, path: &'a str) -> Self {
        Self {
            method,
            host: None,
            port: None,
            path,
            query: None,
            headers: &NoHeaders,
            json: None,
            peer: None,
            custom: &|_| None,
            unix_secs: 0,
        }
    }
}

/// Access to request or response headers, independent of their representation.
pub trait Headers {
    /// Calls `visit` with every value of this header, in order. `name` is in lower case.
    fn each<'h>(&'h self, name: &str, visit: &mut dyn FnMut(&'h [u8]));
}

/// An empty set of headers.
struct NoHeaders;

impl Headers for NoHeaders {
    fn each<'h>(&'h self, _: &str, _: &mut dyn FnMut(&'h [u8])) {}
}

/// Pairs of names and values. Names are compared without case.
impl Headers for [(String, String)] {
    fn each<'h>(&'h self, name: &str, visit: &mut dyn FnMut(&'h [u8])) {
        let named = self.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named.for_each(|(_, value)| visit(value.as_bytes()));
    }
}

impl Headers for Vec<(String, String)> {
    fn each<'h>(&'h self, name: &str, visit: &mut dyn FnMut(&'h [u8])) {
        self.as_slice().each(name, visit);
    }
}

impl dyn Headers + '_ {
    /// Returns all values of a header.
    pub(crate) fn all(&self, name: &str) -> SmallVec<[&[u8]; 2]> {
        let mut values = SmallVec::new();
        self.each(name, &mut |value| values.push(value));
        values
    }
}
