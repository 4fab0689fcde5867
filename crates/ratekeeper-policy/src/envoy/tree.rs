//! The tree of configured descriptors.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::limit::DescriptorLimit;
use crate::index::SEARCHES_MAX;
use crate::path::{AffixMap, Glob};

/// The descriptors at one level of the tree, by key.
#[derive(Debug, Default)]
pub(crate) struct Level {
    keys: HashMap<String, ValueMatchers>,
}

/// The descriptors of one key, by value.
#[derive(Debug, Default)]
struct ValueMatchers {
    exact: HashMap<String, Branch>,
    /// In file order: the first that matches applies.
    wildcards: Vec<Wildcard>,
    /// Indexes into `wildcards`.
    by_affix: AffixMap<Vec<usize>>,
    /// Number of wildcards with text between two `*`.
    searches: usize,
    any: Option<Branch>,
}

/// Why a descriptor cannot be added.
pub(super) enum AddError {
    /// There is already one with that key and value.
    Duplicate,
    /// A value of that key would have to be searched for too many patterns.
    TooManySearches,
}

#[derive(Debug)]
struct Wildcard {
    text: String,
    glob: Glob,
    branch: Branch,
}

/// A descriptor with its limits and the level below.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    pub(super) limits: Vec<DescriptorLimit>,
    pub(super) below: Level,
    pub(super) shares_count: bool,
}

/// A descriptor that matches an entry, and the pattern if all matching values share one count.
pub(super) struct MatchedBranch<'c> {
    pub(super) branch: &'c Branch,
    pub(super) shared: Option<&'c str>,
}

impl ValueMatchers {
    fn add_wildcard(&mut self, text: &str, branch: Branch) -> Result<(), AddError> {
        let glob = Glob::new(text);
        let indices = self.by_affix.entry(&glob);
        if indices.iter().any(|index| self.wildcards[*index].text == text) {
            return Err(AddError::Duplicate);
        }
        self.searches += usize::from(glob.needs_search());
        if self.searches > SEARCHES_MAX {
            return Err(AddError::TooManySearches);
        }
        indices.push(self.wildcards.len());
        self.wildcards.push(Wildcard { text: text.to_string(), glob, branch });
        Ok(())
    }

    /// Returns the first wildcard that matches. A value too long to be searched matches if its prefix and
    /// suffix do.
    fn wildcard(&self, value: &[u8]) -> Option<&Wildcard> {
        let mut indices: SmallVec<[usize; 8]> =
            self.by_affix.all_of(value).flatten().copied().collect();
        indices.sort_unstable();
        let mut wildcards = indices.iter().map(|index| &self.wildcards[*index]);
        wildcards.find(|one| one.glob.matches_bounded(value, true))
    }
}

impl Level {
    pub(super) fn add(
        &mut self,
        key: &str,
        value: Option<&str>,
        branch: Branch,
    ) -> Result<(), AddError> {
        let values = self.keys.entry(key.to_string()).or_default();
        match value {
            None if values.any.is_some() => return Err(AddError::Duplicate),
            None => values.any = Some(branch),
            Some(text) if text.contains('*') => return values.add_wildcard(text, branch),
            Some(text) if values.exact.contains_key(text) => return Err(AddError::Duplicate),
            Some(text) => {
                values.exact.insert(text.to_string(), branch);
            }
        }
        Ok(())
    }

    /// Returns the descriptor for an entry: that of the exact value, else the first wildcard that
    /// matches, else the one for any value.
    pub(super) fn find(&self, key: &str, value: &str) -> Option<MatchedBranch<'_>> {
        let values = self.keys.get(key)?;
        if let Some(branch) = values.exact.get(value) {
            return Some(MatchedBranch { branch, shared: None });
        }
        let wildcard = values.wildcard(value.as_bytes());
        if let Some(Wildcard { text, branch, .. }) = wildcard {
            return Some(MatchedBranch { branch, shared: branch.shares_count.then_some(text) });
        }
        values.any.as_ref().map(|branch| MatchedBranch { branch, shared: None })
    }

    pub(super) fn collect_limits<'c>(&'c self, limits: &mut Vec<&'c DescriptorLimit>) {
        for values in self.keys.values() {
            let wildcards = values.wildcards.iter().map(|wildcard| &wildcard.branch);
            for branch in values.exact.values().chain(wildcards).chain(&values.any) {
                limits.extend(&branch.limits);
                branch.below.collect_limits(limits);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::work;

    fn level(values: impl Iterator<Item = String>) -> Level {
        let mut level = Level::default();
        for value in values {
            assert!(level.add("k", Some(&value), Branch::default()).is_ok(), "{value}");
        }
        level
    }

    #[test]
    fn the_first_wildcard_that_matches_counts_whatever_its_ends() {
        let values = ["*x*", "a*", "*b", "a*b", "**", "ab*"];
        let level = level(values.into_iter().map(String::from));
        let found = |value: &str| level.keys["k"].wildcard(value.as_bytes()).unwrap().text.as_str();
        assert_eq!(found("axb"), "*x*");
        assert_eq!(found("ab"), "a*");
        assert_eq!(found("cb"), "*b");
        assert_eq!(found("c"), "**");
        assert_eq!(found(&"c".repeat(2000)), "*x*", "it is not searched");
    }

    #[test]
    fn searches_for_one_value_are_bounded() {
        let mut level = level((0..SEARCHES_MAX).map(|i| format!("*{i:04}*")));
        let one_more = level.add("k", Some("a*b*c"), Branch::default());
        assert!(matches!(one_more, Err(AddError::TooManySearches)));
        let again = level.add("k", Some("*0001*"), Branch::default());
        assert!(matches!(again, Err(AddError::Duplicate)));
        for bytes in [1, 1000, 1024, 1025, 1 << 20] {
            let value = "0".repeat(bytes);
            let done = work::of(|| {
                let _ = level.find("k", &value);
            });
            assert!(done.searches <= SEARCHES_MAX, "{done:?}");
            assert!(done.bytes <= done.searches * 1024, "{done:?}");
        }
    }

    #[test]
    fn wildcards_with_other_affixes_are_not_tried() {
        let level = level((0..10_000).map(|i| format!("/tenant-{i:04}-*")));
        let looked_at = |value: &str| level.keys["k"].by_affix.all_of(value.as_bytes()).count();
        assert_eq!((looked_at("/tenant-0123-x"), looked_at("/other")), (1, 0));
    }
}
