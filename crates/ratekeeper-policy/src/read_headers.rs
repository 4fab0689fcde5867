//! The headers that a policy reads, for proxies that must pass them on as they were read.

use std::collections::HashSet;

use crate::condition::Condition;
use crate::identity::Source;
use crate::policy::Policy;
use crate::rule::CostRule;

/// Names of headers, in lower case.
#[derive(Debug, Default)]
pub(crate) struct ReadHeaders {
    names: HashSet<String>,
    folded: HashSet<String>,
    /// Is one of them changed by folding?
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
        for limit in &policy.limits {
            limit.conditions.iter().for_each(|on| read.add_condition(on));
            match &limit.cost {
                CostRule::RequestHeader { name, .. } => read.add(name),
                CostRule::Routes { routes, .. } => {
                    routes.iter().for_each(|(on, _)| read.add_condition(on));
                }
                CostRule::Fixed(_) | CostRule::ResponseHeader { .. } => {}
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

fn has_punctuation(name: &str) -> bool {
    name.bytes().any(|byte| !byte.is_ascii_alphanumeric() && byte != b'-')
}

/// The name as CGI and its kind see it.
fn folded(name: &str) -> String {
    let fold = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(fold).collect()
}

impl Policy {
    /// Does this policy read the header of this name, which is in lower case? A proxy must not remove it
    /// because the request says so (`Connection`).
    pub fn reads_header(&self, name: &str) -> bool {
        self.read_headers.names.contains(name)
    }

    /// Is this header another one than those that this policy reads, but one of them to some upstreams?
    /// To CGI, WSGI and PHP `x_api_key` is `x-api-key`.
    pub fn reads_header_like(&self, name: &str) -> bool {
        let read = &self.read_headers;
        if !read.has_punctuation && !has_punctuation(name) || read.names.contains(name) {
            return false;
        }
        read.folded.contains(&folded(name))
    }
}
