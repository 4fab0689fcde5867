//! Which requests a limit is about.

use std::borrow::Cow;
use std::fmt;

use ipnet::IpNet;

use crate::attributes::{Values, header};
use crate::facts::Facts;
use crate::path::{Glob, PathPattern};

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
    /// Does it hold for these values? Who reads several may take any of them.
    fn holds(&self, values: &Values<'_>, by: Reading) -> bool {
        let fits = |value: &Cow<'_, [u8]>, globs: &[Glob]| globs.iter().any(|g| g.matches(value));
        match (self, by) {
            // Of too many values, any may be there, and none is there for certain.
            (_, Reading::Any) if values.are_more => true,
            (_, Reading::All) if values.are_more => false,
            (Self::Present, _) => !values.known.is_empty(),
            (Self::Absent, _) => values.known.is_empty(),
            (Self::AnyOf(globs), Reading::Any) => values.known.iter().any(|v| fits(v, globs)),
            (Self::AnyOf(globs), Reading::All) => {
                !values.known.is_empty() && values.known.iter().all(|value| fits(value, globs))
            }
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

/// How sure it has to be, where a request can be read in several ways.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Any,
    All,
}

impl Reading {
    fn other(self) -> Self {
        if self == Self::Any { Self::All } else { Self::Any }
    }

    /// Does it hold for any of these, or for all of them?
    fn of<T>(self, mut readings: impl Iterator<Item = T>, holds: impl FnMut(T) -> bool) -> bool {
        match self {
            Self::Any => readings.any(holds),
            Self::All => readings.all(holds),
        }
    }
}

impl Condition {
    /// Why it does not hold, if it does not. It holds if it does by any reading of the request.
    pub(crate) fn mismatch<'p>(&'p self, facts: &Facts<'_, '_>) -> Option<Mismatch<'p>> {
        self.mismatch_by(facts, Reading::Any)
    }

    /// Does it hold by every reading of the request? So must it be where a request gains by it.
    pub(crate) fn surely_holds(&self, facts: &Facts<'_, '_>) -> bool {
        self.mismatch_by(facts, Reading::All).is_none()
    }

    fn mismatch_by<'p>(&'p self, facts: &Facts<'_, '_>, by: Reading) -> Option<Mismatch<'p>> {
        let request = facts.request;
        if !any_or_none(&self.methods, |method| method.eq_ignore_ascii_case(request.method)) {
            return Some(Mismatch::Method);
        }
        let fits = |path: &Cow<'_, str>| {
            any_or_none(&self.paths, |p| p.matches_or(path, by == Reading::Any))
        };
        if !by.of(facts.paths().iter(), fits) {
            return Some(Mismatch::Path);
        }
        if !self.fits_host(facts, by) {
            return Some(Mismatch::Host);
        }
        self.mismatch_of_fields(facts, by).or_else(|| self.mismatch_of_caller(facts)).or_else(
            || {
                let is_excluded =
                    self.not.iter().any(|not| not.mismatch_by(facts, by.other()).is_none());
                is_excluded.then_some(Mismatch::Excluded)
            },
        )
    }

    /// What is no host may be any of them to an upstream.
    fn fits_host(&self, facts: &Facts<'_, '_>, by: Reading) -> bool {
        match facts.host() {
            _ if self.hosts.is_empty() => true,
            Ok(host) => self.hosts.iter().any(|glob| glob.matches_ignoring_case(host.as_bytes())),
            Err(_) => by == Reading::Any,
        }
    }

    fn mismatch_of_fields<'p>(
        &'p self,
        facts: &Facts<'_, '_>,
        by: Reading,
    ) -> Option<Mismatch<'p>> {
        let request = facts.request;
        let fails =
            |(name, test): &&(String, Test)| !test.holds(&header::values(request, name), by);
        if let Some((name, _)) = self.headers.iter().find(fails) {
            return Some(Mismatch::Header(name));
        }
        let fails = |(name, test): &&(String, Test)| {
            let readings = facts.parameters().readings(name);
            !by.of(readings.iter(), |values| test.holds(values, by))
        };
        self.query.iter().find(fails).map(|(name, _)| Mismatch::Query(name))
    }

    fn mismatch_of_caller<'p>(&'p self, facts: &Facts<'_, '_>) -> Option<Mismatch<'p>> {
        let is_within = |network: &IpNet| facts.client().is_some_and(|ip| network.contains(&ip));
        if !any_or_none(&self.networks, is_within) {
            return Some(Mismatch::Network);
        }
        let is_other = !any_or_none(&self.tiers, |tier| facts.tier() == Some(*tier));
        is_other.then_some(Mismatch::Tier)
    }
}

fn any_or_none<T>(of: &[T], test: impl FnMut(&T) -> bool) -> bool {
    of.is_empty() || of.iter().any(test)
}
