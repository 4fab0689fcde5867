//! The headers that a policy reads, which a proxy must forward unchanged, and the fields of the body.

use std::collections::HashSet;

use crate::condition::Condition;
use crate::identity::Source;
use crate::json_fields::JsonPath;
use crate::policy::Policy;
use crate::rule::CostRule;

/// Header names, in lower case.
#[derive(Debug, Default)]
pub(crate) struct ReadHeaders {
    names: HashSet<String>,
    folded: HashSet<String>,
    /// Whether folding changes any of the names.
    has_punctuation: bool,
}

impl ReadHeaders {
    pub(crate) fn of(policy: &Policy) -> Self {
        let mut read = Self::default();
        read.add(policy.client_ip.header());
        #[cfg(feature = "jwt")]
        read.add(policy.tokens.header());
        for identity in &policy.identities {
            match &identity.source {
                Source::Header(name) => read.add(name),
                Source::Cookie(_) => read.add("cookie"),
                _ => {}
            }
        }
        policy.exempt.iter().for_each(|on| read.add_condition(on));
        policy.priorities.iter().for_each(|(_, on)| read.add_condition(on));
        let of_dependencies = policy.dependencies.iter().filter_map(|one| one.on.as_ref());
        of_dependencies.for_each(|on| read.add_condition(on));
        for limit in &policy.limits {
            limit.conditions.iter().for_each(|on| read.add_condition(on));
            match &limit.cost {
                CostRule::RequestHeader { name, .. } => read.add(name),
                CostRule::Routes { routes, .. } => {
                    routes.iter().for_each(|(on, _)| read.add_condition(on));
                }
                CostRule::Fixed(_) | CostRule::ResponseHeader { .. } | CostRule::Usage(_) => {}
            }
        }
        read
    }

    fn add_condition(&mut self, on: &Condition) {
        on.headers.iter().for_each(|(name, _)| self.add(name));
        on.not.iter().for_each(|not| self.add_condition(not));
    }

    fn add(&mut self, name: &str) {
        if self.names.insert(name.to_string()) {
            self.has_punctuation |= has_punctuation(name);
            self.folded.insert(folded(name));
        }
    }
}

/// Returns the fields of request bodies that a policy reads, without duplicates.
pub(crate) fn read_fields(policy: &Policy) -> Vec<JsonPath> {
    let of_identities = policy.identities.iter().filter_map(|identity| match &identity.source {
        Source::RequestJson(path) => Some(path),
        _ => None,
    });
    let mut paths: Vec<&JsonPath> = of_identities.collect();
    policy.exempt.iter().for_each(|on| add_fields(on, &mut paths));
    policy.priorities.iter().for_each(|(_, on)| add_fields(on, &mut paths));
    let of_dependencies = policy.dependencies.iter().filter_map(|one| one.on.as_ref());
    of_dependencies.for_each(|on| add_fields(on, &mut paths));
    for limit in &policy.limits {
        limit.conditions.iter().for_each(|on| add_fields(on, &mut paths));
        match &limit.cost {
            CostRule::Usage(usage) => paths.extend(&usage.estimate.request_json),
            CostRule::Routes { routes, .. } => {
                routes.iter().for_each(|(on, _)| add_fields(on, &mut paths));
            }
            _ => {}
        }
    }
    let mut distinct: Vec<JsonPath> = Vec::new();
    for path in paths {
        if !distinct.contains(path) {
            distinct.push(path.clone());
        }
    }
    distinct
}

fn add_fields<'c>(on: &'c Condition, paths: &mut Vec<&'c JsonPath>) {
    paths.extend(on.request_json.iter().map(|(path, _)| path));
    on.not.iter().for_each(|not| add_fields(not, paths));
}

fn has_punctuation(name: &str) -> bool {
    name.bytes().any(|byte| !byte.is_ascii_alphanumeric() && byte != b'-')
}

/// Returns the name as CGI-like interfaces see it.
fn folded(name: &str) -> String {
    let fold = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(fold).collect()
}

impl Policy {
    /// Whether this policy reads the header. `name` is in lower case. A proxy must not remove such a
    /// header even if `Connection` names it.
    #[must_use]
    pub fn reads_header(&self, name: &str) -> bool {
        self.read_headers.names.contains(name)
    }

    /// Whether this policy does not read the header, but some upstreams take it for one that it reads:
    /// CGI, WSGI and PHP read `x_api_key` as `x-api-key`.
    #[must_use]
    pub fn reads_header_like(&self, name: &str) -> bool {
        let read = &self.read_headers;
        if !read.has_punctuation && !has_punctuation(name) || read.names.contains(name) {
            return false;
        }
        read.folded.contains(&folded(name))
    }
}
