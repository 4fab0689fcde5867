//! An index over many path patterns: a trie of segments.

use std::collections::HashMap;

use super::affix::AffixMap;
use super::glob::Glob;
use super::pattern::{PathPattern, Segment};
use super::split_first;

/// Finds all patterns that match a path, in time that does not depend on the patterns that cannot match.
///
/// Each node of the trie is reached by exactly one sequence of segments, so a lookup visits it at most
/// once. Globs within a segment are found by their prefix and suffix; only those with text between two
/// `*` are then tried one by one.
///
/// ```
/// # use ratekeeper_policy::path::{PathIndex, PathPattern};
/// let mut index = PathIndex::new();
/// index.insert(&PathPattern::parse("/users/{id}")?, "a user");
/// index.insert(&PathPattern::parse("/users/**")?, "users");
/// let mut found = Vec::new();
/// index.for_each_match("/users/7", |value| found.push(*value));
/// assert_eq!(found, ["users", "a user"]);
/// # Ok::<(), ratekeeper_policy::path::PatternError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PathIndex<T> {
    root: TrieNode<T>,
    patterns: usize,
}

#[derive(Clone, Debug)]
struct TrieNode<T> {
    literals: HashMap<String, TrieNode<T>>,
    /// Length of the longest literal: a longer segment need not be hashed.
    literal_bytes_max: usize,
    any: Option<Box<TrieNode<T>>>,
    globs: AffixMap<HashMap<Glob, TrieNode<T>>>,
    /// Values of patterns that end here.
    closed: Vec<T>,
    /// Values of patterns that go on with `**`.
    open: Vec<T>,
}

impl<T> Default for PathIndex<T> {
    fn default() -> Self {
        Self { root: TrieNode::default(), patterns: 0 }
    }
}

impl<T> PathIndex<T> {
    /// Creates an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pattern. The same pattern may be added again, with another value.
    pub fn insert(&mut self, pattern: &PathPattern, value: T) {
        self.patterns += 1;
        let node = pattern.segments.iter().fold(&mut self.root, TrieNode::child);
        if pattern.open { node.open.push(value) } else { node.closed.push(value) }
    }

    /// Returns whether it has no pattern.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns == 0
    }

    /// Calls `found` for the value of each pattern that matches a path that was
    /// [normalized](super::normalize), in no particular order. A segment of more than 1024 bytes is not
    /// searched for text between two `*`: a pattern whose other text matches is found too.
    pub fn for_each_match(&self, normalized: &str, mut found: impl FnMut(&T)) {
        let path = normalized.strip_prefix('/').unwrap_or(normalized);
        self.root.visit(path, &mut found);
    }

    /// Returns the maximum number of searches for text between two `*` that one path can cause, if each
    /// value that is found causes `of_value` more.
    pub(crate) fn searches_max(&self, of_value: &impl Fn(&T) -> usize) -> usize {
        self.root.searches_max(of_value)
    }
}

impl<T> Default for TrieNode<T> {
    fn default() -> Self {
        Self {
            literals: HashMap::new(),
            literal_bytes_max: 0,
            any: None,
            globs: AffixMap::default(),
            closed: Vec::new(),
            open: Vec::new(),
        }
    }
}

impl<T> TrieNode<T> {
    fn child(&mut self, segment: &Segment) -> &mut Self {
        match segment {
            Segment::Literal(text) => {
                self.literal_bytes_max = self.literal_bytes_max.max(text.len());
                self.literals.entry(text.clone()).or_default()
            }
            Segment::Any => self.any.get_or_insert_default(),
            Segment::Glob(glob) => self.globs.entry(glob).entry(glob.clone()).or_default(),
        }
    }

    /// Recurses at most as deep as patterns have segments, which is bounded.
    fn visit(&self, path: &str, found: &mut impl FnMut(&T)) {
        self.open.iter().for_each(&mut *found);
        let Some((segment, rest)) = split_first(path) else {
            return self.closed.iter().for_each(found);
        };
        if segment.len() <= self.literal_bytes_max
            && let Some(node) = self.literals.get(segment)
        {
            node.visit(rest, found);
        }
        if let Some(node) = &self.any {
            node.visit(rest, found);
        }
        let text = segment.as_bytes();
        for (glob, node) in self.globs.all_of(text).flatten() {
            if glob.matches_bounded(text, true) {
                node.visit(rest, found);
            }
        }
    }

    /// A path matches one of the literals, and globs whose prefixes and suffixes one text can have.
    fn searches_max(&self, of_value: &impl Fn(&T) -> usize) -> usize {
        let of_values = |values: &[T]| values.iter().map(of_value).sum::<usize>();
        let below = |node: &Self| node.searches_max(of_value);
        let of_glob = |(glob, node): (&Glob, &Self)| usize::from(glob.needs_search()) + below(node);
        let literal = self.literals.values().map(below).max().unwrap_or_default();
        let any = self.any.as_deref().map_or(0, below);
        let of_globs = |globs: &HashMap<Glob, Self>| globs.iter().map(of_glob).sum();
        let globs = self.globs.largest_sum(&of_globs);
        of_values(&self.open) + of_values(&self.closed).max(literal + any + globs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::glob::work;
    use super::super::normalize;
    use super::*;

    fn index(patterns: &[PathPattern]) -> PathIndex<usize> {
        let mut index = PathIndex::new();
        for (at, pattern) in patterns.iter().enumerate() {
            index.insert(pattern, at);
        }
        index
    }

    fn found(index: &PathIndex<usize>, path: &str) -> Vec<usize> {
        let mut found = Vec::new();
        index.for_each_match(path, |at| found.push(*at));
        found.sort_unstable();
        found
    }

    fn check(patterns: &[&str], path: &str, expected: &[usize]) {
        let patterns: Vec<_> = patterns.iter().map(|p| PathPattern::parse(p).unwrap()).collect();
        assert_eq!(found(&index(&patterns), path), expected, "{path}");
    }

    #[test]
    fn all_matching_patterns_are_found() {
        let patterns = ["/", "/**", "/a", "/*", "/a/**", "/{x}/b", "/a/b*", "/a/*b", "/b/b", "/a"];
        check(&patterns, "/", &[0, 1]);
        check(&patterns, "/a", &[1, 2, 3, 4, 9]);
        check(&patterns, "/a/b", &[1, 4, 5, 6, 7]);
        check(&patterns, "/b/b", &[1, 5, 8]);
        check(&patterns, "/c/d/e", &[1]);
        check(&[], "/a", &[]);
    }

    #[test]
    fn deep_paths_match_patterns_that_end_in_a_double_star() {
        let deep = "/a".repeat(100_000);
        check(&["/a/**", "/**", "/a", "/*/*"], &deep, &[0, 1]);
    }

    #[test]
    fn nested_wildcards_take_linear_time() {
        let nested = "/*".repeat(63);
        let patterns: Vec<_> = (0..200).map(|i| format!("{nested}/x{i}")).collect();
        let patterns: Vec<_> = patterns.iter().map(String::as_str).collect();
        check(&patterns, &format!("{}/x7", "/a".repeat(63)), &[7]);
        check(&patterns, &"/a".repeat(10_000), &[]);
    }

    /// Returns how many globs are tried for a path, whether they match or not.
    fn tried(index: &PathIndex<usize>, segment: &str) -> usize {
        let text = segment.as_bytes();
        index.root.globs.all_of(text).flatten().count()
    }

    #[test]
    fn globs_with_other_affixes_are_not_tried() {
        let patterns = |of: &dyn Fn(usize) -> String| -> Vec<PathPattern> {
            (0..10_000).map(|i| PathPattern::parse(&of(i)).unwrap()).collect()
        };
        let starts = index(&patterns(&|i| format!("/tenant-{i:04}-*")));
        assert_eq!(found(&starts, "/tenant-0123-x"), [123]);
        assert_eq!(tried(&starts, "tenant-0123-x"), 1);
        let ends = index(&patterns(&|i| format!("/*.{i:04}")));
        assert_eq!(found(&ends, "/x.0123"), [123]);
        assert_eq!(tried(&ends, "x.0123"), 1);
        let both = index(&patterns(&|i| format!("/tenant-*{i:04}")));
        assert_eq!(found(&both, "/tenant-x0123"), [123]);
        assert_eq!(tried(&both, "tenant-x0123"), 1);
        for index in [starts, ends, both] {
            assert_eq!(tried(&index, &"a".repeat(100_000)), 0);
            assert_eq!(index.searches_max(&|_| 0), 0);
        }
    }

    #[test]
    fn searches_are_counted_where_one_path_can_cause_them() {
        let most = |patterns: &[&str]| {
            let patterns: Vec<_> =
                patterns.iter().map(|p| PathPattern::parse(p).unwrap()).collect();
            index(&patterns).searches_max(&|_| 0)
        };
        assert_eq!(most(&[]), 0);
        assert_eq!(most(&["/a*", "/*b", "/a*b", "/*", "/**"]), 0);
        assert_eq!(most(&["/*a*", "/*b*", "/*a*"]), 2);
        assert_eq!(most(&["/x/*a*", "/y/*b*", "/y/*c*"]), 2, "one of the literals");
        assert_eq!(most(&["/x*a*", "/y*b*", "/xx*c*"]), 2, "x and xx may both match");
        assert_eq!(most(&["/*a*x", "/*b*y", "/*c*yx"]), 2, "x and yx may both match");
        assert_eq!(most(&["/*a*/*b*", "/*/*c*", "/*a*/*d*"]), 4, "on both branches");
        let weighted =
            index(&[PathPattern::parse("/a").unwrap(), PathPattern::parse("/b").unwrap()]);
        assert_eq!(weighted.searches_max(&|at| at + 5), 6);
    }

    fn patterns() -> impl Strategy<Value = PathPattern> {
        let segment = prop::sample::select(vec![
            "a", "b", "ab", "*", "{x}", "a*", "*b", "a*b", "%61", "*a*", "*b*", "a*a*", "*b*ab",
            "*a*b*",
        ]);
        (prop::collection::vec(segment, 0..5), any::<bool>()).prop_map(|(mut segments, open)| {
            segments.extend(open.then_some("**"));
            PathPattern::parse(&format!("/{}", segments.join("/"))).unwrap()
        })
    }

    proptest! {
        #[test]
        fn the_index_finds_the_matching_patterns(
            patterns in prop::collection::vec(patterns(), 0..20),
            path in "(/(a|b|ab|aab|c|%61|\\.\\.)){0,6}/?",
        ) {
            let path = normalize(&path);
            let expected: Vec<_> =
                (0..patterns.len()).filter(|at| patterns[*at].matches(&path)).collect();
            prop_assert_eq!(found(&index(&patterns), &path), expected);
        }

        #[test]
        fn no_path_causes_more_searches_than_the_index_says(
            patterns in prop::collection::vec(patterns(), 0..20),
            path in "(/(a|b|ab|aab|bab|c)){0,6}/?",
        ) {
            let index = index(&patterns);
            let mut again = 0;
            let lookup = work::of(|| index.for_each_match(&path, |at| again += patterns[*at].searches()));
            let of_value = |at: &usize| patterns[*at].searches();
            prop_assert!(lookup.searches + again <= index.searches_max(&of_value));
            prop_assert!(lookup.bytes <= lookup.searches * path.len());
        }

        #[test]
        fn a_path_that_is_not_normalized_matches_the_same_patterns(
            patterns in prop::collection::vec(patterns(), 0..8),
            path in "[/ab]{0,8}",
        ) {
            let expected: Vec<_> =
                (0..patterns.len()).filter(|at| patterns[*at].matches(&path)).collect();
            prop_assert_eq!(found(&index(&patterns), &path), expected);
        }
    }
}
