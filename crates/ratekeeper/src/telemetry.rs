//! Counters of what each limit of a policy decided, and an observer of every decision.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ratekeeper_core::{Decision, Micros};
use ratekeeper_policy::{AppliedLimit, LimitRule, Policy};

use crate::near_limit::NearLimit;
use crate::policy_handle::ActivePolicy;

/// Counters of one limit.
///
/// ```
/// use ratekeeper::policy::RequestAttributes;
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("1/minute")?)?;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// for _ in 0..3 {
///     let _ = limiter.decide(&RequestAttributes::new("GET", "/")).await;
/// }
/// let stats = &limiter.telemetry().limits()[0];
/// assert_eq!((stats.allowed, stats.denied), (1, 2));
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStats {
    /// The name of the limit.
    pub name: Arc<str>,
    /// Requests that it allowed.
    pub allowed: u64,
    /// Allowed requests that came when the limit was nearly used up ([`NearLimit`]).
    pub near_limit: u64,
    /// Allowed requests that were admitted by a guarantee, if the limit has guarantees.
    pub guaranteed: u64,
    /// Allowed requests that were admitted by borrowing, if the limit has guarantees.
    pub borrowed: u64,
    /// Requests that it denied.
    pub denied: u64,
    /// Requests that it would have denied, but for shadow mode.
    pub shadow_denied: u64,
    /// Responses whose usage it charges (`cost: { usage }`); all 0 for other limits.
    pub metered: MeteredStats,
}

/// How often the usage that a limit charges was known.
///
/// ```
/// use ratekeeper::telemetry::MeteredStats;
///
/// fn is_blind(stats: &MeteredStats) -> bool {
///     stats.unstated + stats.encoded > stats.settled
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeteredStats {
    /// The response stated its usage, which was charged.
    pub settled: u64,
    /// The response was complete and stated no usage. The estimate stays charged.
    pub unstated: u64,
    /// The response was cut before its usage was known. At least the estimate is charged.
    pub interrupted: u64,
    /// The response was compressed, so that it could not be read. The estimate stays charged.
    pub encoded: u64,
    /// The response was an error without usage. The estimate was refunded.
    pub refunded: u64,
}

/// What became of the charge of a response whose usage a limit charges. See [`MeteredStats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeteredOutcome {
    Settled,
    Unstated,
    Interrupted,
    Encoded,
    Refunded,
}

/// The decision of one limit on one request.
///
/// ```
/// use ratekeeper::telemetry::DecisionEvent;
///
/// fn log(event: &DecisionEvent<'_>) {
///     println!("{} {:?} {}", event.limit, event.outcome, String::from_utf8_lossy(event.key));
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecisionEvent<'a> {
    /// The name of the limit.
    pub limit: &'a str,
    /// The key that the request was counted under.
    pub key: &'a [u8],
    /// What was decided.
    pub outcome: Outcome,
    /// When.
    pub at: Micros,
}

/// What a limit decided.
///
/// ```
/// use ratekeeper::telemetry::Outcome;
///
/// fn label(outcome: Outcome) -> &'static str {
///     match outcome {
///         Outcome::Allowed => "allowed",
///         Outcome::Denied => "denied",
///         Outcome::ShadowDenied => "shadow_denied",
///     }
/// }
/// # assert_eq!(label(Outcome::Denied), "denied");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request was allowed.
    Allowed,
    /// The request was denied.
    Denied,
    /// The request would have been denied, but for shadow mode.
    ShadowDenied,
}

type DecisionObserver = Box<dyn Fn(&DecisionEvent<'_>) + Send + Sync>;

/// Counts what the limits of a policy decide. Counters are kept by the name of the limit, so that a reload
/// does not reset them.
///
/// ```
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// for stats in limiter.telemetry().limits() {
///     println!("{}: {} allowed, {} denied", stats.name, stats.allowed, stats.denied);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Telemetry {
    by_name: Mutex<BTreeMap<Arc<str>, Arc<LimitCounters>>>,
    exempt: AtomicU64,
    near_limit: OnceLock<NearLimit>,
    observer: OnceLock<DecisionObserver>,
}

#[derive(Debug, Default)]
pub(crate) struct LimitCounters {
    allowed: AtomicU64,
    near_limit: AtomicU64,
    guaranteed: AtomicU64,
    borrowed: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
    /// By [`MeteredOutcome`].
    metered: [AtomicU64; 5],
}

impl LimitCounters {
    /// Counts a response whose usage the limit charges.
    #[cfg(feature = "tower")]
    pub(crate) fn count_metered(&self, outcome: MeteredOutcome, limit: &str) {
        let before = self.metered[outcome as usize].fetch_add(1, Ordering::Relaxed);
        if outcome == MeteredOutcome::Encoded && before == 0 {
            tracing::warn!(
                limit,
                "a response is compressed although that was not accepted, so its usage is not known and the \
                 estimate stays charged"
            );
        }
    }

    fn metered(&self) -> MeteredStats {
        let count = |of: MeteredOutcome| self.metered[of as usize].load(Ordering::Relaxed);
        MeteredStats {
            settled: count(MeteredOutcome::Settled),
            unstated: count(MeteredOutcome::Unstated),
            interrupted: count(MeteredOutcome::Interrupted),
            encoded: count(MeteredOutcome::Encoded),
            refunded: count(MeteredOutcome::Refunded),
        }
    }

    pub(crate) fn count_denied(&self) {
        self.denied.fetch_add(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").field("limits", &self.limits()).finish_non_exhaustive()
    }
}

impl Telemetry {
    /// Returns the counters of every limit, by name.
    pub fn limits(&self) -> Vec<LimitStats> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stats = |(name, counters): (&Arc<str>, &Arc<LimitCounters>)| LimitStats {
            name: name.clone(),
            allowed: read(&counters.allowed),
            near_limit: read(&counters.near_limit),
            guaranteed: read(&counters.guaranteed),
            borrowed: read(&counters.borrowed),
            denied: read(&counters.denied),
            shadow_denied: read(&counters.shadow_denied),
            metered: counters.metered(),
        };
        self.lock().iter().map(stats).collect()
    }

    /// Returns how many requests were exempt.
    pub fn exempt(&self) -> u64 {
        self.exempt.load(Ordering::Relaxed)
    }

    /// Sets from which ratio on a limit counts as nearly used up. Only the first call has an effect.
    pub fn set_near_limit(&self, ratio: NearLimit) {
        let _ = self.near_limit.set(ratio);
    }

    /// Calls `observer` with every decision of a limit of the policy, from now on. The request waits while
    /// it runs. Only the first observer is kept.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use ratekeeper::telemetry::Outcome;
    /// use ratekeeper::{Policy, PolicyLimiter};
    ///
    /// static DENIED: AtomicU64 = AtomicU64::new(0);
    /// let limiter = PolicyLimiter::new(Policy::one_line("2/minute per ip")?)?;
    /// limiter.telemetry().on_decision(|decision| {
    ///     if decision.outcome == Outcome::Denied {
    ///         DENIED.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_decision(&self, observer: impl Fn(&DecisionEvent<'_>) + Send + Sync + 'static) {
        let _ = self.observer.set(Box::new(observer));
    }

    /// Returns the counters of each limit of a policy, by the limit's id. Counters of limits that are gone
    /// are dropped, so that a file whose names change does not fill the memory.
    pub(crate) fn counters_of(&self, policy: &Policy) -> Vec<Arc<LimitCounters>> {
        let mut by_name = self.lock();
        let of =
            |rule: &Arc<LimitRule>| by_name.entry(rule.shared_name().clone()).or_default().clone();
        let counters: Vec<_> = policy.limits().iter().map(of).collect();
        by_name.retain(|name, _| policy.limits().iter().any(|rule| rule.shared_name() == name));
        counters
    }

    pub(crate) fn count_exempt(&self) {
        self.exempt.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what a limit decided, and calls the observer.
    pub(crate) fn record(
        &self,
        policy: &ActivePolicy,
        limit: &AppliedLimit,
        outcome: Outcome,
        at: Micros,
    ) {
        let counters = policy.counters(&limit.rule);
        let counter = match outcome {
            Outcome::Allowed => &counters.allowed,
            Outcome::Denied => &counters.denied,
            Outcome::ShadowDenied => &counters.shadow_denied,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(observer) = self.observer.get() {
            let (name, key) = (limit.rule.name(), limit.key.as_bytes());
            observer(&DecisionEvent { limit: name, key, outcome, at });
        }
    }

    /// Counts an allowed request, with the decision of the limit if it has one.
    pub(crate) fn record_allowed(
        &self,
        policy: &ActivePolicy,
        limit: &AppliedLimit,
        decision: Option<&Decision>,
        at: Micros,
    ) {
        self.record(policy, limit, Outcome::Allowed, at);
        let ratio = self.near_limit.get().copied().unwrap_or_default();
        if decision.is_some_and(|decision| ratio.is_near(decision)) {
            policy.counters(&limit.rule).near_limit.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(decision) = decision.filter(|_| limit.guaranteed_limit().is_some()) {
            let counters = policy.counters(&limit.rule);
            let counter =
                if decision.is_borrowed() { &counters.borrowed } else { &counters.guaranteed };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<LimitCounters>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
