//! A policy: read once, then only looked at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::FailureMode;

use crate::answers::Answers;
use crate::build;
use crate::client_ip::ClientIp;
use crate::condition::Condition;
use crate::format;
use crate::identity::Identity;
use crate::index::Index;
use crate::problems::{PolicyErrors, Problem, Problems};
use crate::read_headers::ReadHeaders;
use crate::rule::LimitRule;
use crate::schema::json_schema;
use crate::shape::Shape;
use crate::yaml;

/// A policy that can be used.
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
    pub(crate) exempt: Vec<Condition>,
    pub(crate) limits: Vec<Arc<LimitRule>>,
    pub(crate) index: Index,
    pub(crate) read_headers: ReadHeaders,
    pub(crate) serves_stale: bool,
    pub(crate) answers: Answers,
    pub(crate) warnings: Vec<Problem>,
}

/// Who has which tier.
#[derive(Debug)]
pub(crate) struct Tiers {
    pub(crate) of: usize,
    pub(crate) names: Vec<String>,
    pub(crate) by_value: HashMap<Vec<u8>, usize>,
    pub(crate) default: usize,
}

/// Where counts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// `None` is in memory.
    pub url: Option<String>,
    /// What keys begin with in Redis.
    pub prefix: Option<String>,
    /// How long one decision may take.
    pub deadline: Option<Duration>,
    /// What limits do when the store does not answer, unless they say otherwise.
    pub when_down: FailureMode,
    /// Are hot keys served from memory?
    pub leased: bool,
    /// How many keys are kept in memory at most.
    pub keys_max: Option<usize>,
}

/// What a policy refers to and does not contain.
pub trait Sources {
    /// The content of a file. Its name is as in the policy.
    fn file(&self, name: &str) -> Result<Vec<u8>, String>;
    /// The value of an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
}

/// For a policy that refers to nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoSources;

impl Sources for NoSources {
    fn file(&self, _: &str) -> Result<Vec<u8>, String> {
        Err("there are no files here".into())
    }

    fn variable(&self, _: &str) -> Option<String> {
        None
    }
}

impl Policy {
    /// Reads a policy. `file` is its name, for errors, of which all are told at once.
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
    pub fn parse(file: &str, text: &str, sources: &dyn Sources) -> Result<Self, PolicyErrors> {
        let mut problems = Problems::new(file, text);
        let root = yaml::parse(text, &mut problems);
        let policy = match &root {
            Some(root) => {
                build::hide_secrets(root, &mut problems);
                Shape::Section(&format::POLICY).check(root, &mut problems);
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

    /// The JSON Schema of a policy file, for editors.
    pub fn json_schema() -> String {
        let schema = json_schema(&format::POLICY, "Ratekeeper policy");
        serde_json::to_string_pretty(&schema).expect("a schema is plain JSON")
    }

    /// Where counts are kept.
    pub fn store(&self) -> &StoreSettings {
        &self.store
    }

    /// How callers are told.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Believes these proxies too, whatever the file says.
    #[must_use]
    pub fn with_trusted_proxies(self, proxies: &[ipnet::IpNet]) -> Self {
        Self { client_ip: self.client_ip.and_trusted(proxies), ..self }
    }

    /// How the address of a client is found.
    pub fn client_ip(&self) -> &ClientIp {
        &self.client_ip
    }

    /// Does any limit count addresses, be it only where another identity is missing?
    pub fn counts_addresses(&self) -> bool {
        let is_address = |id: &usize| {
            let identity = &self.identities[*id];
            let stands_in = identity.missing == crate::identity::WhenMissing::Ip;
            stands_in || matches!(identity.source, crate::identity::Source::ClientIp)
        };
        self.limits.iter().any(|limit| limit.per.iter().any(is_address))
    }

    /// Does any limit give callers what was answered before, instead of a refusal?
    pub fn serves_stale(&self) -> bool {
        self.serves_stale
    }

    /// All limits, in the order of the file.
    pub fn limits(&self) -> &[Arc<LimitRule>] {
        &self.limits
    }

    /// What is allowed, but perhaps not what was meant.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// The names of all identities, that of the client's address included.
    pub fn identities(&self) -> impl Iterator<Item = &str> {
        self.identities.iter().map(|identity| identity.name.as_str())
    }

    /// The identities that the program has to give.
    pub fn custom_identities(&self) -> impl Iterator<Item = &str> {
        let custom =
            |identity: &&Identity| matches!(identity.source, crate::identity::Source::Custom);
        self.identities.iter().filter(custom).map(|identity| identity.name.as_str())
    }
}
