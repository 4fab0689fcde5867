//! The policy: an immutable set of limits, parsed from a file.

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::FailureMode;

use crate::build;
use crate::client_ip::ClientIp;
use crate::condition::Condition;
use crate::format;
use crate::identity::{Identity, Key, Source};
use crate::index::Index;
use crate::json_fields::JsonPaths;
use crate::json_schema::json_schema;
use crate::problems::{PolicyErrors, Problem, Problems};
use crate::protection::{DependencyRule, SheddingRule};
use crate::read_headers::ReadHeaders;
use crate::refusals::RefusalSettings;
use crate::response::ResponseSettings;
use crate::rule::LimitRule;
use crate::schema::Schema;
use crate::yaml;

/// A validated policy.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_policy as policy; pub use ratekeeper_policy::*; }
/// use ratekeeper::policy::NoSources;
/// use ratekeeper::Policy;
///
/// let text = "
/// version: 1
/// limits:
///   - { name: api, per: ip, rate: 100/minute }
/// ";
/// let policy = Policy::parse("policy.yaml", text, &NoSources)?;
/// assert_eq!(policy.limits()[0].name(), "api");
/// # Ok::<(), ratekeeper::PolicyErrors>(())
/// ```
#[derive(Debug)]
pub struct Policy {
    pub(crate) store: StoreSettings,
    pub(crate) identities: Vec<Identity>,
    pub(crate) client_ip: ClientIp,
    #[cfg(feature = "jwt")]
    pub(crate) tokens: crate::token::Tokens,
    pub(crate) tiers: Option<Tiers>,
    pub(crate) classes: Vec<String>,
    pub(crate) priorities: Vec<(usize, Condition)>,
    /// The class of requests that match no condition.
    pub(crate) other_class: Option<usize>,
    pub(crate) shedding: Option<SheddingRule>,
    pub(crate) dependencies: Vec<Arc<DependencyRule>>,
    pub(crate) exempt: Vec<Condition>,
    pub(crate) limits: Vec<Arc<LimitRule>>,
    pub(crate) index: Index,
    pub(crate) read_headers: ReadHeaders,
    pub(crate) request_json: JsonPaths,
    pub(crate) serves_stale: bool,
    pub(crate) response_settings: ResponseSettings,
    pub(crate) refusals: RefusalSettings,
    pub(crate) file: Arc<str>,
    pub(crate) warnings: Vec<Problem>,
}

/// The tiers, and which identity values have which tier.
#[derive(Debug)]
pub(crate) struct Tiers {
    pub(crate) of: usize,
    pub(crate) names: Vec<String>,
    pub(crate) by_value: HashMap<Vec<u8>, usize>,
    pub(crate) default: usize,
}

/// Where counts are stored. By default in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSettings {
    /// Address of the store. `None` means memory.
    pub url: Option<String>,
    /// Prefix of keys in Redis.
    pub prefix: Option<String>,
    /// Maximum time for one decision.
    pub deadline: Option<Duration>,
    /// What limits do while the store is unavailable, unless a limit sets its own mode.
    pub on_failure: FailureMode,
    /// Whether hot keys are served from memory with leased units.
    pub leased: bool,
    /// Maximum number of keys in memory.
    pub keys_max: Option<usize>,
}

impl StoreSettings {
    /// Returns the settings of a store at this address.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self { url: Some(url.to_string()), ..Self::default() }
    }
}

/// Provides the files and environment variables that a policy refers to.
pub trait Sources {
    /// Returns the content of a file, whose name is as written in the policy.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    fn file(&self, name: &str) -> Result<Vec<u8>, SourceError>;
    /// Returns the value of an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
}

/// Why a file that a policy refers to is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The path, as it was opened.
        path: PathBuf,
        /// Why, such as an [`io::Error`](std::io::Error).
        source: Box<dyn Error + Send + Sync>,
    },
    /// All files of the policy together are too large.
    #[error("the files of the policy have more than {max_bytes} bytes together, the maximum")]
    TooLarge {
        /// The maximum.
        max_bytes: u64,
    },
    /// The policy is parsed without access to files.
    #[error("this policy is parsed without access to files; write the value into the policy")]
    NoFiles,
}

impl SourceError {
    /// Creates the error for a file that cannot be read.
    pub fn read(path: impl Into<PathBuf>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Read { path: path.into(), source: source.into() }
    }
}

/// [`Sources`] for a policy that refers to no files and no environment variables.
#[derive(Clone, Copy, Debug)]
pub struct NoSources;

impl Sources for NoSources {
    fn file(&self, _: &str) -> Result<Vec<u8>, SourceError> {
        Err(SourceError::NoFiles)
    }

    fn variable(&self, _: &str) -> Option<String> {
        None
    }
}

impl Policy {
    /// Parses a policy. `file` is its name, used in errors.
    ///
    /// ```
    /// use ratekeeper_policy::{NoSources, Policy};
    ///
    /// let text = "
    /// version: 1
    /// limits:
    ///   - name: api
    ///     per: ip
    ///     rate: 100/minute
    /// ";
    /// assert!(Policy::parse("policy.yaml", text, &NoSources).is_ok());
    ///
    /// let errors = Policy::parse("policy.yaml", &text.replace("rate", "rat"), &NoSources);
    /// assert!(errors.unwrap_err().to_string().contains("did you mean \"rate\"?"));
    /// ```
    ///
    /// # Errors
    ///
    /// Returns all problems of the policy, each with its position in the file.
    pub fn parse(file: &str, text: &str, sources: &dyn Sources) -> Result<Self, PolicyErrors> {
        let mut problems = Problems::new(file, text);
        let root = yaml::parse(text, &mut problems);
        let policy = match &root {
            Some(root) if is_envoy_file(root) => {
                let why = "this is a file of envoyproxy/ratelimit, not a policy: use `ratekeeper check --envoy DIR`, and `ratekeeper serve --envoy-config DIR`";
                problems.report(root.span, why);
                None
            }
            Some(root) => {
                build::hide_secrets(root, &mut problems);
                Schema::Section(&format::POLICY).check(root, &mut problems);
                Some(build::policy(root, sources, &mut problems))
            }
            None if !problems.is_empty() => None,
            None => {
                let whole = yaml::Span { line: 1, column: 1, width: 1 };
                problems.report(whole, "the file is empty; it needs \"version: 1\" and \"limits\"");
                None
            }
        };
        match policy {
            Some(policy) if problems.is_empty() => {
                Ok(Self { warnings: problems.take_warnings(), ..policy })
            }
            _ => Err(problems.into_errors()),
        }
    }

    /// Returns the JSON Schema of a policy file, for editors.
    #[must_use]
    pub fn json_schema() -> String {
        let schema = json_schema(&format::POLICY, "Ratekeeper policy");
        serde_json::to_string_pretty(&schema).expect("a schema is plain JSON")
    }

    /// Returns where counts are stored.
    #[must_use]
    pub fn store(&self) -> &StoreSettings {
        &self.store
    }

    /// Returns the settings of responses.
    #[must_use]
    pub fn response_settings(&self) -> &ResponseSettings {
        &self.response_settings
    }

    /// Returns the settings of the refusal log.
    #[must_use]
    pub fn refusals(&self) -> RefusalSettings {
        self.refusals
    }

    /// Returns the name of the file that the policy was parsed from.
    #[must_use]
    pub fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// Stores counts elsewhere than the policy says.
    ///
    /// ```
    /// # mod ratekeeper { pub use ratekeeper_policy as policy; pub use ratekeeper_policy::*; }
    /// use ratekeeper::Policy;
    /// use ratekeeper::policy::StoreSettings;
    ///
    /// let policy = Policy::one_line("100/s per host")?;
    /// let policy = policy.with_store(StoreSettings::at("redis://127.0.0.1:6379"));
    /// assert!(policy.store().url.is_some());
    /// # Ok::<(), ratekeeper::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn with_store(self, store: StoreSettings) -> Self {
        Self { store, ..self }
    }

    /// Trusts these proxies in addition to those of the policy file.
    #[must_use]
    pub fn with_trusted_proxies(self, proxies: &[ipnet::IpNet]) -> Self {
        Self { client_ip: self.client_ip.with_extra_trusted(proxies), ..self }
    }

    /// Returns how the address of a client is found.
    #[must_use]
    pub fn client_ip(&self) -> &ClientIp {
        &self.client_ip
    }

    /// Returns the fields of request bodies that the policy reads.
    #[must_use]
    pub fn request_json(&self) -> &JsonPaths {
        &self.request_json
    }

    /// Whether any limit serves stale responses instead of denials.
    #[must_use]
    pub fn serves_stale(&self) -> bool {
        self.serves_stale
    }

    /// Returns all limits, in file order.
    #[must_use]
    pub fn limits(&self) -> &[Arc<LimitRule>] {
        &self.limits
    }

    /// Returns the warnings: settings that are valid but may be mistakes.
    #[must_use]
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Removes the warnings, for a policy that a program made.
    #[must_use]
    pub fn without_warnings(self) -> Self {
        Self { warnings: Vec::new(), ..self }
    }

    /// Checks that no limit depends on the address of a client, which requests that a program itself sends do not have.
    ///
    /// ```
    /// # use ratekeeper_policy as ratekeeper;
    /// use ratekeeper::Policy;
    ///
    /// assert!(Policy::one_line("100/s per host")?.check_for_client().is_ok());
    /// assert!(Policy::one_line("100/s per ip")?.check_for_client().is_err());
    /// # Ok::<(), ratekeeper_policy::PolicyErrors>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is such a limit.
    pub fn check_for_client(&self) -> Result<(), PolicyErrors> {
        let is_address = |id: &usize| match &self.identities[*id].source {
            Source::FirstOf(ids) => ids.iter().any(|id| self.identities[*id].source.is_address()),
            source => source.is_address(),
        };
        match self.limits.iter().find(|limit| limit.per.iter().any(is_address)) {
            None => Ok(()),
            Some(limit) => {
                let why = "it counts by the address of a client, which requests that this program sends do not \
                           have; count by host, or by a header";
                Err(PolicyErrors::plain(&format!("limit \"{}\"", limit.name()), why))
            }
        }
    }

    /// Returns the names of the tiers.
    pub fn tiers(&self) -> impl Iterator<Item = &str> {
        self.tiers.iter().flat_map(|tiers| &tiers.names).map(String::as_str)
    }

    /// Returns the names of all identities, including the client's address.
    pub fn identities(&self) -> impl Iterator<Item = &str> {
        self.identities.iter().map(|identity| identity.name.as_str())
    }

    /// Returns the key under which a limit of this policy counts the requests with this value of its identity, such as
    /// `user=ann` for `ann`. `None` if it does not count by exactly one identity, or by the first of several.
    ///
    /// ```
    /// # mod ratekeeper { pub use ratekeeper_policy as policy; pub use ratekeeper_policy::*; }
    /// use ratekeeper::policy::NoSources;
    /// use ratekeeper::Policy;
    ///
    /// let text = "
    /// version: 1
    /// limits:
    ///   - { name: api, per: ip, rate: 100/minute }
    ///   - { name: all, rate: 9000/minute }
    /// ";
    /// let policy = Policy::parse("policy.yaml", text, &NoSources)?;
    /// let [api, all] = policy.limits() else { unreachable!() };
    /// let key = policy.key_of(api, "192.0.2.1").expect("it counts by one identity");
    /// assert_eq!(key.to_string(), "ip=192.0.2.1");
    /// assert_eq!(policy.key_of(all, "192.0.2.1"), None);
    /// # Ok::<(), ratekeeper::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn key_of(&self, limit: &LimitRule, value: &str) -> Option<Key> {
        let [id] = *limit.per else { return None };
        let identity = &self.identities[id];
        if matches!(identity.source, Source::FirstOf(_)) {
            return None;
        }
        let mut key = Key::default();
        key.begin(&identity.name);
        key.value(&identity.source.canonical(value));
        Some(key)
    }

    /// Returns the names of the identities that the application supplies.
    pub fn custom_identities(&self) -> impl Iterator<Item = &str> {
        let custom = |identity: &&Identity| matches!(identity.source, Source::Custom);
        self.identities.iter().filter(custom).map(|identity| identity.name.as_str())
    }
}

fn is_envoy_file(root: &yaml::Node) -> bool {
    root.get("domain").is_some() && root.get("limits").is_none()
}
