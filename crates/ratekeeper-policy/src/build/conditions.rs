//! Builds match conditions and priority classes.

use super::callers::Callers;
use super::report_unknown;
use super::values::{
    bare_boolean, is_token, json_path, matched_header, name, network, whole_percentage,
};
use crate::attributes::{header, host_pattern};
use crate::condition::{Condition, FieldTest};
use crate::json_fields::JsonPath;
use crate::path::{Glob, PathPattern};
use crate::problems::{Problems, quoted};
use crate::suggest::closest;
use crate::yaml::Node;

/// The registered methods (IANA), the most common ones first.
const METHODS: [&str; 40] = [
    "GET",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "CONNECT",
    "TRACE",
    "QUERY",
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "COPY",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "ORDERPATCH",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "REBIND",
    "REPORT",
    "SEARCH",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// Maximum number of priority classes.
const CLASSES_MAX: usize = 100;

pub(super) fn condition(node: &Node, callers: &Callers, problems: &mut Problems) -> Condition {
    if node.entries().is_empty() {
        problems
            .report(node.span, "an empty match matches every request; add a condition, or omit it");
    }
    let items = |name: &str| node.get(name).map_or(&[][..], Node::items);
    Condition {
        methods: items("method").iter().filter_map(|node| method(node, problems)).collect(),
        hosts: items("host").iter().filter_map(|node| host(node, problems)).collect(),
        paths: items("path").iter().filter_map(|node| pattern(node, problems)).collect(),
        headers: tests(node.get("header"), true, problems),
        query: tests(node.get("query"), false, problems),
        request_json: json_tests(node.get("request_json"), problems),
        networks: items("ip").iter().filter_map(|node| network(node, problems)).collect(),
        tiers: items("tier").iter().filter_map(|node| callers.tier(node, problems)).collect(),
        not: items("not").iter().map(|node| condition(node, callers, problems)).collect(),
    }
}

/// Returns whether a method is registered, in any case.
pub(crate) fn is_standard_method(method: &str) -> bool {
    METHODS.iter().any(|known| known.eq_ignore_ascii_case(method))
}

fn method(node: &Node, problems: &mut Problems) -> Option<String> {
    let method = node.text()?.to_ascii_uppercase();
    if matches!(method.as_str(), "*" | "ANY" | "ALL") {
        problems.report(node.span, "to match any method, omit \"method\"");
    } else if !is_token(&method) {
        let why =
            format!("{} is not a method; for several, write a list: [GET, POST]", quoted(&method));
        problems.report(node.span, why);
    } else if !METHODS.contains(&method.as_str()) {
        let remedy = match closest(&method, METHODS.into_iter()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "check its spelling".into(),
        };
        problems.warn(node.span, format!("{} is not a standard method; {remedy}", quoted(&method)));
    }
    Some(method)
}

fn host(node: &Node, problems: &mut Problems) -> Option<Glob> {
    let pattern = host_pattern(node.text()?);
    pattern.map(|text| Glob::new(&text)).map_err(|why| problems.report(node.span, why)).ok()
}

fn pattern(node: &Node, problems: &mut Problems) -> Option<PathPattern> {
    let parsed = PathPattern::parse(node.text()?);
    parsed
        .map_err(|error| problems.report(problems.span_of(node, error.span()), error.to_string()))
        .ok()
}

fn tests(
    node: Option<&Node>,
    are_headers: bool,
    problems: &mut Problems,
) -> Vec<(String, FieldTest)> {
    let mut tests = Vec::new();
    for (key, value) in node.map_or(&[][..], Node::entries) {
        let name = match are_headers {
            true => matched_header(key, problems),
            false => key.text().map(Into::into),
        };
        let Some(name) = name else { continue };
        let glob = |text: &str| match are_headers {
            true => Glob::new(&header::canonical_pattern(&name, text)),
            false => Glob::new(text),
        };
        tests.push((name.clone(), test(value, glob)));
    }
    tests
}

fn test(value: &Node, glob: impl Fn(&str) -> Glob) -> FieldTest {
    match bare_boolean(value) {
        Some(true) => FieldTest::Present,
        Some(false) => FieldTest::Absent,
        None => FieldTest::AnyOf(value.items().iter().filter_map(Node::text).map(glob).collect()),
    }
}

fn json_tests(node: Option<&Node>, problems: &mut Problems) -> Vec<(JsonPath, FieldTest)> {
    let entries = node.map_or(&[][..], Node::entries).iter();
    entries
        .filter_map(|(key, value)| Some((json_path(key, problems)?, test(value, Glob::new))))
        .collect()
}

/// The priority classes, the most important one first.
#[derive(Default)]
pub(super) struct Priorities {
    pub(super) names: Vec<String>,
    /// Which requests are of a class; the first condition that holds decides.
    pub(super) conditions: Vec<(usize, Condition)>,
    /// The class of all other requests.
    pub(super) other: Option<usize>,
    /// The percentage that is reserved for each class.
    pub(super) reserved: Vec<Option<u8>>,
}

/// Builds the priority classes, and the conditions of each.
pub(super) fn priorities(root: &Node, callers: &Callers, problems: &mut Problems) -> Priorities {
    let mut priorities = Priorities::default();
    for node in root.get("priorities").map_or(&[][..], Node::items) {
        let Some(class) = node.get("class").and_then(|class| name(class, "a class", problems))
        else {
            continue;
        };
        let class = priorities.class(class);
        match node.get("match") {
            Some(on) => priorities.conditions.push((class, condition(on, callers, problems))),
            None => priorities.set_other(class, node, problems),
        }
        if let Some(reserved) = node.get("reserved") {
            priorities.reserve(class, reserved, problems);
        }
        if priorities.names.len() > CLASSES_MAX {
            problems.report(node.span, format!("a policy has at most {CLASSES_MAX} classes"));
            break;
        }
    }
    priorities
}

impl Priorities {
    /// Returns the index of a class, which is added if it is new.
    fn class(&mut self, class: &str) -> usize {
        let known = self.names.iter().position(|known| known == class);
        known.unwrap_or_else(|| {
            self.names.push(class.to_string());
            self.reserved.push(None);
            self.names.len() - 1
        })
    }

    fn set_other(&mut self, class: usize, node: &Node, problems: &mut Problems) {
        if let Some(other) = self.other.replace(class) {
            let other = &self.names[other];
            let why = format!(
                "{other} already has all requests that match no other class; give this one a match"
            );
            problems.report(node.span, why);
        }
    }

    fn reserve(&mut self, class: usize, node: &Node, problems: &mut Problems) {
        let Some(percent) = whole_percentage(node, problems) else { return };
        if self.reserved[class].replace(percent).is_some() {
            let name = &self.names[class];
            problems
                .report(node.span, format!("a share is already reserved for {name}; remove one"));
        }
        let sum: u32 = self.reserved.iter().flatten().map(|percent| u32::from(*percent)).sum();
        if sum > 100 {
            let why = format!("{sum}% are reserved for all classes together; use at most 100%");
            problems.report(node.span, why);
        }
    }
}

/// Returns the index of a class.
pub(super) fn class(node: &Node, classes: &[String], problems: &mut Problems) -> Option<usize> {
    let found = classes.iter().position(|class| Some(class.as_str()) == node.text());
    if found.is_none() {
        report_unknown(node, "priority class", classes.iter().map(String::as_str), problems);
    }
    found
}
