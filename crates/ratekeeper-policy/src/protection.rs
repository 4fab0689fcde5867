//! What protects a service: how much it does at a time, what it rejects under overload, and the
//! dependencies that it calls.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_control::adaptive::{AdaptiveAlgorithm, AdaptiveConfig, Bounds};
use ratekeeper_control::{BreakerConfig, Class, QueueOrder, ShedderConfig, user_hash};
use ratekeeper_core::Limit;

use crate::condition::Condition;
use crate::context::RequestContext;
use crate::policy::Policy;
use crate::request::RequestAttributes;

/// How many requests may be in flight, and how many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyRule {
    /// How many may be in flight.
    pub permits: Permits,
    /// Which requests wait while that many are in flight. `None` rejects them at once.
    pub queue: Option<QueueRule>,
}

impl ConcurrencyRule {
    /// Returns a fixed maximum without a queue.
    pub(crate) const fn fixed(max: u64) -> Self {
        Self { permits: Permits::Fixed(max), queue: None }
    }

    /// Returns whether it protects the service, because it is adaptive or has a queue. A fixed maximum without a queue is
    /// a quota of the client.
    #[must_use]
    pub fn protects_service(&self) -> bool {
        self.queue.is_some() || matches!(self.permits, Permits::Adaptive(_))
    }

    /// Returns the most that can ever be in flight.
    #[must_use]
    pub fn max(&self) -> u64 {
        match &self.permits {
            Permits::Fixed(max) => *max,
            Permits::Adaptive(adaptive) => adaptive.bounds.max().into(),
        }
    }
}

impl fmt::Display for ConcurrencyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.permits {
            Permits::Fixed(max) => write!(f, "{max} at a time")?,
            Permits::Adaptive(adaptive) => adaptive.fmt(f)?,
        }
        match &self.queue {
            Some(queue) => write!(f, ", queue of {} for {:?}", queue.max, queue.wait),
            None => Ok(()),
        }
    }
}

/// How many requests may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permits {
    /// A fixed number.
    Fixed(u64),
    /// A number that a controller learns, in each process.
    Adaptive(AdaptiveRule),
}

/// An adaptive concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveRule {
    /// The controller.
    pub algorithm: AdaptiveAlgorithm,
    /// The lowest, first and highest limit.
    pub bounds: Bounds,
    /// The latency that 90% of the requests should not exceed.
    pub target: Option<Duration>,
}

impl AdaptiveRule {
    /// Returns the configuration of the controller.
    #[must_use]
    pub fn config(&self) -> AdaptiveConfig {
        let config =
            AdaptiveConfig::DEFAULT.with_algorithm(self.algorithm).with_bounds(self.bounds);
        match self.target {
            Some(target) => config.with_target(target),
            None => config,
        }
    }
}

impl fmt::Display for AdaptiveRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (self.bounds.min(), self.bounds.max());
        write!(f, "adaptive, {min} to {max} at a time ({})", self.algorithm.name())
    }
}

/// A bounded queue for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRule {
    /// How many requests can wait.
    pub max: usize,
    /// How long a request waits at most.
    pub wait: Duration,
    /// Which of them is served next.
    pub order: QueueOrder,
}

/// Load shedding by priority class.
#[derive(Debug)]
pub struct SheddingRule {
    pub(crate) config: ShedderConfig,
    /// The user. Each request is a user of its own if the request has none of these.
    pub(crate) per: Vec<usize>,
}

impl SheddingRule {
    /// Returns the settings of the shedder. Its classes are those of [`Policy::classes`].
    #[must_use]
    pub fn config(&self) -> ShedderConfig {
        self.config
    }
}

/// What a shedder needs to know about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShedAttributes<'p> {
    /// The priority class.
    pub class: Class,
    /// Its name.
    pub class_name: &'p str,
    /// The hash of the user. `None` if the request has none: use random bits.
    pub user_hash: Option<u64>,
}

/// A dependency: what is called, and how that is protected.
#[derive(Debug)]
pub struct DependencyRule {
    pub(crate) id: usize,
    pub(crate) name: Arc<str>,
    pub(crate) on: Option<Condition>,
    pub(crate) is_per_upstream: bool,
    pub(crate) rate: Option<Limit>,
    pub(crate) concurrency: Option<ConcurrencyRule>,
    pub(crate) breaker: Option<BreakerConfig>,
}

impl DependencyRule {
    /// Returns the index of the dependency in [`Policy::dependencies`].
    #[must_use]
    pub fn id(&self) -> usize {
        self.id
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether it applies to requests that match a condition.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.on.is_some()
    }

    /// Returns whether each upstream of the gateway is protected by itself.
    #[must_use]
    pub fn is_per_upstream(&self) -> bool {
        self.is_per_upstream
    }

    /// Returns whether the gateway applies it to requests. Others are used by programs, by name.
    #[must_use]
    pub fn is_for_gateway(&self) -> bool {
        self.is_conditional() || self.is_per_upstream
    }

    /// Returns the maximum rate of calls.
    #[must_use]
    pub fn rate(&self) -> Option<&Limit> {
        self.rate.as_ref()
    }

    /// Returns how many calls may be in flight, and how many wait.
    #[must_use]
    pub fn concurrency(&self) -> Option<ConcurrencyRule> {
        self.concurrency
    }

    /// Returns when calls are stopped because most of them fail.
    #[must_use]
    pub fn breaker(&self) -> Option<BreakerConfig> {
        self.breaker
    }
}

impl fmt::Display for DependencyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate.as_ref().map(|limit| limit.rate().to_string());
        let concurrency = self.concurrency.map(|concurrency| concurrency.to_string());
        let breaker = self.breaker.map(|_| "circuit breaker".to_string());
        let parts: Vec<_> = [rate, concurrency, breaker].into_iter().flatten().collect();
        f.write_str(&parts.join("; "))?;
        if self.is_per_upstream { f.write_str("; for each upstream") } else { Ok(()) }
    }
}

impl Policy {
    /// Returns the names of the priority classes, the most important one first.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns how requests are shed under overload, if they are.
    ///
    /// ```
    /// # use ratekeeper_policy as ratekeeper;
    /// use ratekeeper::{NoSources, Policy};
    ///
    /// let policy = Policy::parse("policy.yaml", "
    /// version: 1
    /// priorities:
    ///   - { class: checkout, match: { path: /checkout } }
    ///   - { class: others }
    /// shedding: { queue_time: 20ms }
    /// limits: []
    /// ", &NoSources)?;
    /// assert_eq!(policy.shedding().unwrap().config().classes(), 2);
    /// # Ok::<(), ratekeeper_policy::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn shedding(&self) -> Option<&SheddingRule> {
        self.shedding.as_ref()
    }

    /// Returns the class and the user of a request that can be shed. `None` if the policy sheds no
    /// requests, or the request is exempt.
    ///
    /// Where servers may read the path in several ways, it is the least important class of all
    /// readings: otherwise a client could choose.
    #[must_use]
    pub fn shed_attributes(&self, request: &RequestAttributes<'_>) -> Option<ShedAttributes<'_>> {
        let rule = self.shedding.as_ref()?;
        let context = RequestContext::new(self, request);
        if self.exemption(&context).is_some() {
            return None;
        }
        let class = self.least_class(&context)?;
        let class_name = self.classes[class].as_str();
        let has_user = rule.per.iter().any(|id| context.value(*id).is_ok());
        let user_hash = has_user.then(|| user_hash(context.key(&rule.per).as_bytes()));
        let class = Class::new(u8::try_from(class).unwrap_or(u8::MAX));
        Some(ShedAttributes { class, class_name, user_hash })
    }

    /// Returns the least important class that a request has by any reading.
    fn least_class(&self, context: &RequestContext<'_, '_>) -> Option<usize> {
        let mut least = None;
        for (class, on) in &self.priorities {
            if on.mismatch(context).is_none() {
                least = least.max(Some(*class));
                if on.holds_by_all_readings(context) {
                    return least;
                }
            }
        }
        least.max(self.other_class)
    }

    /// Returns all dependencies, in file order.
    #[must_use]
    pub fn dependencies(&self) -> &[Arc<DependencyRule>] {
        &self.dependencies
    }

    /// Returns the dependencies that the gateway protects a request by: those whose condition matches, and
    /// those that every request needs because they are per upstream.
    ///
    /// ```
    /// # use ratekeeper_policy as ratekeeper;
    /// use ratekeeper::{NoSources, Policy, RequestAttributes};
    ///
    /// let policy = Policy::parse("policy.yaml", "
    /// version: 1
    /// dependencies:
    ///   inventory: { match: { path: /stock/** }, concurrency: 40 }
    /// limits: []
    /// ", &NoSources)?;
    /// assert_eq!(policy.dependencies_of(&RequestAttributes::new("GET", "/stock/1")).len(), 1);
    /// assert_eq!(policy.dependencies_of(&RequestAttributes::new("GET", "/")).len(), 0);
    /// # Ok::<(), ratekeeper_policy::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn dependencies_of(&self, request: &RequestAttributes<'_>) -> Vec<&Arc<DependencyRule>> {
        match self.dependencies.is_empty() {
            true => Vec::new(),
            false => self.dependencies_in(&RequestContext::new(self, request)),
        }
    }

    pub(crate) fn dependencies_in<'p>(
        &'p self,
        context: &RequestContext<'p, '_>,
    ) -> Vec<&'p Arc<DependencyRule>> {
        let applies = |rule: &&Arc<DependencyRule>| match &rule.on {
            Some(on) => on.mismatch(context).is_none(),
            None => rule.is_per_upstream,
        };
        self.dependencies.iter().filter(applies).collect()
    }
}
