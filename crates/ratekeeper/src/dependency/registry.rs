//! The dependencies of a policy, whose state outlives it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ratekeeper_policy::{DependencyRule, Policy};

use super::{Dependency, UnknownDependency};
use crate::engine::Engine;

/// The name of a dependency and its upstream, which is empty if there is one for all.
type Identity = (Arc<str>, Arc<str>);

/// All dependencies.
pub(crate) struct DependencyRegistry {
    engine: Arc<Engine>,
    known: Mutex<HashMap<Identity, Dependency>>,
    /// The upstreams of the gateway, once they are known.
    upstreams: OnceLock<Vec<Arc<str>>>,
}

impl DependencyRegistry {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, known: Mutex::default(), upstreams: OnceLock::new() }
    }

    /// Returns the dependencies of a policy that becomes active. Those that are known by name are updated; those
    /// that are in no policy and that nothing uses are forgotten.
    pub(crate) fn of_policy(&self, policy: &Policy) -> PolicyDependencies {
        let rules = policy.dependencies();
        let plain = |rule: &&Arc<DependencyRule>| !rule.is_per_upstream();
        let is_in_policy = |name: &str| rules.iter().any(|rule| rule.name() == name);
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(name, _), one| is_in_policy(name) || Arc::strong_count(&one.inner) > 1);
        let plain = rules.iter().filter(plain).map(|rule| self.get(rule, "")).collect();
        let per_upstream = rules.iter().filter(|rule| rule.is_per_upstream()).cloned().collect();
        let dependencies =
            PolicyDependencies { plain, per_upstream, of_upstreams: OnceLock::new() };
        dependencies.set_upstreams(self);
        dependencies
    }

    /// Notes the upstreams of the gateway, which each have their own dependency of a rule.
    pub(crate) fn set_upstreams(&self, upstreams: Vec<Arc<str>>) {
        let _ = self.upstreams.set(upstreams);
    }

    fn get(&self, rule: &DependencyRule, upstream: &str) -> Dependency {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (rule.name().into(), upstream.into());
        let make = || Dependency::new(rule, upstream, Arc::clone(&self.engine));
        let dependency = known.entry(key).or_insert_with(make);
        dependency.update(rule);
        dependency.clone()
    }
}

impl std::fmt::Debug for DependencyRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DependencyRegistry").finish_non_exhaustive()
    }
}

/// The dependencies of one policy.
#[derive(Debug)]
pub(crate) struct PolicyDependencies {
    plain: Vec<Dependency>,
    per_upstream: Vec<Arc<DependencyRule>>,
    /// Those of each upstream, once the upstreams are known.
    of_upstreams: OnceLock<Vec<Vec<Dependency>>>,
}

impl PolicyDependencies {
    /// Returns the dependency of a name.
    pub(crate) fn get(&self, name: &str) -> Result<&Dependency, UnknownDependency> {
        if let Some(found) = self.plain.iter().find(|one| one.name() == name) {
            return Ok(found);
        }
        if self.per_upstream.iter().any(|rule| rule.name() == name) {
            return Err(UnknownDependency::PerUpstream { name: name.to_string() });
        }
        let known = self.plain.iter().map(|one| one.name().to_string()).collect();
        Err(UnknownDependency::Name { name: name.to_string(), known })
    }

    /// Makes the dependencies of the upstreams, if these are known.
    pub(crate) fn set_upstreams(&self, registry: &DependencyRegistry) {
        let Some(names) = registry.upstreams.get() else { return };
        let of = |upstream: &Arc<str>| {
            self.per_upstream.iter().map(|rule| registry.get(rule, upstream)).collect()
        };
        let _ = self.of_upstreams.set(names.iter().map(of).collect());
    }

    /// Returns the dependencies of the upstream with this index.
    pub(crate) fn of_upstream(&self, index: usize) -> &[Dependency] {
        self.of_upstreams.get().and_then(|all| all.get(index)).map_or(&[], Vec::as_slice)
    }

    /// Returns all of them, those of the upstreams last.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Dependency> {
        self.plain.iter().chain(self.of_upstreams.get().into_iter().flatten().flatten())
    }
}
