//! Match conditions of limits, exemptions and priority classes.

use std::borrow::Cow;
use std::fmt;

use ipnet::IpNet;

use crate::attributes::{AttributeValues, header};
use crate::context::RequestContext;
use crate::json_fields::JsonPath;
use crate::path::{Glob, PathPattern};

/// A match condition. All fields that are set must match; in a list, any entry.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    pub(crate) methods: Vec<String>,
    pub(crate) paths: Vec<PathPattern>,
    pub(crate) hosts: Vec<Glob>,
    pub(crate) headers: Vec<(String, FieldTest)>,
    pub(crate) query: Vec<(String, FieldTest)>,
    pub(crate) request_json: Vec<(JsonPath, FieldTest)>,
    pub(crate) networks: Vec<IpNet>,
    pub(crate) tiers: Vec<usize>,
    pub(crate) not: Vec<Condition>,
}

/// The test of a header, a query parameter or a field of the body.
#[derive(Debug)]
pub(crate) enum FieldTest {
    Present,
    Absent,
    AnyOf(Vec<Glob>),
}

impl FieldTest {
    /// Whether the test holds for these values. An upstream may read any one of several values.
    fn holds(&self, values: &AttributeValues<'_>, by: Quantifier) -> bool {
        let fits = |value: &Cow<'_, [u8]>, globs: &[Glob]| globs.iter().any(|g| g.matches(value));
        match (self, by) {
            // Of too many values, any may be there, and none is there for certain.
            (_, Quantifier::Any) if values.are_more => true,
            (_, Quantifier::All) if values.are_more => false,
            (Self::Present, _) => !values.known.is_empty(),
            (Self::Absent, _) => values.known.is_empty(),
            (Self::AnyOf(globs), Quantifier::Any) => values.known.iter().any(|v| fits(v, globs)),
            (Self::AnyOf(globs), Quantifier::All) => {
                !values.known.is_empty() && values.known.iter().all(|value| fits(value, globs))
            }
        }
    }
}

/// Why a condition does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch<'p> {
    /// The method differs.
    Method,
    /// The path differs.
    Path,
    /// The host differs.
    Host,
    /// This header does not match.
    Header(&'p str),
    /// This query parameter does not match.
    Query(&'p str),
    /// This field of the body does not match.
    RequestJson(&'p JsonPath),
    /// The client is not in any of the networks.
    Network,
    /// The client has another tier.
    Tier,
    /// The request matches a `not` condition.
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
            Self::RequestJson(path) => {
                return write!(f, "the field {path} of the body does not match");
            }
            Self::Network => "the client is in another network",
            Self::Tier => "another tier",
            Self::Excluded => "excluded by `not`",
        })
    }
}

/// Whether a condition must hold for any or for all readings of an ambiguous request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantifier {
    Any,
    All,
}

impl Quantifier {
    fn other(self) -> Self {
        if self == Self::Any { Self::All } else { Self::Any }
    }

    /// Whether `holds` is true for any or all of the readings.
    fn of<T>(self, mut readings: impl Iterator<Item = T>, holds: impl FnMut(T) -> bool) -> bool {
        match self {
            Self::Any => readings.any(holds),
            Self::All => readings.all(holds),
        }
    }
}

impl Condition {
    /// Returns why the condition does not match. It matches if any reading of the request does.
    pub(crate) fn mismatch<'p>(&'p self, context: &RequestContext<'_, '_>) -> Option<Mismatch<'p>> {
        self.mismatch_by(context, Quantifier::Any)
    }

    /// Whether the condition matches for every reading of the request. Exemptions require this, so
    /// that an ambiguous request is not exempt.
    pub(crate) fn holds_by_all_readings(&self, context: &RequestContext<'_, '_>) -> bool {
        self.mismatch_by(context, Quantifier::All).is_none()
    }

    fn mismatch_by<'p>(
        &'p self,
        context: &RequestContext<'_, '_>,
        by: Quantifier,
    ) -> Option<Mismatch<'p>> {
        let request = context.request;
        if !any_or_none(&self.methods, |method| method.eq_ignore_ascii_case(request.method)) {
            return Some(Mismatch::Method);
        }
        let fits = |path: &Cow<'_, str>| {
            any_or_none(&self.paths, |p| p.matches_bounded(path, by == Quantifier::Any))
        };
        if !self.paths.is_empty() && !by.of(context.paths().iter(), fits) {
            return Some(Mismatch::Path);
        }
        if !self.matches_host(context, by) {
            return Some(Mismatch::Host);
        }
        self.mismatch_of_fields(context, by)
            .or_else(|| self.mismatch_of_caller(context))
            .or_else(|| self.mismatch_of_body(context, by))
            .or_else(|| {
                let is_excluded =
                    self.not.iter().any(|not| not.mismatch_by(context, by.other()).is_none());
                is_excluded.then_some(Mismatch::Excluded)
            })
    }

    /// Returns why the body does not match. It is tested late, because it is read only if it is needed.
    fn mismatch_of_body<'p>(
        &'p self,
        context: &RequestContext<'_, '_>,
        by: Quantifier,
    ) -> Option<Mismatch<'p>> {
        let fails = |(path, test): &&(JsonPath, FieldTest)| !test.holds(&context.json(path), by);
        self.request_json.iter().find(fails).map(|(path, _)| Mismatch::RequestJson(path))
    }

    /// Whether the host matches. An invalid host matches any pattern, because upstreams may read it as
    /// any host.
    fn matches_host(&self, context: &RequestContext<'_, '_>, by: Quantifier) -> bool {
        match context.host() {
            _ if self.hosts.is_empty() => true,
            Ok(host) => self.hosts.iter().any(|glob| glob.matches_ignoring_case(host.as_bytes())),
            Err(_) => by == Quantifier::Any,
        }
    }

    fn mismatch_of_fields<'p>(
        &'p self,
        context: &RequestContext<'_, '_>,
        by: Quantifier,
    ) -> Option<Mismatch<'p>> {
        let request = context.request;
        let fails =
            |(name, test): &&(String, FieldTest)| !test.holds(&header::values(request, name), by);
        if let Some((name, _)) = self.headers.iter().find(fails) {
            return Some(Mismatch::Header(name));
        }
        let fails = |(name, test): &&(String, FieldTest)| {
            let readings = context.parameters().readings(name);
            !by.of(readings.iter(), |values| test.holds(values, by))
        };
        self.query.iter().find(fails).map(|(name, _)| Mismatch::Query(name))
    }

    fn mismatch_of_caller<'p>(&'p self, context: &RequestContext<'_, '_>) -> Option<Mismatch<'p>> {
        let is_within = |network: &IpNet| context.client().is_some_and(|ip| network.contains(&ip));
        if !any_or_none(&self.networks, is_within) {
            return Some(Mismatch::Network);
        }
        let is_other = !any_or_none(&self.tiers, |tier| context.tier() == Some(*tier));
        is_other.then_some(Mismatch::Tier)
    }
}

fn any_or_none<T>(of: &[T], test: impl FnMut(&T) -> bool) -> bool {
    of.is_empty() || of.iter().any(test)
}
