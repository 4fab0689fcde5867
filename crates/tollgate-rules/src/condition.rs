//! Which requests a limit is about.

use std::fmt;

use ipnet::IpNet;

use crate::facts::Facts;
use crate::path::{Glob, PathPattern};
use crate::request::{bare_host, parameters};

/// All that is given must hold; of a list, any.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    pub(crate) methods: Vec<String>,
    pub(crate) paths: Vec<PathPattern>,
    pub(crate) hosts: Vec<Glob>,
    pub(crate) headers: Vec<(String, Test)>,
    pub(crate) query: Vec<(String, Test)>,
    pub(crate) networks: Vec<IpNet>,
    pub(crate) tiers: Vec<usize>,
    pub(crate) not: Vec<Condition>,
}

/// What is asked of a header.
#[derive(Debug)]
pub(crate) enum Test {
    Present,
    Absent,
    AnyOf(Vec<Glob>),
}

impl Test {
    fn holds<'v>(&self, mut values: impl Iterator<Item = &'v [u8]>) -> bool {
        match self {
            Self::Present => values.next().is_some(),
            Self::Absent => values.next().is_none(),
            Self::AnyOf(globs) => values.any(|v| globs.iter().any(|glob| glob.matches(v))),
        }
    }
}

/// Why a condition does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch<'p> {
    /// The method is another.
    Method,
    /// The path is another.
    Path,
    /// The host is another.
    Host,
    /// This header is not as it should be.
    Header(&'p str),
    /// This parameter of the query is not as it should be.
    Query(&'p str),
    /// The client is in another network.
    Network,
    /// The caller is of another tier.
    Tier,
    /// It is among those that are excluded.
    Excluded,
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => "another method",
            Self::Path => "another path",
            Self::Host => "another host",
            Self::Header(name) => return write!(f, "the header {name} does not match"),
            Self::Query(name) => return write!(f, "the query parameter {name} does not match"),
            Self::Network => "the client is in another network",
            Self::Tier => "another tier",
            Self::Excluded => "excluded by `not`",
        })
    }
}

impl Condition {
    /// Why it does not hold, if it does not.
    pub(crate) fn mismatch<'p>(&'p self, facts: &Facts<'_, '_>) -> Option<Mismatch<'p>> {
        let request = facts.request;
        if !any_or_none(&self.methods, |method| method == request.method) {
            return Some(Mismatch::Method);
        }
        if !any_or_none(&self.paths, |pattern| pattern.matches(facts.path())) {
            return Some(Mismatch::Path);
        }
        let host = bare_host(request.host.unwrap_or_default()).as_bytes();
        if !any_or_none(&self.hosts, |glob| glob.matches_ignoring_case(host)) {
            return Some(Mismatch::Host);
        }
        let fails =
            |(name, test): &&(String, Test)| !test.holds(request.headers.all(name).into_iter());
        if let Some((name, _)) = self.headers.iter().find(fails) {
            return Some(Mismatch::Header(name));
        }
        let fails = |(name, test): &&(String, Test)| {
            !test.holds(parameters(request.query, name).iter().map(|value| value.as_bytes()))
        };
        if let Some((name, _)) = self.query.iter().find(fails) {
            return Some(Mismatch::Query(name));
        }
        self.mismatch_of_caller(facts)
    }

    fn mismatch_of_caller<'p>(&'p self, facts: &Facts<'_, '_>) -> Option<Mismatch<'p>> {
        let is_within = |network: &IpNet| facts.client().is_some_and(|ip| network.contains(&ip));
        if !any_or_none(&self.networks, is_within) {
            return Some(Mismatch::Network);
        }
        if !any_or_none(&self.tiers, |tier| facts.tier() == Some(*tier)) {
            return Some(Mismatch::Tier);
        }
        let is_excluded = self.not.iter().any(|not| not.mismatch(facts).is_none());
        is_excluded.then_some(Mismatch::Excluded)
    }
}

fn any_or_none<T>(of: &[T], test: impl FnMut(&T) -> bool) -> bool {
    of.is_empty() || of.iter().any(test)
}
