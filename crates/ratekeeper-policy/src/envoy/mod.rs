//! Reads configuration files of envoyproxy/ratelimit and finds the limits of descriptors.
//!
//! Extensions: a limit may set an `algorithm` other than a fixed window, any `period`, a `burst` or a
//! complete `rate`; a descriptor may have several `rate_limits`.
//!
//! ```
//! use ratekeeper_policy::envoy::{RequestDescriptor, EnvoyConfig};
//!
//! let file = "
//! domain: shop
//! descriptors:
//!   - key: user
//!     rate_limit: { unit: minute, requests_per_unit: 10 }
//! ";
//! let config = EnvoyConfig::parse(&[("shop.yaml".into(), file.into())])?;
//! let found = config.resolve("shop", &[RequestDescriptor::new([("user", "ann")])]);
//! let matched = found[0].as_ref().expect("there is a limit for users");
//! assert_eq!(matched.key(), "user=ann");
//! assert_eq!(matched.limits()[0].label(), "shop.user");
//! # Ok::<(), ratekeeper_policy::envoy::EnvoyErrors>(())
//! ```

mod errors;
mod format;
mod go_yaml;
mod key;
mod limit;
mod looks;
mod read;
mod resolve;
mod tree;
mod unit;

use std::collections::{HashMap, HashSet};

pub use errors::EnvoyErrors;
pub use limit::{DescriptorLimit, DescriptorQuota, Metadata};
pub use resolve::{Descriptor, DescriptorLimits, MatchedLimits, RequestDescriptor};
pub use unit::Unit;

use crate::problems::Problems;
use crate::yaml::{self, Span};
use looks::RequestLooks;
use tree::Level;

/// Whether several files may have one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedDomains {
    /// It is an error.
    #[default]
    Reject,
    /// The domain has the descriptors of all of them.
    Merge,
}

/// The validated configuration of a set of files.
#[derive(Debug, Default)]
pub struct EnvoyConfig {
    pub(crate) domains: HashMap<String, Level>,
    /// For limits that requests bring. Configurations that replace this one share it.
    request_looks: RequestLooks,
}

impl EnvoyConfig {
    /// Parses files, each given by name and text. Each has a domain of its own.
    ///
    /// # Errors
    ///
    /// Returns the problems of all files if any file is invalid.
    pub fn parse(files: &[(String, String)]) -> Result<Self, EnvoyErrors> {
        Self::parse_with(files, SharedDomains::Reject)
    }

    /// Parses files, each given by name and text.
    ///
    /// # Errors
    ///
    /// Returns the problems of all files if any file is invalid.
    pub fn parse_with(
        files: &[(String, String)],
        shared: SharedDomains,
    ) -> Result<Self, EnvoyErrors> {
        let mut config = Self::default();
        let mut owners: HashMap<String, &str> = HashMap::new();
        let mut errors = Vec::new();
        for (name, text) in files {
            let mut problems = Problems::new(name, text);
            config.add(name, text, shared, &mut owners, &mut problems);
            if !problems.is_empty() {
                errors.push(problems.into_errors());
            }
        }
        if errors.is_empty() { Ok(config) } else { Err(EnvoyErrors::new(errors)) }
    }

    fn add<'f>(
        &mut self,
        file: &'f str,
        text: &str,
        shared: SharedDomains,
        owners: &mut HashMap<String, &'f str>,
        problems: &mut Problems,
    ) {
        let Some(root) = yaml::parse(text, problems) else {
            if problems.is_empty() {
                let start = Span { line: 1, column: 1, width: 1 };
                problems.report(start, "the file is empty; it needs a \"domain\"");
            }
            return;
        };
        let root = read::tree(root, problems);
        let domain = read::domain(&root);
        let first = *owners.entry(domain.to_string()).or_insert(file);
        if let Some(node) = root.get("domain")
            && first != file
            && shared == SharedDomains::Reject
        {
            let why = format!(
                "the domain is already in {first}; put its descriptors into one file, or set \
                 MERGE_DOMAIN_CONFIG=true"
            );
            problems.report(node.span, why);
        }
        let level = self.domains.entry(domain.to_string()).or_default();
        read::descriptors(&root, level, problems);
    }

    /// Returns the names of the domains, sorted.
    #[must_use]
    pub fn domains(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.domains.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Returns all configured limits, sorted by domain and label.
    #[must_use]
    pub fn limits(&self) -> Vec<&DescriptorLimit> {
        let mut limits = Vec::new();
        self.domains.values().for_each(|level| level.collect_limits(&mut limits));
        limits.sort_by_key(|limit| (limit.domain(), limit.label()));
        limits
    }

    /// Takes over which limits requests have looked at, by domain and label, from the configuration that this one
    /// replaces.
    pub fn inherit_looks(&mut self, old: &Self) {
        self.request_looks = old.request_looks.clone();
        let old = old.limits();
        let id = |limit: &DescriptorLimit| (limit.domain.clone(), limit.label.clone());
        let looked_at: HashSet<_> =
            old.iter().filter(|limit| limit.is_looked_at()).map(|limit| id(limit)).collect();
        let limits = self.limits().into_iter();
        limits.filter(|limit| looked_at.contains(&id(limit))).for_each(DescriptorLimit::note_look);
    }
}
