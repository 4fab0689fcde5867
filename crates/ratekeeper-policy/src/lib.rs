//! Rate limit policies: parses a policy file and finds the limits that apply to a request.
//!
//! This crate performs no I/O: the policy text, the files it refers to and the time are arguments.
//!
//! ```
//! use ratekeeper_policy::{NoSources, Policy, RequestAttributes, Resolution};
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
//! let request = RequestAttributes::new("POST", "//checkout/");
//! let request = RequestAttributes { headers: &headers, ..request };
//! let Resolution::Charged(limits) = policy.resolve(&request) else { panic!() };
//! assert_eq!(limits[0].rule.name(), "checkout");
//! assert_eq!(limits[0].key.to_string(), "user=ann");
//! # Ok::<(), ratekeeper_policy::PolicyErrors>(())
//! ```
#![forbid(unsafe_code)]

pub mod attributes;
mod build;
pub mod client_ip;
mod condition;
mod context;
mod coverage;
pub mod envoy;
mod explain;
mod format;
mod identity;
mod index;
pub mod json;
pub mod json_fields;
mod json_schema;
#[cfg(feature = "jwt")]
pub mod jwt;
mod lines;
pub mod path;
mod policy;
mod problems;
mod protection;
mod read_headers;
mod reads;
mod refusals;
mod request;
mod resolve;
mod response;
mod rule;
mod schema;
pub mod suggest;
mod summary;
#[cfg(feature = "jwt")]
mod token;
pub mod usage;
pub mod yaml;
mod yaml_mistakes;

pub use condition::Mismatch;
pub use context::MissingIdentity;
pub use explain::{Explanation, LimitExplanation, LimitOutcome};
pub use identity::{Key, MissingReason};
pub use policy::{NoSources, Policy, SourceError, Sources, StoreSettings};
pub use problems::{PolicyErrors, Problem};
pub use protection::{
    AdaptiveRule, ConcurrencyRule, DependencyRule, Permits, QueueRule, ShedAttributes, SheddingRule,
};
pub use reads::{AttributeUse, ReadAttribute, WithoutAttribute};
pub use refusals::{RefusalKeys, RefusalSettings};
pub use request::{Headers, RequestAttributes};
pub use resolve::{AppliedLimit, AppliedLimits, LimitVariant, NotCharged, Resolution};
pub use response::{BodyKind, ResponseSettings};
pub use rule::{Amount, LimitAction, LimitRule, Mode};

/// The types that threads share are `Send` and `Sync`.
const _: () = {
    const fn assert_send_sync<T: Send + Sync>() {}
    assert_send_sync::<Policy>();
    assert_send_sync::<PolicyErrors>();
    assert_send_sync::<SourceError>();
    assert_send_sync::<AppliedLimit>();
    assert_send_sync::<envoy::EnvoyConfig>();
    #[cfg(feature = "jwt")]
    assert_send_sync::<jwt::JwtVerifier>();
};
