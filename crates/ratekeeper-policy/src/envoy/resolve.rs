//! Finds the limits of the descriptors of a request.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use smallvec::SmallVec;

use super::limit::DescriptorLimit;
use super::tree::Level;
use super::unit::Unit;
use super::{EnvoyConfig, key};

/// A descriptor of a request.
pub trait Descriptor {
    /// Returns its keys and values, in order.
    fn entries(&self) -> impl Iterator<Item = (&str, &str)>;

    /// Returns the limit (requests per unit) that overrides the configured one.
    fn limit(&self) -> Option<(u32, Unit)>;
}

/// A descriptor with owned entries.
#[derive(Clone, Debug)]
pub struct RequestDescriptor {
    entries: Vec<(String, String)>,
    limit: Option<(u32, Unit)>,
}

impl RequestDescriptor {
    /// Creates a descriptor with these entries.
    #[must_use]
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let entries = entries.into_iter().map(|(key, value)| (key.into(), value.into()));
        Self { entries: entries.collect(), limit: None }
    }

    /// Sets a limit that overrides the configured one.
    #[must_use]
    pub fn limited_to(self, requests_per_unit: u32, unit: Unit) -> Self {
        Self { limit: Some((requests_per_unit, unit)), ..self }
    }
}

impl Descriptor for RequestDescriptor {
    fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    fn limit(&self) -> Option<(u32, Unit)> {
        self.limit
    }
}

/// The limits of a descriptor. Most have one.
pub type DescriptorLimits<'c> = SmallVec<[Cow<'c, DescriptorLimit>; 1]>;

/// The limits of a descriptor, and its key.
#[derive(Clone, Debug)]
pub struct MatchedLimits<'c> {
    limits: DescriptorLimits<'c>,
    key: String,
}

impl<'c> MatchedLimits<'c> {
    /// Returns the limits, of which there is at least one.
    #[must_use]
    pub fn limits(&self) -> &[Cow<'c, DescriptorLimit>] {
        &self.limits
    }

    /// Returns the key: the entries with their values.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl EnvoyConfig {
    /// Returns the limits of each descriptor of a request, in order; `None` for one without limits.
    #[must_use]
    pub fn resolve<'c, D: Descriptor>(
        &'c self,
        domain: &str,
        descriptors: &[D],
    ) -> SmallVec<[Option<MatchedLimits<'c>>; 2]> {
        let level = self.domains.get(domain);
        let of_one = |descriptor: &D| match descriptor.limit() {
            Some((requests_per_unit, unit)) => {
                let looks = self.request_looks.of(domain, descriptor);
                Some(of_request(domain, descriptor, requests_per_unit, unit, looks))
            }
            None => level.and_then(|level| configured(level, descriptor)),
        };
        let mut found: SmallVec<[_; 2]> = descriptors.iter().map(of_one).collect();
        drop_replaced(&mut found);
        found
    }
}

fn of_request<'c>(
    domain: &str,
    descriptor: &impl Descriptor,
    requests_per_unit: u32,
    unit: Unit,
    is_looked_at: Arc<AtomicBool>,
) -> MatchedLimits<'c> {
    let mut text = String::new();
    descriptor.entries().for_each(|(key, value)| key::push_value(&mut text, key, value));
    let limit = DescriptorLimit::of_request(domain, requests_per_unit, unit, is_looked_at);
    MatchedLimits { limits: DescriptorLimits::from_iter([Cow::Owned(limit)]), key: text }
}

/// Finds the configured limits. A limit applies only to descriptors of exactly its depth.
fn configured<'c>(level: &'c Level, descriptor: &impl Descriptor) -> Option<MatchedLimits<'c>> {
    let mut below = level;
    let mut limits: &[DescriptorLimit] = &[];
    let mut text = String::with_capacity(64);
    for (key, value) in descriptor.entries() {
        let found = below.find(key, value)?;
        match found.shared {
            Some(pattern) => key::push_shared(&mut text, key, pattern),
            None => key::push_value(&mut text, key, value),
        }
        limits = &found.branch.limits;
        below = &found.branch.below;
    }
    let limits: DescriptorLimits<'_> = limits.iter().map(Cow::Borrowed).collect();
    (!limits.is_empty()).then_some(MatchedLimits { limits, key: text })
}

/// Removes limits that others of the same request replace.
fn drop_replaced(found: &mut [Option<MatchedLimits<'_>>]) {
    let all = || found.iter().flatten().flat_map(|matched| &matched.limits);
    let replaced: Vec<String> = all().flat_map(|limit| limit.replaces.clone()).collect();
    if replaced.is_empty() {
        return;
    }
    for one in found {
        let Some(matched) = one else { continue };
        matched.limits.retain(|limit| !replaced.contains(&limit.name));
        if matched.limits.is_empty() {
            *one = None;
        }
    }
}
