//! A limit of a descriptor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratekeeper_core::{Algorithm, Limit, LimitError, MaxDebt, Rate};

use super::unit::Unit;

/// The metadata of a descriptor: names and values.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// A limit of a descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorLimit {
    pub(super) domain: String,
    pub(super) name: String,
    pub(super) label: String,
    pub(super) quota: DescriptorQuota,
    pub(super) is_shadow: bool,
    pub(super) is_quota: bool,
    pub(super) metadata: Option<Arc<Metadata>>,
    pub(super) replaces: Vec<String>,
    pub(super) overdraft: Overdraft,
}

/// Whether hits are reports of what was used already.
#[derive(Clone, Debug, Default)]
pub(super) struct Overdraft {
    /// What the file says; `None` if it says nothing.
    pub(super) configured: Option<bool>,
    pub(super) max_debt: MaxDebt,
    /// Whether a request has looked at the limit, with 0 hits.
    pub(super) is_looked_at: Arc<AtomicBool>,
}

/// The quota of a descriptor.
#[derive(Clone, Debug)]
pub enum DescriptorQuota {
    /// A rate.
    Rate(Limit),
    /// No limit: all requests are allowed.
    Unlimited,
    /// 0 requests per unit: all requests are denied.
    DenyAll(Option<Unit>),
}

impl DescriptorLimit {
    /// Creates the limit that a request overrides the configuration with. It is counted per unit, so
    /// that usage carries over when the number changes.
    pub(super) fn of_request(
        domain: &str,
        requests_per_unit: u32,
        unit: Unit,
        is_looked_at: Arc<AtomicBool>,
    ) -> Self {
        let scope = format!("{}!{}", scope(domain), unit.name());
        let limit = Rate::new(u64::from(requests_per_unit), unit.period())
            .map_err(LimitError::from)
            .and_then(|rate| Limit::new(rate, Algorithm::FixedWindow));
        // The only count that is not a valid rate is 0.
        let quota = limit.map_or(DescriptorQuota::DenyAll(Some(unit)), |limit| {
            DescriptorQuota::Rate(limit.named(&scope))
        });
        let label = format!("{domain}.override");
        Self {
            domain: domain.to_string(),
            name: String::new(),
            label,
            quota,
            is_shadow: false,
            is_quota: false,
            metadata: None,
            replaces: Vec::new(),
            overdraft: Overdraft { is_looked_at, ..Overdraft::default() },
        }
    }

    /// Notes that a request has looked at the limit, with 0 hits.
    pub fn note_look(&self) {
        if !self.is_looked_at() {
            self.overdraft.is_looked_at.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether hits are reports of what was used already, which are charged in full whatever is left:
    /// `overdraft` in the file or, if it is absent, whether requests look at the limit before.
    #[must_use]
    pub fn takes_reports(&self) -> bool {
        self.overdraft.configured.unwrap_or_else(|| self.is_looked_at())
    }

    /// Returns whether a request is allowed if anything is left, and then charged in full: the file says so.
    #[must_use]
    pub fn is_overdraft(&self) -> bool {
        self.overdraft.configured == Some(true)
    }

    pub(super) fn is_looked_at(&self) -> bool {
        self.overdraft.is_looked_at.load(Ordering::Relaxed)
    }

    /// Returns the domain.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the most that reports may leave as a debt.
    #[must_use]
    pub fn max_debt(&self) -> MaxDebt {
        self.overdraft.max_debt
    }

    /// Returns the configured name; empty if there is none.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name, or else the path of the descriptor.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the quota.
    #[must_use]
    pub fn quota(&self) -> &DescriptorQuota {
        &self.quota
    }

    /// Whether the limit is in shadow mode.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Whether the limit is in quota mode: a request is denied if all its descriptors in quota mode are over
    /// their limits.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.is_quota
    }

    /// Returns the metadata of the descriptor.
    #[must_use]
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_deref()
    }

    /// Returns the number of requests per unit.
    #[must_use]
    pub fn requests_per_unit(&self) -> u32 {
        match &self.quota {
            DescriptorQuota::Rate(limit) => u32::try_from(limit.rate().count()).unwrap_or(u32::MAX),
            DescriptorQuota::Unlimited => u32::MAX,
            DescriptorQuota::DenyAll(_) => 0,
        }
    }

    /// Returns the unit, if the period is one.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        match &self.quota {
            DescriptorQuota::Rate(limit) => Unit::of(limit.rate().period()),
            DescriptorQuota::Unlimited => None,
            DescriptorQuota::DenyAll(unit) => *unit,
        }
    }
}

/// Returns the scope of the counts of a domain. Keys contain the whole descriptor, so one scope is
/// enough, and a limit can be moved within its file without losing counts.
pub(super) fn scope(domain: &str) -> String {
    format!("envoy/{domain}")
}
