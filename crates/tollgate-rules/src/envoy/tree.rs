//! Descriptors as they nest, ready to be looked up.

use std::collections::HashMap;

use super::limit::DescriptorLimit;
use crate::path::Glob;

/// What an entry may be at one depth.
#[derive(Debug, Default)]
pub(crate) struct Level {
    keys: HashMap<String, Values>,
}

/// What the value of a key may be.
#[derive(Debug, Default)]
struct Values {
    exact: HashMap<String, Branch>,
    /// In the order of the file: the first that matches counts.
    wildcards: Vec<Wildcard>,
    any: Option<Branch>,
}

#[derive(Debug)]
struct Wildcard {
    text: String,
    glob: Glob,
    branch: Branch,
}

/// A descriptor, with what is below it.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    pub(super) limits: Vec<DescriptorLimit>,
    pub(super) below: Level,
    pub(super) shares_count: bool,
}

/// A descriptor that matches an entry, and the pattern if all of its values are counted as one.
pub(super) struct Found<'c> {
    pub(super) branch: &'c Branch,
    pub(super) shared: Option<&'c str>,
}

impl Level {
    /// Adds a descriptor, unless there is one of that key and value.
    pub(super) fn add(&mut self, key: &str, value: Option<&str>, branch: Branch) -> Result<(), ()> {
        let values = self.keys.entry(key.to_string()).or_default();
        match value {
            None if values.any.is_some() => return Err(()),
            None => values.any = Some(branch),
            Some(text) if text.contains('*') => {
                if values.wildcards.iter().any(|known| known.text == text) {
                    return Err(());
                }
                let (text, glob) = (text.to_string(), Glob::new(text));
                values.wildcards.push(Wildcard { text, glob, branch });
            }
            Some(text) if values.exact.contains_key(text) => return Err(()),
            Some(text) => {
                values.exact.insert(text.to_string(), branch);
            }
        }
        Ok(())
    }

    /// The descriptor of an entry: that of the exact value, else the first wildcard that matches,
    /// else the one for any value.
    pub(super) fn find(&self, key: &str, value: &str) -> Option<Found<'_>> {
        let values = self.keys.get(key)?;
        if let Some(branch) = values.exact.get(value) {
            return Some(Found { branch, shared: None });
        }
        let wildcard = values.wildcards.iter().find(|one| one.glob.matches(value.as_bytes()));
        if let Some(Wildcard { text, branch, .. }) = wildcard {
            return Some(Found { branch, shared: branch.shares_count.then_some(text) });
        }
        values.any.as_ref().map(|branch| Found { branch, shared: None })
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
