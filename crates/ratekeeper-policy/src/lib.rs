//! Policies of a rate limiter: a policy's text and a request's attributes in, the limits to charge
//! out. It reads no files, no clock and no network.
//!
//! ```
//! use ratekeeper_policy::{NoSources, Policy, Request, Resolution};
//!
//! let policy = Policy::parse("policy.yaml", "
//! version: 1
//! identify: { user: { header: x-user } }
//! exempt: [ { path: /healthz } ]
//! limits:
//!   - name: checkout
//!     match: { method: POST, path: /checkout }
//!     per: user
//!     rate: 5/s burst 10
//! ", &NoSources)?;
//!
//! let headers = vec![("x-user".to_string(), "ann".to_string())];
//! let request = Request { headers: &headers, ..Request::new("POST", "//checkout/") };
//! let Resolution::Charged(limits) = policy.resolve(&request) else { panic!() };
//! assert_eq!(limits[0].rule.name(), "checkout");
//! assert_eq!(limits[0].key.to_string(), "user=ann");
//! # Ok::<(), ratekeeper_policy::PolicyErrors>(())
//! ```
#![forbid(unsafe_code)]

mod answers;
pub mod attributes;
mod build;
pub mod client_ip;
mod condition;
pub mod envoy;
mod explain;
mod facts;
mod format;
mod identity;
mod index;
pub mod json;
#[cfg(feature = "jwt")]
pub mod jwt;
mod one_line;
pub mod path;
mod policy;
mod problems;
mod read_headers;
mod request;
mod resolve;
mod rule;
mod schema;
mod shape;
pub mod suggest;
#[cfg(feature = "jwt")]
mod token;
mod yaml;

pub use answers::{Answers, BodyKind};
pub use condition::Mismatch;
pub use explain::{Explanation, Outcome, Verdict};
pub use facts::NoIdentity;
pub use identity::{Key, Missing};
pub use policy::{NoSources, Policy, Sources, StoreSettings};
pub use problems::{PolicyErrors, Problem};
pub use request::{Headers, Request};
pub use resolve::{Applied, Resolution};
pub use rule::{Amount, LimitRule, Mode, WhenLimited};
