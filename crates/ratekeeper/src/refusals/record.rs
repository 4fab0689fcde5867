//! What is remembered of a decision.

use std::sync::Arc;

use ratekeeper_core::{Decision, Micros};
use ratekeeper_stores::DecisionInputs;

use crate::telemetry::Outcome;

/// The longest part of a key that is kept.
const KEY_MAX: usize = 128;
/// The longest part of a limit's name that is kept.
const NAME_MAX: usize = 128;

/// A refusal, a refusal that shadow mode prevented, or a sample of admissions.
///
/// ```
/// use ratekeeper::refusals::RefusalRecord;
///
/// fn log(record: &RefusalRecord) {
///     println!("{} {} {:?}", record.request_id, record.limit, record.outcome);
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RefusalRecord {
    /// When it was decided.
    pub at: Micros,
    /// The id of the request.
    pub request_id: Arc<str>,
    /// What the limit decided.
    pub outcome: Outcome,
    /// The name of the limit. Of a refusal it is the binding limit.
    pub limit: Box<str>,
    /// Where the limit is written, if it is one of the policy.
    pub rule: Option<RulePlace>,
    /// The key that the request was counted under, as far as the policy keeps it.
    pub key: RecordedKey,
    /// Why it was refused, with what that was computed from.
    pub reason: RecordedReason,
    /// Whether it was decided without the store, which was unavailable.
    pub is_degraded: bool,
    /// How the request came, such as `gateway`, `http` or `resp`.
    pub protocol: &'static str,
    /// The version of the policy that was active ([`LoadStatus::version`](crate::LoadStatus::version)).
    pub policy_version: u64,
}

/// Where a limit is written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RulePlace {
    /// The name of the policy's file.
    pub file: Arc<str>,
    /// The line, counted from 1.
    pub line: usize,
}

impl RulePlace {
    pub(crate) fn new(file: Arc<str>, line: usize) -> Self {
        Self { file, line }
    }
}

/// What is kept of a key: see [`RefusalKeys`](ratekeeper_policy::RefusalKeys).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordedKey {
    /// The key, or the first bytes of a long one.
    Plain {
        /// The bytes.
        bytes: Box<[u8]>,
        /// Whether there were more.
        is_truncated: bool,
    },
    /// A hash of the key.
    Hashed(u64),
    /// Nothing.
    Off,
}

impl RecordedKey {
    pub(crate) fn plain(key: &[u8]) -> Self {
        let bytes = key[..key.len().min(KEY_MAX)].into();
        Self::Plain { bytes, is_truncated: key.len() > KEY_MAX }
    }

    /// Returns whether this is the key, or one of a policy that has it as its value, such as `ip=192.0.2.1`.
    pub(crate) fn is_of(&self, key: &[u8], hash: u64) -> bool {
        match self {
            Self::Plain { bytes, .. } => {
                let key = &key[..key.len().min(KEY_MAX)];
                let name = bytes.strip_suffix(key);
                name.is_some_and(|name| match name.split_last() {
                    None => true,
                    Some((last, name)) => *last == b'=' && !name.contains(&b'='),
                })
            }
            Self::Hashed(own) => *own == hash,
            Self::Off => false,
        }
    }
}

impl std::fmt::Display for RecordedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain { bytes, .. } => String::from_utf8_lossy(bytes).fmt(f),
            Self::Hashed(hash) => write!(f, "#{hash:016x}"),
            Self::Off => Ok(()),
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RecordedReason {
    /// A rate limit decided.
    Rate {
        /// The decision.
        decision: Decision,
        /// What it was computed from, if it is a denial.
        inputs: Option<Box<DecisionInputs>>,
        /// The cost.
        cost: u64,
    },
    /// Too many requests were in flight.
    InFlight {
        /// How many may be.
        max: u64,
    },
    /// It got no permit of a limit that protects the service, and why.
    NoPermit(Box<str>),
    /// An identity was missing.
    MissingIdentity(Box<str>),
    /// More rate limits applied than can be charged in one step.
    TooManyLimits,
    /// The limit denies every request.
    DeniesAll,
}

/// What a listener knows of a decision.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Decided<'a> {
    /// The name of the limit.
    pub limit: &'a str,
    /// The key that the request was counted under.
    pub key: &'a [u8],
    /// What the limit decided.
    pub outcome: Outcome,
    /// The id of the request. `None` if it has none, and none was sent to the client.
    pub request_id: Option<&'a Arc<str>>,
    /// How the request came.
    pub protocol: &'static str,
    /// When it was decided.
    pub at: Micros,
}

impl<'a> Decided<'a> {
    /// Returns a decision about a request without an id.
    pub fn new(limit: &'a str, key: &'a [u8], outcome: Outcome, at: Micros) -> Self {
        Self { limit, key, outcome, request_id: None, protocol: "library", at }
    }

    /// Sets the id of the request and how it came.
    #[must_use]
    pub fn by(self, request_id: Option<&'a Arc<str>>, protocol: &'static str) -> Self {
        Self { request_id, protocol, ..self }
    }

    /// Returns the name of the limit, of a long one the first bytes.
    pub(crate) fn limit_name(&self) -> Box<str> {
        let is_end = |end: &usize| self.limit.is_char_boundary(*end);
        let end = (0..=NAME_MAX.min(self.limit.len())).rev().find(is_end).unwrap_or_default();
        self.limit[..end].into()
    }
}

/// The rest of a record, which is only made for what is recorded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Details {
    /// Why it was refused.
    pub reason: RecordedReason,
    /// Whether it was decided without the store.
    pub is_degraded: bool,
    /// Where the limit is written.
    pub rule: Option<RulePlace>,
    /// The version of the policy.
    pub policy_version: u64,
}

impl Details {
    /// Returns the details of a decision by a limit that is in no policy.
    pub fn new(reason: RecordedReason, is_degraded: bool) -> Self {
        Self { reason, is_degraded, rule: None, policy_version: 0 }
    }

    /// Sets where the limit is written, and the version of its policy.
    pub(crate) fn of_policy(self, rule: RulePlace, policy_version: u64) -> Self {
        Self { rule: Some(rule), policy_version, ..self }
    }
}
