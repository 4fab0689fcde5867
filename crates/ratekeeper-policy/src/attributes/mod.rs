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
//! or a `not` only if all do. An identity whose readings differ is missing.

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

/// The values of one attribute, in the order received.
pub(crate) type AttributeValues<'r> = SmallVec<[Cow<'r, [u8]>; 2]>;
