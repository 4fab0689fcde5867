//! Builds a domain from the YAML tree of a file. The schema is checked first, then contradictions.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Algorithm, CalendarError, CalendarPeriod, Limit, Rate, RateError, TimeZone};

use super::format;
use super::limit::{DescriptorLimit, DescriptorQuota, Overdraft, scope};
use super::tree::{AddError, Branch, Level};
use super::unit::Unit;
use crate::build::values::{boolean, duration, integer, overdraft};
use crate::index::SEARCHES_MAX;
use crate::problems::{Problems, quoted};
use crate::schema::Schema;
use crate::suggest::closest;
use crate::yaml::Node;

/// Reads the domain of a file and its descriptors.
pub(super) fn file(root: &Node, problems: &mut Problems) -> (String, Level) {
    Schema::Section(&format::FILE).check(root, problems);
    let domain = root.get("domain").and_then(Node::text).unwrap_or_default();
    let mut reader = Reader { domain, problems };
    let level = reader.level(root, domain);
    (domain.to_string(), level)
}

fn not_added(error: &AddError, key: &str, value: Option<&str>) -> String {
    let key = quoted(key);
    match error {
        AddError::Duplicate => {
            let value = value.map(|value| format!(" = {}", quoted(value))).unwrap_or_default();
            format!("{key}{value} is here twice")
        }
        AddError::TooManySearches => format!(
            "{key} has more than {SEARCHES_MAX} values with text between two \"*\", such as \"*a*\"; \
             let values begin or end with their text instead"
        ),
    }
}

struct Reader<'r> {
    domain: &'r str,
    problems: &'r mut Problems,
}

impl Reader<'_> {
    fn level(&mut self, parent: &Node, label: &str) -> Level {
        let mut level = Level::default();
        let descriptors = parent.get("descriptors").filter(|node| !node.is_empty());
        for node in descriptors.map_or(&[][..], Node::items) {
            // A descriptor without a key is read too, to find further problems.
            let key = node.get("key").and_then(Node::text).unwrap_or_default();
            // An empty value matches any value, as in envoyproxy/ratelimit.
            let value = self.value(node).filter(|value| !value.is_empty());
            let label = match value {
                Some(value) => format!("{label}.{key}_{value}"),
                None => format!("{label}.{key}"),
            };
            let branch = self.branch(node, &label);
            if let Err(error) = level.add(key, value, branch)
                && !key.is_empty()
            {
                self.problems.report(node.span, not_added(&error, key, value));
            }
        }
        level
    }

    fn value<'n>(&mut self, descriptor: &'n Node) -> Option<&'n str> {
        let node = descriptor.get("value")?;
        if node.text().is_none() {
            self.problems.report(node.span, "a value is one text; for several, repeat the key");
        }
        node.text()
    }

    fn branch(&mut self, node: &Node, label: &str) -> Branch {
        let limits = self.limits(node, label);
        let shares_count = is_true(node, "share_threshold");
        Branch { limits, below: self.level(node, label), shares_count }
    }

    fn limits(&mut self, descriptor: &Node, label: &str) -> Vec<DescriptorLimit> {
        let one = descriptor.get("rate_limit");
        let several = descriptor.get("rate_limits").filter(|node| !node.is_empty());
        if let (Some(_), Some(several)) = (one, several) {
            let why = "a descriptor has \"rate_limit\" or \"rate_limits\", not both";
            self.problems.report_also(several.span, why);
        }
        let is_shadow = is_true(descriptor, "shadow_mode") || is_true(descriptor, "quota_mode");
        let nodes = several.or(one).map_or(&[][..], Node::items);
        let mut limits: Vec<DescriptorLimit> = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            let name = node.get("name").and_then(Node::text).unwrap_or_default().to_string();
            let tag = match (i, name.as_str()) {
                (0, _) => String::new(),
                (_, "") => format!("#{}", i + 1),
                (_, name) => format!("#{name}"),
            };
            if i > 0 && limits.iter().any(|known| !name.is_empty() && known.name == name) {
                let why = "two limits of a descriptor have this name; names must be unique";
                self.problems.report(node.get("name").map_or(node.span, |name| name.span), why);
            }
            let replaces = self.replaces(node, &name);
            let Some(quota) = self.quota(node, &format!("{}{tag}", scope(self.domain))) else {
                continue;
            };
            let label = if name.is_empty() { format!("{label}{tag}") } else { name.clone() };
            let overdraft = self.overdraft(node.get("overdraft"));
            limits.push(DescriptorLimit { name, label, quota, is_shadow, replaces, overdraft });
        }
        limits
    }

    fn overdraft(&mut self, node: Option<&Node>) -> Overdraft {
        let max_debt = node.map(|node| overdraft(node, self.problems));
        Overdraft {
            configured: max_debt.map(|max_debt| max_debt.is_some()),
            max_debt: max_debt.flatten().unwrap_or_default(),
            is_looked_at: Arc::default(),
        }
    }

    fn replaces(&mut self, limit: &Node, own: &str) -> Vec<String> {
        let nodes = limit.get("replaces").filter(|node| !node.is_empty());
        let nodes = nodes.map_or(&[][..], Node::items);
        let mut names = Vec::new();
        for node in nodes.iter().filter_map(|node| node.get("name")) {
            match node.text() {
                Some(name) if name == own => {
                    self.problems.report(node.span, "a limit cannot replace itself");
                }
                name => names.extend(name.map(str::to_string)),
            }
        }
        names
    }

    fn quota(&mut self, limit: &Node, scope: &str) -> Option<DescriptorQuota> {
        if is_true(limit, "unlimited") {
            let why = "an unlimited limit has no rate; omit this field, or \"unlimited\"";
            let names = [PERIOD_FIELDS, &["rate", "burst", "algorithm"]].concat();
            self.report_beside(limit, &names, why);
            return Some(DescriptorQuota::Unlimited);
        }
        let rate = match limit.get("rate") {
            Some(node) => {
                let why = "\"rate\" already sets this; omit this field";
                let names = [PERIOD_FIELDS, &["requests_per_unit", "burst"]].concat();
                self.report_beside(limit, &names, why);
                self.whole_rate(node)?
            }
            None => {
                let (period, count) = (self.period(limit), self.count(limit));
                let (period, count) = (period?, count?);
                if count == 0 {
                    return Some(DescriptorQuota::DenyAll(Unit::of(period.usual_length())));
                }
                let burst = limit.get("burst").and_then(integer);
                self.ok_or_report(limit, rate_of(count, period, burst))?
            }
        };
        let named = limit.get("algorithm").and_then(Node::text).map(str::parse);
        let algorithm = match named {
            Some(algorithm) => algorithm.ok()?,
            None if rate.burst().is_some() && rate.calendar().is_none() => Algorithm::TokenBucket,
            None => Algorithm::FixedWindow,
        };
        let made = self.ok_or_report(limit, Limit::new(rate, algorithm));
        made.map(|limit| DescriptorQuota::Rate(limit.named(scope)))
    }

    fn whole_rate(&mut self, node: &Node) -> Option<Rate> {
        let parsed: Result<Rate, RateError> = node.text()?.parse();
        let report = |error: RateError| {
            self.problems.report(self.problems.span_of(node, error.span()), error.message());
        };
        parsed.map_err(report).ok()
    }

    fn period(&mut self, limit: &Node) -> Option<Period> {
        match (limit.get("unit"), limit.get("period")) {
            (Some(_), Some(period)) => {
                let why = "a rate limit has a \"unit\" or a \"period\", not both";
                self.problems.report_also(period.span, why);
                None
            }
            (Some(node), None) => {
                let unit = self.unit(node)?;
                self.unit_period(limit, node, unit)
            }
            (None, Some(period)) => {
                let why = "a \"period\" is the same in every time zone; use a \"unit\"";
                self.report_beside(limit, CALENDAR_FIELDS, why);
                duration(period, self.problems).map(Period::Fixed)
            }
            (None, None) => {
                let why =
                    "a rate limit needs a \"unit\" such as minute, or a \"period\" or \"rate\"";
                self.report_missing(limit, "unit", why);
                None
            }
        }
    }

    /// Returns the period of a unit: one of the calendar if the limit has a time zone or a first day.
    fn unit_period(&mut self, limit: &Node, node: &Node, unit: Unit) -> Option<Period> {
        let (zone, first_day) = (limit.get("time_zone"), limit.get("first_day"));
        if zone.is_none() && first_day.is_none() {
            return Some(Period::Fixed(unit.period()));
        }
        let calendar_unit = unit.of_calendar();
        if calendar_unit.is_none() {
            let why = format!(
                "there is no calendar {}; \"time_zone\" and \"first_day\" are for hour, day, week and month",
                unit.name()
            );
            self.problems.report(node.span, why);
        }
        let name = zone.map_or(Some("UTC"), Node::text)?;
        let zone_span = zone.map_or(node.span, |zone| zone.span);
        let mut report = |span, error: CalendarError| self.problems.report(span, error.to_string());
        let found = TimeZone::named(name).map_err(|error| report(zone_span, error)).ok();
        let period = CalendarPeriod::new(calendar_unit?, found?);
        match first_day {
            None => Some(Period::Calendar(period)),
            Some(node) => {
                let period = period.from_day(integer(node)?);
                period.map_err(|error| report(node.span, error)).ok().map(Period::Calendar)
            }
        }
    }

    fn unit(&mut self, node: &Node) -> Option<Unit> {
        let name = node.text()?;
        let unit = Unit::named(name);
        if unit.is_none() {
            let names = Unit::ALL.map(Unit::name);
            let remedy = match closest(&name.to_lowercase(), names.into_iter()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!(
                    "known units are {}; for another period, use \"period: 10s\"",
                    names.join(", ")
                ),
            };
            self.problems.report(node.span, format!("unknown unit {}; {remedy}", quoted(name)));
        }
        unit
    }

    fn count(&mut self, limit: &Node) -> Option<u64> {
        if limit.get("requests_per_unit").is_none() {
            let why = "a rate limit needs \"requests_per_unit\": a whole number";
            self.report_missing(limit, "requests_per_unit", why);
        }
        limit.get("requests_per_unit").and_then(integer)
    }

    /// Reports a missing field, unless there is a misspelling of it.
    fn report_missing(&mut self, limit: &Node, name: &str, why: &str) {
        let is_misspelling = |(key, _): &(Node, Node)| {
            key.text().is_some_and(|text| closest(text, [name].into_iter()).is_some())
        };
        if !limit.entries().iter().any(is_misspelling) {
            let first = limit.entries().first().map_or(limit.span, |(key, _)| key.span);
            self.problems.report_also(first, why);
        }
    }

    fn report_beside(&mut self, limit: &Node, names: &[&str], why: &str) {
        for (key, _) in limit.entries() {
            if key.text().is_some_and(|name| names.contains(&name)) {
                self.problems.report(key.span, why);
            }
        }
    }

    fn ok_or_report<T, E: std::fmt::Display>(
        &mut self,
        limit: &Node,
        made: Result<T, E>,
    ) -> Option<T> {
        made.map_err(|error| {
            let first = limit.entries().first().map_or(limit.span, |(key, _)| key.span);
            // The other lines quote generated text.
            let why = error.to_string();
            self.problems.report(first, why.lines().next().unwrap_or_default());
        })
        .ok()
    }
}

/// The fields that state a period.
const PERIOD_FIELDS: &[&str] = &["unit", "period", "time_zone", "first_day"];
/// The fields that make it one of the calendar.
const CALENDAR_FIELDS: &[&str] = &["time_zone", "first_day"];

/// The period of a limit.
#[derive(Clone, Copy)]
enum Period {
    Fixed(Duration),
    Calendar(CalendarPeriod),
}

impl Period {
    fn usual_length(self) -> Duration {
        match self {
            Self::Fixed(length) => length,
            Self::Calendar(period) => period.unit().usual_length(),
        }
    }
}

fn rate_of(count: u64, period: Period, burst: Option<u64>) -> Result<Rate, RateError> {
    let rate = match period {
        Period::Fixed(length) => Rate::new(count, length)?,
        Period::Calendar(period) => Rate::per_calendar(count, period)?,
    };
    burst.map_or(Ok(rate), |burst| rate.with_burst(burst))
}

fn is_true(node: &Node, name: &str) -> bool {
    node.get(name).and_then(boolean) == Some(true)
}
