//! An index of limits, which finds those that may apply to a request without evaluating the others.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::attributes::header;
use crate::condition::{Condition, FieldTest};
use crate::context::RequestContext;
use crate::path::{Glob, PathIndex, PathPattern};
use crate::rule::{CostRule, LimitRule};

/// Indexes into the policy's list of limits.
pub(crate) type Candidates = SmallVec<[u32; 16]>;

/// Maximum number of patterns with text between two `*` that one request may have to be searched for.
/// It bounds the CPU time of a hostile request.
pub(crate) const SEARCHES_MAX: usize = 256;

/// The cost of one search, in evaluations of a limit.
const SEARCH_COST: usize = 16;

/// Each limit is indexed by its most selective attribute.
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

/// A key of the index. A limit is indexed under all values of one attribute, one of which a request
/// must have.
#[derive(Clone, PartialEq, Eq, Hash)]
enum IndexKey<'r> {
    Path(&'r PathPattern),
    Method(&'r str),
    Host(String),
    Header(&'r str, &'r str),
}

impl IndexKey<'_> {
    fn searches(&self) -> usize {
        match self {
            Self::Path(pattern) => pattern.searches(),
            Self::Method(_) | Self::Host(_) | Self::Header(..) => 0,
        }
    }
}

impl Index {
    pub(crate) fn new(limits: &[Arc<LimitRule>]) -> Self {
        let options: Vec<_> = limits.iter().map(|limit| key_sets(limit)).collect();
        let mut limits_per_key: HashMap<&IndexKey<'_>, usize> = HashMap::new();
        for key in options.iter().flatten().flatten() {
            *limits_per_key.entry(key).or_default() += 1;
        }
        let mut index = Self::default();
        for (id, key_sets) in (0u32..).zip(&options) {
            let lookup_cost = |keys: &&Vec<IndexKey<'_>>| {
                let most = keys.iter().map(|key| limits_per_key[key]).max().unwrap_or_default();
                most + SEARCH_COST * keys.iter().map(IndexKey::searches).sum::<usize>()
            };
            match key_sets.iter().min_by_key(lookup_cost) {
                Some(keys) => keys.iter().for_each(|key| index.insert(id, key)),
                None => index.always.push(id),
            }
        }
        index
    }

    fn insert(&mut self, id: u32, key: &IndexKey<'_>) {
        match key {
            IndexKey::Path(pattern) => self.paths.insert(pattern, id),
            IndexKey::Method(method) => {
                self.by_method.entry((*method).to_string()).or_default().push(id);
            }
            IndexKey::Host(host) => self.by_host.entry(host.clone()).or_default().push(id),
            IndexKey::Header(name, value) => {
                let values = self.by_header.entry((*name).to_string()).or_default();
                values.entry(value.as_bytes().to_vec()).or_default().push(id);
            }
        }
    }

    /// Returns the limits that may apply, in policy order, without duplicates.
    pub(crate) fn candidates(&self, context: &RequestContext<'_, '_>) -> Candidates {
        let mut found = Candidates::from_slice(&self.always);
        if !self.paths.is_empty() {
            for path in context.paths() {
                self.paths.for_each_match(path, |id| found.push(*id));
            }
        }
        let request = context.request;
        self.add_by_method(request.method, &mut found);
        self.add_by_host(context, &mut found);
        for (name, values) in &self.by_header {
            let sent = header::values(request, name);
            if sent.are_more {
                found.extend(values.values().flatten().copied());
                continue;
            }
            let ids = sent.known.iter().filter_map(|value| values.get(value.as_ref()));
            ids.for_each(|ids| found.extend_from_slice(ids));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn add_by_method(&self, method: &str, found: &mut Candidates) {
        if self.by_method.is_empty() {
            return;
        }
        let method = match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            true => Cow::from(method.to_ascii_uppercase()),
            false => Cow::from(method),
        };
        found.extend(self.by_method.get(method.as_ref()).into_iter().flatten().copied());
    }

    fn add_by_host(&self, context: &RequestContext<'_, '_>, found: &mut Candidates) {
        if self.by_host.is_empty() {
            return;
        }
        match context.host() {
            Ok(host) => found.extend(self.by_host.get(host).into_iter().flatten().copied()),
            Err(_) => found.extend(self.by_host.values().flatten().copied()),
        }
    }
}

impl Index {
    /// Returns the maximum number of searches for text between two `*` for one request and one reading
    /// of its path, if each condition is evaluated once. A request has one host and one method; a header
    /// may be sent with every value.
    pub(crate) fn searches_max(&self, limits: &[Arc<LimitRule>]) -> usize {
        let of_limits: Vec<usize> = limits.iter().map(|limit| searches_of_limit(limit)).collect();
        let of_id = |id: &u32| of_limits[*id as usize];
        let of_ids = |ids: &Vec<u32>| ids.iter().map(of_id).sum::<usize>();
        let largest = |by: &HashMap<String, Vec<u32>>| by.values().map(of_ids).max().unwrap_or(0);
        let headers = self.by_header.values().flat_map(HashMap::values).map(of_ids);
        of_ids(&self.always)
            + self.paths.searches_max(&of_id)
            + largest(&self.by_method)
            + largest(&self.by_host)
            + headers.sum::<usize>()
    }
}

fn searches_of_limit(limit: &LimitRule) -> usize {
    let of_routes = match &limit.cost {
        CostRule::Routes { routes, .. } => routes.iter().map(|(on, _)| searches_of(on)).sum(),
        _ => 0,
    };
    limit.conditions.iter().map(|on| searches_of(on)).sum::<usize>() + of_routes
}

/// Returns the number of patterns with text between two `*` in a condition.
pub(crate) fn searches_of(condition: &Condition) -> usize {
    let of_globs = |globs: &[Glob]| globs.iter().filter(|glob| glob.needs_search()).count();
    let of_names = condition.headers.iter().chain(&condition.query).map(|(_, test)| test);
    let tests = of_names.chain(condition.request_json.iter().map(|(_, test)| test));
    let tests = tests.map(|test| match test {
        FieldTest::AnyOf(globs) => of_globs(globs),
        FieldTest::Present | FieldTest::Absent => 0,
    });
    condition.paths.iter().map(PathPattern::searches).sum::<usize>()
        + of_globs(&condition.hosts)
        + tests.sum::<usize>()
        + condition.not.iter().map(searches_of).sum::<usize>()
}

/// Returns the alternative sets of keys under which a limit can be indexed.
fn key_sets(limit: &LimitRule) -> Vec<Vec<IndexKey<'_>>> {
    limit.conditions.iter().flat_map(|condition| key_sets_of(condition)).collect()
}

fn key_sets_of(condition: &Condition) -> Vec<Vec<IndexKey<'_>>> {
    let mut key_sets = Vec::new();
    let paths = &condition.paths;
    if !paths.is_empty() && paths.iter().all(|pattern| pattern.as_str() != "/**") {
        key_sets.push(paths.iter().map(IndexKey::Path).collect());
    }
    if !condition.methods.is_empty() {
        key_sets.push(condition.methods.iter().map(|method| IndexKey::Method(method)).collect());
    }
    let hosts: Option<Vec<_>> = condition.hosts.iter().map(|glob| glob.literal()).collect();
    if let Some(hosts) = hosts.filter(|hosts| !hosts.is_empty()) {
        key_sets.push(hosts.iter().map(|host| IndexKey::Host((*host).to_string())).collect());
    }
    for (name, test) in &condition.headers {
        let FieldTest::AnyOf(globs) = test else { continue };
        let values: Option<Vec<_>> = globs.iter().map(|glob| glob.literal()).collect();
        if let Some(values) = values {
            key_sets.push(values.into_iter().map(|value| IndexKey::Header(name, value)).collect());
        }
    }
    key_sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::work;
    use crate::{NoSources, Policy, PolicyErrors, RequestAttributes, Resolution};

    fn policy(limits: impl Iterator<Item = String>) -> Result<Policy, PolicyErrors> {
        let text = limits
            .enumerate()
            .map(|(i, on)| format!("  - {{ name: l{i}, rate: 1/s, match: {{ {on} }} }}\n"));
        let text = format!("version: 1\nlimits:\n{}", text.collect::<String>());
        Policy::parse("policy.yaml", &text, &NoSources)
    }

    fn is_rejected(limits: impl Iterator<Item = String>) -> bool {
        let errors = match policy(limits) {
            Ok(_) => return false,
            Err(errors) => errors.to_string(),
        };
        assert!(errors.contains("at most 256"), "{errors}");
        true
    }

    #[test]
    fn searches_are_bounded_when_a_policy_is_loaded() {
        let most = SEARCHES_MAX;
        // In the index and in the condition.
        let paths = |count| (0..count).map(|i| format!("path: '/*a{i:04}*'"));
        assert!(!is_rejected(paths(most / 2)));
        assert!(is_rejected(paths(most / 2 + 1)));
        for field in ["host: '*a{}*'", "header: { x: '*a{}*' }", "query: { q: '*a{}*' }"] {
            let limits = |count| (0..count).map(|i: usize| field.replace("{}", &i.to_string()));
            assert!(!is_rejected(limits(most)), "{field}");
            assert!(is_rejected(limits(most + 1)), "{field}");
        }
        let list: Vec<_> = (0..=most).map(|i| format!("'*bot{i}*'")).collect();
        assert!(is_rejected(
            [format!("header: {{ user-agent: [{}] }}", list.join(", "))].into_iter()
        ));
        assert!(is_rejected([format!("not: {{ host: [{}] }}", list.join(", "))].into_iter()));
    }

    #[test]
    fn patterns_that_no_single_request_matches_are_not_added_up() {
        let many = |of: &dyn Fn(usize) -> String| (0..10_000).map(of).collect::<Vec<_>>();
        for limits in [
            many(&|i| format!("path: '/tenants/{i}/*a*'")),
            many(&|i| format!("path: '/tenant-{i:04}-*a*'")),
            many(&|i| format!("path: '/*a*-{i:04}'")),
            many(&|i| format!("host: h{i}.test, path: '/**', header: {{ x: '*a*' }}")),
            many(&|i| format!("host: h{i}.test, path: '/*a{i}*'")),
            many(&|i| format!("path: '/a*{i}'")),
        ] {
            assert!(!is_rejected(limits.into_iter()));
        }
    }

    /// Readings of a path, times evaluations of a pattern: in the index, by any reading, by all readings.
    const EVALUATIONS_MAX: usize = 3 * 3;

    #[test]
    fn searches_of_a_request_are_bounded() {
        let limits = (0..SEARCHES_MAX / 2).map(|i| format!("path: '/*a{i:03}*/x'"));
        let policy = policy(limits).unwrap();
        let all: String = (0..SEARCHES_MAX / 2).map(|i| format!("a{i:03}")).collect();
        let segments = [
            "a".repeat(1024),
            "a".repeat(64 << 10),
            all.clone(),
            all.repeat(20),
            "a0".repeat(500) + ";x",
            format!("{};/..%2f{}", "a1".repeat(400), "a2".repeat(400)),
        ];
        for segment in &segments {
            for path in [format!("/{segment}/x"), format!("/b/../{segment}/x/..;/x")] {
                let done = work::of(|| drop(policy.resolve(&RequestAttributes::new("GET", &path))));
                assert!(done.searches <= SEARCHES_MAX * EVALUATIONS_MAX, "{done:?}");
                assert!(done.bytes <= done.searches * 1024, "{done:?}");
            }
        }
    }

    #[test]
    fn a_segment_too_long_to_search_is_limited_and_not_exempt() {
        let text = "
version: 1
exempt: [{ path: '/*free*' }]
limits:
  - { name: paid, rate: 1/s, match: { path: '/*paid*' } }
  - { name: other, rate: 1/s, match: { path: '/**', not: { path: '/*open*' } } }
  - { name: ends, rate: 1/s, match: { path: '/x*paid*' } }
";
        let policy = Policy::parse("policy.yaml", text, &NoSources).unwrap();
        let names = |path: &str| match policy.resolve(&RequestAttributes::new("GET", path)) {
            Resolution::Charged(applied) => {
                applied.iter().map(|one| one.rule.name().to_string()).collect::<Vec<_>>().join(" ")
            }
            resolution => format!("{resolution:?}"),
        };
        assert_eq!(names("/a-free-b"), "Exempt(0)");
        assert_eq!(names("/a-open-b"), "");
        assert_eq!(names("/a-paid-b"), "paid other");
        let long = "a".repeat(2000);
        for middle in ["", "paid", "free", "open"] {
            assert_eq!(names(&format!("/{long}{middle}")), "paid other", "{middle}");
        }
    }
}
