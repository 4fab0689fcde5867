//! A request, as far as limits look at it.

use std::net::IpAddr;

use smallvec::SmallVec;

/// What a policy needs to know of a request.
#[derive(Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// Its method.
    pub method: &'a str,
    /// The host that it is for, with or without a port: see
    /// [`request_host`](crate::attributes::request_host).
    pub host: Option<&'a str>,
    /// The path as it was sent, without the query.
    pub path: &'a str,
    /// The query, without the question mark.
    pub query: Option<&'a str>,
    /// Its headers.
    pub headers: &'a dyn Headers,
    /// Who is at the other end of the connection.
    pub peer: Option<IpAddr>,
    /// What the program knows of it: the values of `custom` identities, by name.
    pub custom: &'a dyn Fn(&str) -> Option<Vec<u8>>,
    /// The time, in seconds since 1970, for tokens that expire.
    pub unix_secs: u64,
}

impl<'a> RequestAttributes<'a> {
    /// A request of which nothing else is known.
    pub fn new(method: &'a str, path: &'a str) -> Self {
        Self {
            method,
            host: None,
            path,
            query: None,
            headers: &NoHeaders,
            peer: None,
            custom: &|_| None,
            unix_secs: 0,
        }
    }
}

/// Headers, however they are kept.
pub trait Headers {
    /// Shows every value of this header, in order. The name is in lower case.
    fn each<'h>(&'h self, name: &str, show: &mut dyn FnMut(&'h [u8]));
}

/// No headers at all.
struct NoHeaders;

impl Headers for NoHeaders {
    fn each<'h>(&'h self, _: &str, _: &mut dyn FnMut(&'h [u8])) {}
}

/// Names in lower case, and values.
impl Headers for [(String, String)] {
    fn each<'h>(&'h self, name: &str, show: &mut dyn FnMut(&'h [u8])) {
        let named = self.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named.for_each(|(_, value)| show(value.as_bytes()));
    }
}

impl Headers for Vec<(String, String)> {
    fn each<'h>(&'h self, name: &str, show: &mut dyn FnMut(&'h [u8])) {
        self.as_slice().each(name, show);
    }
}

impl dyn Headers + '_ {
    /// All values of a header.
    pub(crate) fn all(&self, name: &str) -> SmallVec<[&[u8]; 2]> {
        let mut values = SmallVec::new();
        self.each(name, &mut |value| values.push(value));
        values
    }
}
