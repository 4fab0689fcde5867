//! A limit of a descriptor.

use ratekeeper_core::{Algorithm, Limit, LimitError, Rate};

use super::unit::Unit;

/// A limit of a descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorLimit {
    pub(super) name: String,
    pub(super) label: String,
    pub(super) quota: DescriptorQuota,
    pub(super) is_shadow: bool,
    pub(super) replaces: Vec<String>,
}

/// How much may pass.
#[derive(Clone, Debug)]
pub enum DescriptorQuota {
    /// So much.
    Rate(Limit),
    /// Everything.
    Unlimited,
    /// Nothing at all: 0 requests per unit.
    DenyAll(Option<Unit>),
}

impl DescriptorLimit {
    /// What a request brings along instead of what is configured. Counted by unit, so that a caller
    /// whose number changes keeps its usage.
    pub(super) fn of_request(domain: &str, requests_per_unit: u32, unit: Unit) -> Self {
        let scope = format!("{}!{}", scope(domain), unit.name());
        let limit = Rate::new(u64::from(requests_per_unit), unit.period())
            .map_err(LimitError::from)
            .and_then(|rate| Limit::new(rate, Algorithm::FixedWindow));
        // The only number that is none for a rate is 0.
        let quota = limit.map_or(DescriptorQuota::DenyAll(Some(unit)), |limit| {
            DescriptorQuota::Rate(limit.named(&scope))
        });
        let label = format!("{domain}.override");
        Self { name: String::new(), label, quota, is_shadow: false, replaces: Vec::new() }
    }

    /// The name that it was given, or nothing.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is called where it needs a name: its own, or where it stands.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// How much may pass.
    pub fn quota(&self) -> &DescriptorQuota {
        &self.quota
    }

    /// Does it only count, and refuse nothing?
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// How many per unit.
    pub fn requests_per_unit(&self) -> u32 {
        match &self.quota {
            DescriptorQuota::Rate(limit) => u32::try_from(limit.rate().count()).unwrap_or(u32::MAX),
            DescriptorQuota::Unlimited => u32::MAX,
            DescriptorQuota::DenyAll(_) => 0,
        }
    }

    /// The unit, if its period is one.
    pub fn unit(&self) -> Option<Unit> {
        match &self.quota {
            DescriptorQuota::Rate(limit) => Unit::of(limit.rate().period()),
            DescriptorQuota::Unlimited => None,
            DescriptorQuota::DenyAll(unit) => *unit,
        }
    }
}

/// Where the counts of a domain are kept. Keys hold the whole path, so that one scope will do, and a
/// limit may be moved about in its file without losing a count.
pub(super) fn scope(domain: &str) -> String {
    format!("envoy/{domain}")
}
