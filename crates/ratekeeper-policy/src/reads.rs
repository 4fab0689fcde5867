//! What a policy reads from requests and responses, for where not all of it is known.

use std::collections::BTreeMap;
use std::fmt;

use crate::condition::{Condition, FieldTest};
use crate::identity::{Source, WhenMissing};
use crate::policy::Policy;
use crate::rule::{CostRule, LimitRule, Mode};

/// An attribute that a policy reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ReadAttribute {
    /// The method.
    Method,
    /// The path.
    Path,
    /// The query.
    Query,
    /// The host.
    Host,
    /// The client's address.
    Client,
    /// A request header, in lower case.
    Header(String),
    /// A cookie.
    Cookie(String),
    /// The body of the request.
    RequestBody,
    /// A verified token.
    Token,
    /// An identity that the application supplies.
    Custom(String),
    /// The status of the response.
    Status,
    /// A response header, in lower case.
    ResponseHeader(String),
    /// The usage that the body of the response states.
    Usage,
    /// How long the request takes.
    Duration,
}

impl fmt::Display for ReadAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => "the method",
            Self::Path => "the path",
            Self::Query => "the query",
            Self::Host => "the host",
            Self::Client => "the client's address",
            Self::Header(name) => return write!(f, "the header {name}"),
            Self::Cookie(name) => return write!(f, "the cookie {name}"),
            Self::RequestBody => "the body of requests",
            Self::Token => "tokens",
            Self::Custom(name) => return write!(f, "the identity {name}"),
            Self::Status => "the status",
            Self::ResponseHeader(name) => return write!(f, "the response header {name}"),
            Self::Usage => "the usage in response bodies",
            Self::Duration => "the duration of requests",
        })
    }
}

/// What it means if an attribute is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum WithoutAttribute {
    /// Requests are counted by the client's address.
    CountedByAddress,
    /// All requests are counted together.
    CountedTogether,
    /// Requests are refused.
    Refused,
    /// Every client has the default tier.
    DefaultTier,
    /// The condition does not match.
    NoMatch,
    /// The condition matches every request.
    Match,
    /// The condition may match every request.
    AnyMatch,
    /// The default cost is charged, or the estimate.
    DefaultCost,
    /// Nothing is refunded.
    NoRefund,
    /// The concurrency limit is ignored.
    NotLimited,
}

impl fmt::Display for WithoutAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CountedByAddress => "counts by the client's address instead",
            Self::CountedTogether => "counts all requests together",
            Self::Refused => "refuses every request, because it requires this identity",
            Self::DefaultTier => "applies the default tier to every client",
            Self::NoMatch => "has a condition on it that no request matches",
            Self::Match => "has a condition on it that every request matches",
            Self::AnyMatch => "has a condition on it that any request may match",
            Self::DefaultCost => "charges the default cost",
            Self::NoRefund => "refunds nothing",
            Self::NotLimited => "is ignored",
        })
    }
}

/// What depends on an attribute, and what it means if that is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct AttributeUse {
    /// The limit, or another part of the policy.
    pub part: String,
    /// What it means if the attribute is not known.
    pub without: WithoutAttribute,
}

type Uses = BTreeMap<ReadAttribute, Vec<AttributeUse>>;

impl Policy {
    /// Returns everything that the policy reads, and what depends on it.
    ///
    /// ```
    /// use ratekeeper_policy::{Policy, ReadAttribute};
    ///
    /// let policy = Policy::one_line("100/minute per ip")?;
    /// assert!(policy.reads().contains_key(&ReadAttribute::Client));
    /// # Ok::<(), ratekeeper_policy::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn reads(&self) -> BTreeMap<ReadAttribute, Vec<AttributeUse>> {
        let mut uses = Uses::new();
        for condition in &self.exempt {
            self.add_condition("the exemption", condition, &mut uses);
        }
        for (class, condition) in &self.priorities {
            self.add_condition(
                &format!("the class {}", self.classes[*class]),
                condition,
                &mut uses,
            );
        }
        let limits = self.limits.iter().filter(|limit| limit.mode != Mode::Off);
        for limit in limits.clone() {
            self.add_limit(limit, &mut uses);
        }
        if let Some(tiers) = self.tiers.as_ref().filter(|_| limits.count() > 0) {
            self.add_identity("tiers", tiers.of, Some(WithoutAttribute::DefaultTier), &mut uses);
        }
        uses
    }

    fn add_limit(&self, limit: &LimitRule, uses: &mut Uses) {
        let part = format!("limit {}", limit.name);
        for id in &limit.per {
            self.add_identity(&part, *id, None, uses);
        }
        for condition in &limit.conditions {
            self.add_condition(&part, condition, uses);
        }
        let mut add = |read, without| add(uses, read, &part, without);
        match &limit.cost {
            CostRule::Fixed(_) | CostRule::Routes { .. } => {}
            CostRule::RequestHeader { name, .. } => {
                add(ReadAttribute::Header(name.clone()), WithoutAttribute::DefaultCost);
            }
            CostRule::ResponseHeader { name, .. } => {
                let read = ReadAttribute::ResponseHeader(name.clone());
                add(read, WithoutAttribute::DefaultCost);
            }
            CostRule::Usage(_) => add(ReadAttribute::Usage, WithoutAttribute::DefaultCost),
        }
        if !limit.refund.is_empty() {
            add(ReadAttribute::Status, WithoutAttribute::NoRefund);
        }
        if limit.is_concurrency() {
            add(ReadAttribute::Duration, WithoutAttribute::NotLimited);
        }
        if let CostRule::Routes { routes, .. } = &limit.cost {
            routes.iter().for_each(|(on, _)| self.add_condition(&part, on, uses));
        }
    }

    fn add_identity(
        &self,
        part: &str,
        id: usize,
        without: Option<WithoutAttribute>,
        uses: &mut Uses,
    ) {
        let identity = &self.identities[id];
        let without = without.unwrap_or(match identity.missing {
            WhenMissing::Deny => WithoutAttribute::Refused,
            WhenMissing::Ip if !identity.source.is_address() => WithoutAttribute::CountedByAddress,
            WhenMissing::Ip | WhenMissing::Anonymous => WithoutAttribute::CountedTogether,
        });
        let read = match &identity.source {
            Source::Header(name) => ReadAttribute::Header(name.clone()),
            Source::Cookie(name) => ReadAttribute::Cookie(name.clone()),
            Source::Query(_) => ReadAttribute::Query,
            Source::PathSegment(_) => ReadAttribute::Path,
            Source::Claim(_) => ReadAttribute::Token,
            Source::RequestJson(_) => ReadAttribute::RequestBody,
            Source::ClientIp => ReadAttribute::Client,
            Source::Host => ReadAttribute::Host,
            Source::Custom => ReadAttribute::Custom(identity.name.clone()),
            Source::Constant(_) => return,
            Source::FirstOf(ids) | Source::AllOf(ids) => {
                return ids.iter().for_each(|id| self.add_identity(part, *id, Some(without), uses));
            }
        };
        if without == WithoutAttribute::CountedByAddress {
            add(uses, ReadAttribute::Client, part, WithoutAttribute::CountedTogether);
        }
        add(uses, read, part, without);
    }

    fn add_condition(&self, part: &str, on: &Condition, uses: &mut Uses) {
        self.add_condition_or_not(part, on, false, uses);
    }

    fn add_condition_or_not(&self, part: &str, on: &Condition, is_not: bool, uses: &mut Uses) {
        let mut add_if = |is_read: bool, read, without| {
            let without = match without {
                WithoutAttribute::NoMatch if is_not => WithoutAttribute::Match,
                WithoutAttribute::Match if is_not => WithoutAttribute::NoMatch,
                without => without,
            };
            if is_read {
                add(uses, read, part, without);
            }
        };
        let none = WithoutAttribute::NoMatch;
        add_if(!on.methods.is_empty(), ReadAttribute::Method, none);
        add_if(!on.paths.is_empty(), ReadAttribute::Path, none);
        add_if(!on.hosts.is_empty(), ReadAttribute::Host, none);
        add_if(!on.query.is_empty(), ReadAttribute::Query, none);
        add_if(!on.networks.is_empty(), ReadAttribute::Client, none);
        let body = WithoutAttribute::AnyMatch;
        add_if(!on.request_json.is_empty(), ReadAttribute::RequestBody, body);
        for (name, test) in &on.headers {
            let without = match test {
                FieldTest::Absent => WithoutAttribute::Match,
                FieldTest::Present | FieldTest::AnyOf(_) => WithoutAttribute::NoMatch,
            };
            add_if(true, ReadAttribute::Header(name.clone()), without);
        }
        on.not.iter().for_each(|not| self.add_condition_or_not(part, not, !is_not, uses));
    }
}

fn add(uses: &mut Uses, read: ReadAttribute, part: &str, without: WithoutAttribute) {
    let entry = AttributeUse { part: part.to_string(), without };
    let of = uses.entry(read).or_default();
    if !of.contains(&entry) {
        of.push(entry);
    }
}
