//! A request as an access log has it.

use std::borrow::Cow;
use std::net::IpAddr;

use ratekeeper_core::Micros;
use ratekeeper_policy::{Headers, RequestAttributes};
use smallvec::SmallVec;

/// A header or a field of the log: its name and its value.
pub(crate) type Named<'a> = (&'a str, Cow<'a, str>);

/// A request, as far as a line of an access log has it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AccessRecord<'a> {
    /// The time that the log has: of the end of the request for most formats.
    pub at: Micros,
    /// The address that the server saw.
    pub client: Option<IpAddr>,
    /// The user that the server authenticated.
    pub user: Option<Cow<'a, str>>,
    /// The method.
    pub method: Cow<'a, str>,
    /// The host that was requested.
    pub host: Option<Cow<'a, str>>,
    /// The path as received.
    pub path: Cow<'a, str>,
    /// The query, without the question mark.
    pub query: Option<Cow<'a, str>>,
    /// The status of the response.
    pub status: Option<u16>,
    /// How long the request took, in microseconds.
    pub duration_us: Option<u64>,
    pub(crate) headers: SmallVec<[Named<'a>; 3]>,
    pub(crate) response_headers: SmallVec<[Named<'a>; 1]>,
    pub(crate) fields: SmallVec<[Named<'a>; 1]>,
}

impl AccessRecord<'_> {
    /// Calls `read` with the request as a policy reads it.
    pub fn with_attributes<T>(&self, read: impl FnOnce(&RequestAttributes<'_>) -> T) -> T {
        let headers = NamedValues(&self.headers);
        let custom = |name: &str| self.field(name).map(|value| value.as_bytes().to_vec());
        read(&RequestAttributes {
            host: self.host.as_deref(),
            query: self.query.as_deref(),
            headers: &headers,
            peer: self.client.or_else(|| self.forwarded_for()),
            custom: &custom,
            unix_secs: self.at.get() / 1_000_000,
            ..RequestAttributes::new(&self.method, &self.path)
        })
    }

    /// Calls `read` with the headers of the response.
    pub fn with_response_headers<T>(&self, read: impl FnOnce(&dyn Headers) -> T) -> T {
        read(&NamedValues(&self.response_headers))
    }

    /// Returns the value of a field of the log that has no meaning of its own, or of the user.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let named = self.fields.iter().find(|(known, _)| *known == name);
        let user = || self.user.as_deref().filter(|_| name == "user");
        named.map(|(_, value)| &**value).or_else(user)
    }

    /// Returns the last address of `X-Forwarded-For`: a server that logs no address of its peer appended it.
    fn forwarded_for(&self) -> Option<IpAddr> {
        let (_, list) = self.headers.iter().find(|(name, _)| *name == "x-forwarded-for")?;
        list.rsplit(',').next()?.trim().parse().ok()
    }
}

/// Headers of a record. Their names are in lower case.
struct NamedValues<'r, 'a>(&'r [Named<'a>]);

impl Headers for NamedValues<'_, '_> {
    fn each<'h>(&'h self, name: &str, visit: &mut dyn FnMut(&'h [u8])) {
        let named = self.0.iter().filter(|(known, _)| *known == name);
        named.for_each(|(_, value)| visit(value.as_bytes()));
    }
}

/// Why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It does not have the fields of the format.
    #[error("it does not have the fields of the format")]
    Fields,
    /// It is not a JSON object, or ends within one.
    #[error("it is not a JSON object")]
    Json,
    /// It has no time, or one that cannot be read.
    #[error("its time is missing or not valid")]
    Time,
    /// It has no method or no path.
    #[error("it has no request: the method or the path is missing")]
    Request,
    /// It is longer than lines of an access log are.
    #[error("it has more than {} kB, the maximum", super::lines::LINE_MAX / 1000)]
    TooLong,
    /// It is empty but for its line end, or a comment.
    #[error("it is blank")]
    Blank,
}
