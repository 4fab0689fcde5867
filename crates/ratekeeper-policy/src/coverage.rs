//! Compares match conditions: whether one matches everything that another does, or nothing of it.
//!
//! The results are for warnings. They hold for requests that every server reads in the same way, and what is
//! too costly to find out counts as unknown.

use std::cell::Cell;

use crate::condition::{Condition, FieldTest};
use crate::path::{Glob, PathPattern};

/// Maximum number of comparisons for one policy, which bounds the time for a policy with many limits.
const STEPS_MAX: u32 = 1_000_000;

/// Compares conditions, until the maximum number of comparisons is reached.
pub(crate) struct Coverage {
    steps_left: Cell<u32>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self { steps_left: Cell::new(STEPS_MAX) }
    }
}

impl Coverage {
    /// Counts a comparison. Returns whether it may be made.
    pub(crate) fn step(&self) -> bool {
        let left = self.steps_left.get();
        self.steps_left.set(left.saturating_sub(1));
        left > 0
    }

    /// Whether every request that matches all of `narrow` matches all of `broad`.
    pub(crate) fn covers_all<'c>(
        &self,
        broad: impl IntoIterator<Item = &'c Condition>,
        narrow: &(impl Iterator<Item = &'c Condition> + Clone),
    ) -> bool {
        broad.into_iter().all(|broad| narrow.clone().any(|one| self.covers(broad, one)))
    }

    /// Whether every request that matches `narrow` matches `broad`.
    fn covers(&self, broad: &Condition, narrow: &Condition) -> bool {
        let is_excluded = |not: &Condition| {
            narrow.not.iter().any(|other| self.covers(other, not)) || self.are_disjoint(not, narrow)
        };
        self.step()
            && self.each_is_covered(&broad.methods, &narrow.methods, String::eq)
            && self.each_is_covered(&broad.tiers, &narrow.tiers, usize::eq)
            && self.each_is_covered(&broad.networks, &narrow.networks, |a, b| a.contains(b))
            && self.each_is_covered(&broad.hosts, &narrow.hosts, Glob::covers)
            && self.each_is_covered(&broad.paths, &narrow.paths, PathPattern::covers)
            && self.fields_are_covered(&broad.headers, &narrow.headers)
            && self.fields_are_covered(&broad.query, &narrow.query)
            && self.fields_are_covered(&broad.request_json, &narrow.request_json)
            && broad.not.iter().all(is_excluded)
    }

    /// Whether `excluded`, as a `not` or an exemption, applies to all requests that match `condition`. A test
    /// of a value does not: it must hold for all values of a request, and the condition for only one of them.
    pub(crate) fn excludes(&self, excluded: &Condition, condition: &Condition) -> bool {
        let is_value = |(_, test): &(String, FieldTest)| matches!(test, FieldTest::AnyOf(_));
        let has_values = excluded.headers.iter().chain(&excluded.query).any(is_value);
        // A body that is not known may match a condition, and never an exemption.
        !has_values && !reads_body(excluded) && self.covers(excluded, condition)
    }

    /// Whether no request matches both.
    pub(crate) fn are_disjoint(&self, one: &Condition, other: &Condition) -> bool {
        self.step()
            && (self.none_overlaps(&one.methods, &other.methods, |a, b| a != b)
                || self.none_overlaps(&one.tiers, &other.tiers, |a, b| a != b)
                || self.none_overlaps(&one.networks, &other.networks, |a, b| {
                    !a.contains(b) && !b.contains(a)
                })
                || self.none_overlaps(&one.hosts, &other.hosts, Glob::is_disjoint)
                || self.none_overlaps(&one.paths, &other.paths, PathPattern::is_disjoint)
                || self.fields_contradict(&one.headers, &other.headers)
                || self.fields_contradict(&one.query, &other.query)
                || self.fields_contradict(&one.request_json, &other.request_json))
    }

    /// Whether each of `narrow` is covered by any of `broad`. An empty list matches everything.
    fn each_is_covered<T>(
        &self,
        broad: &[T],
        narrow: &[T],
        covers: impl Fn(&T, &T) -> bool,
    ) -> bool {
        let is_covered = |one: &T| broad.iter().any(|broad| self.step() && covers(broad, one));
        broad.is_empty() || !narrow.is_empty() && narrow.iter().all(is_covered)
    }

    fn none_overlaps<T>(&self, some: &[T], others: &[T], differ: impl Fn(&T, &T) -> bool) -> bool {
        let is_apart = |one: &T| others.iter().all(|other| self.step() && differ(one, other));
        !some.is_empty() && !others.is_empty() && some.iter().all(is_apart)
    }

    fn fields_are_covered<N: PartialEq>(
        &self,
        broad: &[(N, FieldTest)],
        narrow: &[(N, FieldTest)],
    ) -> bool {
        broad.iter().all(|(name, test)| {
            let same = narrow.iter().filter(|(other, _)| self.step() && name == other);
            same.into_iter().any(|(_, other)| self.test_covers(test, other))
        })
    }

    fn test_covers(&self, broad: &FieldTest, narrow: &FieldTest) -> bool {
        match (broad, narrow) {
            (FieldTest::Present, FieldTest::Present | FieldTest::AnyOf(_)) => true,
            (FieldTest::Absent, FieldTest::Absent) => true,
            (FieldTest::AnyOf(broad), FieldTest::AnyOf(narrow)) => {
                self.each_is_covered(broad, narrow, Glob::covers)
            }
            _ => false,
        }
    }

    /// Whether one requires a field that the other forbids. Two values do not contradict each other, because
    /// a request may have both.
    fn fields_contradict<N: PartialEq>(
        &self,
        some: &[(N, FieldTest)],
        others: &[(N, FieldTest)],
    ) -> bool {
        let is_absent = |test: &FieldTest| matches!(test, FieldTest::Absent);
        some.iter().any(|(name, test)| {
            let mut same = others.iter().filter(|(other, _)| self.step() && name == other);
            same.any(|(_, other)| is_absent(test) != is_absent(other))
        })
    }
}

fn reads_body(condition: &Condition) -> bool {
    !condition.request_json.is_empty() || condition.not.iter().any(reads_body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_costly_to_find_out_is_unknown() {
        let methods = (0..STEPS_MAX / 100).map(|n| n.to_string()).collect();
        let many = Condition { methods, ..Condition::default() };
        let few = Condition { methods: vec!["7".into()], ..Condition::default() };
        let coverage = Coverage::default();
        assert!(coverage.covers(&many, &few));
        assert!(!coverage.covers(&many, &many));
        assert_eq!(coverage.steps_left.get(), 0);
        assert!(!coverage.covers(&many, &few) && !coverage.are_disjoint(&many, &few));
    }
}
