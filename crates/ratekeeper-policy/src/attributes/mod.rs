//! The request attributes that a policy reads, each in one canonical form.
//!
//! A limit can be evaded if it reads a value differently than the upstream. Every attribute therefore
//! has one canonical form, computed only in this module, for all listeners: spellings that an upstream
//! reads as the same value have the same canonical form and count as one. The reverse does not hold:
//! where upstreams differ, values that only some of them read as equal are merged.
//!
//! | attribute | canonical form |
//! |---|---|
//! | header | name in lower case; value without leading and trailing spaces, tabs and commas. Two lines are two values |
//! | `authorization` | also: scheme in lower case, one space, and Basic credentials without base64 variants |
//! | `cookie` (header) | all lines as one, joined with `; ` |
//! | `host` (header) | the host, as below |
//! | cookie | name as sent (case-sensitive); value decoded once (`%7a` and `\172`), without quotes and backslashes, with a space as `+` |
//! | query | name and value percent-decoded once, `+` is a space; read with `;` as a separator and without |
//! | path | [`path::normalize`](crate::path::normalize), and its other readings |
//! | host | name or address in lower case, without port and final dot; IDN as `xn--`; see [`canonical_host`] |
//! | method | in upper case |
//!
//! An attribute with several readings is matched by a limit if any reading matches, and by an exemption
//! or a `not` only if all do. An identity whose readings differ is missing. So is a cookie with a space
//! in it that is not in quotes, where frameworks end a value in different places.
//!
//! The work for one request is bounded: of an attribute that is sent with more than 8 different values,
//! and of a query with more than 1,024 parameters, a limit takes any value for possible.

pub(crate) mod cookie;
pub(crate) mod header;
mod host;
pub(crate) mod query;
mod target;

use std::borrow::Cow;

use smallvec::SmallVec;

pub use header::trim_ows;
pub(crate) use host::host_pattern;
pub use host::{HostError, canonical_host, request_host};
pub use target::Target;

/// Maximum number of different values of one attribute. A request with more may match any value.
const VALUES_MAX: usize = 8;

/// The different values of one attribute, in the order in which they were first sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttributeValues<'r> {
    pub(crate) known: SmallVec<[Cow<'r, [u8]>; 2]>,
    /// There are more than these, or it is not known which.
    pub(crate) are_more: bool,
}

impl<'r> AttributeValues<'r> {
    /// AttributeValues that may be any.
    pub(crate) fn unknown() -> Self {
        Self { known: SmallVec::new(), are_more: true }
    }

    pub(crate) fn add(&mut self, value: Cow<'r, [u8]>) {
        match self.known.contains(&value) {
            true => {}
            false if self.known.len() < VALUES_MAX => self.known.push(value),
            false => self.are_more = true,
        }
    }
}

impl<'r> FromIterator<Cow<'r, [u8]>> for AttributeValues<'r> {
    fn from_iter<I: IntoIterator<Item = Cow<'r, [u8]>>>(values: I) -> Self {
        let mut distinct = Self::default();
        values.into_iter().for_each(|value| distinct.add(value));
        distinct
    }
}
