//! The limits that may apply to a request, without looking at those that cannot.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::condition::{Condition, Test};
use crate::facts::Facts;
use crate::path::{PathIndex, PathPattern};
use crate::request::bare_host;
use crate::rule::LimitRule;

/// Places in the policy's list of limits.
pub(crate) type Candidates = SmallVec<[u32; 16]>;

/// Each limit is filed under what tells most requests apart from its own.
#[derive(Default)]
pub(crate) struct Index {
    always: Vec<u32>,
    paths: PathIndex<u32>,
    by_method: HashMap<String, Vec<u32>>,
    by_host: HashMap<String, Vec<u32>>,
    by_header: HashMap<String, HashMap<Vec<u8>, Vec<u32>>>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").finish_non_exhaustive()
    }
}

/// A way to file a limit: under each of these values, one of which a request must have.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Place<'r> {
    Path(&'r PathPattern),
    Method(&'r str),
    Host(String),
    Header(&'r str, &'r str),
}

impl Index {
    pub(crate) fn new(limits: &[Arc<LimitRule>]) -> Self {
        let filings: Vec<_> = limits.iter().map(|limit| ways_to_file(limit)).collect();
        let mut crowd: HashMap<&Place<'_>, usize> = HashMap::new();
        for place in filings.iter().flatten().flatten() {
            *crowd.entry(place).or_default() += 1;
        }
        let mut index = Self::default();
        for (id, ways) in (0u32..).zip(&filings) {
            let busiest = |way: &&Vec<Place<'_>>| way.iter().map(|place| crowd[place]).max();
            match ways.iter().min_by_key(busiest) {
                Some(way) => way.iter().for_each(|place| index.file(id, place)),
                None => index.always.push(id),
            }
        }
        index
    }

    fn file(&mut self, id: u32, place: &Place<'_>) {
        match place {
            Place::Path(pattern) => self.paths.insert(pattern, id),
            Place::Method(method) => {
                self.by_method.entry((*method).to_string()).or_default().push(id);
            }
            Place::Host(host) => self.by_host.entry(host.clone()).or_default().push(id),
            Place::Header(name, value) => {
                let values = self.by_header.entry((*name).to_string()).or_default();
                values.entry(value.as_bytes().to_vec()).or_default().push(id);
            }
        }
    }

    /// Those that may apply, in the order of the policy, each once.
    pub(crate) fn candidates(&self, facts: &Facts<'_, '_>) -> Candidates {
        let mut found = Candidates::from_slice(&self.always);
        for path in facts.paths() {
            self.paths.for_each_match(path, |id| found.push(*id));
        }
        let request = facts.request;
        let method = match request.method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            true => Cow::from(request.method.to_ascii_uppercase()),
            false => Cow::from(request.method),
        };
        if let Some(ids) = self.by_method.get(method.as_ref()) {
            found.extend_from_slice(ids);
        }
        if !self.by_host.is_empty()
            && let Some(host) = request.host
            && let Some(ids) = self.by_host.get(&bare_host(host).to_ascii_lowercase())
        {
            found.extend_from_slice(ids);
        }
        for (name, values) in &self.by_header {
            let ids = request.headers.all(name).into_iter().filter_map(|value| values.get(value));
            ids.for_each(|ids| found.extend_from_slice(ids));
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn ways_to_file(limit: &LimitRule) -> Vec<Vec<Place<'_>>> {
    limit.conditions.iter().flat_map(|condition| ways_of(condition)).collect()
}

fn ways_of(condition: &Condition) -> Vec<Vec<Place<'_>>> {
    let mut ways = Vec::new();
    let paths = &condition.paths;
    if !paths.is_empty() && paths.iter().all(|pattern| pattern.as_str() != "/**") {
        ways.push(paths.iter().map(Place::Path).collect());
    }
    if !condition.methods.is_empty() {
        ways.push(condition.methods.iter().map(|method| Place::Method(method)).collect());
    }
    let hosts: Option<Vec<_>> = condition.hosts.iter().map(|glob| glob.literal()).collect();
    if let Some(hosts) = hosts.filter(|hosts| !hosts.is_empty()) {
        ways.push(hosts.iter().map(|host| Place::Host(host.to_ascii_lowercase())).collect());
    }
    for (name, test) in &condition.headers {
        let Test::AnyOf(globs) = test else { continue };
        let values: Option<Vec<_>> = globs.iter().map(|glob| glob.literal()).collect();
        if let Some(values) = values {
            ways.push(values.into_iter().map(|value| Place::Header(name, value)).collect());
        }
    }
    ways
}
