//! Identities: what requests are counted by.

use std::borrow::Cow;
use std::fmt;

use crate::attributes::{AttributeValues, cookie, header};
use crate::context::RequestContext;
use crate::json_fields::JsonPath;

/// Longer values are replaced by their SHA-256 digest, which bounds the size of keys.
const VALUE_MAX: usize = 128;

/// An identity of the policy.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) source: Source,
    pub(crate) missing: WhenMissing,
}

/// Where an identity is found. Other identities are referred to by their index in the policy.
#[derive(Debug)]
pub(crate) enum Source {
    Header(String),
    Cookie(String),
    Query(String),
    PathSegment(usize),
    Claim(String),
    RequestJson(JsonPath),
    ClientIp,
    Host,
    Constant(Vec<u8>),
    Custom,
    FirstOf(Vec<usize>),
    AllOf(Vec<usize>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WhenMissing {
    #[default]
    Ip,
    Anonymous,
    Deny,
}

/// Why an identity is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingReason {
    /// It was not sent.
    NotSent,
    /// It was sent empty.
    Empty,
    /// It was sent more than once with different values; an upstream may read either.
    SentTwice,
    /// Upstreams may read different values from it.
    Ambiguous,
    /// The client's address is not known.
    NoAddress,
    /// The application supplied no value.
    NotGiven,
    /// The token was rejected for this reason.
    Token(String),
    /// The token has no such claim.
    NoClaim,
    /// The body of the request is not known: it is not JSON, is too large, or is not read here.
    NoJson,
    /// None of the identities of a `first_of` is present.
    NoneOf,
}

impl fmt::Display for MissingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "it was not sent",
            Self::Empty => "it was sent empty",
            Self::SentTwice => "it was sent more than once",
            Self::Ambiguous => "it can be read in more than one way",
            Self::NoAddress => "the client's address is unknown",
            Self::NotGiven => "the application supplied none",
            Self::Token(why) => return write!(f, "the token is not accepted: {why}"),
            Self::NoClaim => "the token has no such claim",
            Self::NoJson => "the body is not JSON, is too large, or is not read here",
            Self::NoneOf => "none of them is present",
        })
    }
}

pub(crate) type IdentityValue<'a> = Result<Cow<'a, [u8]>, MissingReason>;

impl Source {
    /// Returns the value of this source in a request. `FirstOf` and `AllOf` have no value of their own.
    pub(crate) fn find<'p: 'r, 'r>(
        &'p self,
        context: &RequestContext<'p, 'r>,
    ) -> IdentityValue<'r> {
        let request = context.request;
        match self {
            Self::Header(name) => one(header::values(request, name)),
            Self::Cookie(name) => one(cookie::values(request, name)?),
            Self::Query(name) => same(context.parameters().readings(name).into_iter()),
            Self::PathSegment(n) => path_segment(context.paths(), *n),
            Self::Claim(path) => context.claim(path),
            Self::RequestJson(path) => request_json(context, path),
            Self::ClientIp => context.client_key().map(Cow::from).ok_or(MissingReason::NoAddress),
            Self::Host => context.host_key().ok_or(MissingReason::NotSent),
            Self::Constant(value) => Ok(value.into()),
            Self::Custom => Err(MissingReason::NotGiven),
            Self::FirstOf(_) | Self::AllOf(_) => Err(MissingReason::NoneOf),
        }
    }

    /// Whether it is the address of the client.
    pub(crate) fn is_address(&self) -> bool {
        matches!(self, Self::ClientIp)
    }

    /// Returns a value written in a policy in the canonical form of request values.
    pub(crate) fn canonical<'v>(&self, value: &'v str) -> Cow<'v, [u8]> {
        match self {
            Self::Header(name) => header::canonical(name, value.as_bytes()),
            Self::Cookie(_) => cookie::identity(cookie::decoded(value.as_bytes())),
            _ => value.as_bytes().into(),
        }
    }
}

/// The value of a field of the body. A value that is too long, an object or an array is no identity.
fn request_json<'r>(context: &RequestContext<'_, 'r>, path: &JsonPath) -> IdentityValue<'r> {
    let values = context.json(path);
    match context.request.json {
        None => Err(MissingReason::NoJson),
        Some(_) if values.are_more => Err(MissingReason::Ambiguous),
        Some(_) => one(values),
    }
}

/// The value by every reading, if they agree.
fn same<'v, 'a: 'v>(
    mut readings: impl Iterator<Item = Cow<'v, AttributeValues<'a>>>,
) -> IdentityValue<'a> {
    let first = one(readings.next().unwrap_or_default().into_owned());
    match readings.all(|values| one(values.into_owned()) == first) {
        true => first,
        false => Err(MissingReason::Ambiguous),
    }
}

/// Returns the `n`th path segment, counted from 1, if all readings agree. Readings with unresolved dot
/// segments are ignored, because nearly all servers resolve those.
fn path_segment<'a>(readings: &[Cow<'_, str>], n: usize) -> IdentityValue<'a> {
    let has_dots = |path: &str| path.split('/').any(|segment| matches!(segment, "." | ".."));
    let segment = |path: &'_ Cow<'_, str>| {
        let segment = path.split('/').filter(|segment| !segment.is_empty()).nth(n - 1);
        segment.and_then(|segment| segment.split(';').next()).unwrap_or_default().to_string()
    };
    let mut segments = readings.iter().filter(|path| !has_dots(path)).map(segment);
    let first =
        segments.next().filter(|segment| !segment.is_empty()).ok_or(MissingReason::NotSent)?;
    match segments.all(|other| other == first) {
        true => Ok(first.into_bytes().into()),
        false => Err(MissingReason::Ambiguous),
    }
}

/// The value that was sent, if all that were sent agree.
fn one(values: AttributeValues<'_>) -> IdentityValue<'_> {
    let mut known = values.known.into_iter();
    match (known.next(), known.next()) {
        _ if values.are_more => Err(MissingReason::SentTwice),
        (None, _) => Err(MissingReason::NotSent),
        (_, Some(_)) => Err(MissingReason::SentTwice),
        (Some(value), None) if value.is_empty() => Err(MissingReason::Empty),
        (Some(value), None) => Ok(value),
    }
}

/// The key a request is counted under. Different clients never have the same key: each part is a name
/// and a value, and separators within them are escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key(smallvec::SmallVec<[u8; 64]>);

impl Key {
    /// Returns the key of a limit with one count for all requests.
    #[must_use]
    pub fn of_all() -> Self {
        Self(smallvec::smallvec![b'*'])
    }

    /// Returns whether it is that of all requests together.
    #[must_use]
    pub fn is_of_all(&self) -> bool {
        *self == Self::of_all()
    }

    /// Returns the key as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn begin(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push(b',');
        }
        self.0.extend_from_slice(name.as_bytes());
    }

    /// Marks the current part as a fallback to another identity.
    pub(crate) fn fallback(&mut self, name: &str) {
        self.0.push(b'~');
        self.0.extend_from_slice(name.as_bytes());
    }

    pub(crate) fn value(&mut self, value: &[u8]) {
        self.0.push(b'=');
        if value.len() > VALUE_MAX {
            return self.digest(value);
        }
        let is_plain = |byte: &u8| !matches!(byte, b',' | b'%' | b'#');
        // Without an early end, it is done for many bytes at once.
        if value.iter().fold(true, |are_plain, byte| are_plain & is_plain(byte)) {
            return self.0.extend_from_slice(value);
        }
        for byte in value {
            match is_plain(byte) {
                true => self.0.push(*byte),
                false => self.hex(b'%', &[*byte]),
            }
        }
    }

    fn digest(&mut self, value: &[u8]) {
        use sha2::Digest;
        let digest = sha2::Sha256::digest(value);
        self.hex(b'#', &digest);
    }

    fn hex(&mut self, mark: u8, bytes: &[u8]) {
        self.0.push(mark);
        for byte in bytes {
            for nibble in [byte >> 4, byte & 15] {
                self.0.push(b"0123456789ABCDEF"[usize::from(nibble)]);
            }
        }
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(parts: &[(bool, Vec<u8>)]) -> Key {
        let mut key = Key::default();
        for (is_fallback, value) in parts {
            key.begin("who");
            if *is_fallback {
                key.fallback("ip");
            }
            key.value(value);
        }
        key
    }

    fn parts() -> impl Strategy<Value = Vec<(bool, Vec<u8>)>> {
        let byte =
            prop_oneof![Just(b','), Just(b'%'), Just(b'#'), Just(b'='), Just(b'~'), any::<u8>()];
        let value = prop_oneof![
            proptest::collection::vec(byte.clone(), 0..6),
            proptest::collection::vec(byte, 126..132)
        ];
        proptest::collection::vec((any::<bool>(), value), 1..4)
    }

    proptest! {
        #[test]
        fn different_clients_have_different_keys(one in parts(), other in parts()) {
            prop_assert_eq!(one == other, key(&one) == key(&other));
        }
    }

    #[test]
    fn a_key_of_a_long_value_is_short() {
        assert!(key(&[(false, vec![b'x'; 60_000])]).as_bytes().len() < 80);
    }
}
