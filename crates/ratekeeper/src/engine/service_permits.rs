//! Permits that are learned or waited for: those of limits that protect a service. They are of this process.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use arc_swap::ArcSwapOption;
use ratekeeper_control::{Overload, ShedderConfig};
use ratekeeper_core::Micros;
use ratekeeper_policy::{ConcurrencyRule, Key, LimitRule, Permits, SheddingRule};

use super::permits::InFlightPermit;
use crate::adaptive_limit::AdaptiveLimit;
use crate::bulkhead::{Bulkhead, BulkheadError, BulkheadStats};
use crate::clock::Clock;
use crate::queued_permits::PermitSettings;
use crate::shedder::Shedder;

/// How many keys of a limit have permits of their own. Further ones share some.
const KEYS_MAX: usize = 4096;

/// The clock of an engine.
#[derive(Clone)]
pub(crate) struct EngineClock(Arc<dyn Clock>);

impl EngineClock {
    pub(super) fn new(clock: Box<dyn Clock>) -> Self {
        Self(clock.into())
    }
}

impl Clock for EngineClock {
    #[inline]
    fn now(&self) -> Micros {
        self.0.now()
    }
}

/// A request for a permit of a limit.
#[derive(Clone, Copy)]
pub(crate) struct ServicePermitRequest<'a> {
    pub(crate) name: &'a Arc<str>,
    pub(crate) key: &'a [u8],
    /// Whether the limit counts all requests together.
    pub(crate) is_of_all: bool,
    pub(crate) rule: &'a ConcurrencyRule,
    /// Whether it waits in the queue of the limit.
    pub(crate) waits: bool,
}

/// The permits of limits that protect a service, by name, and what is shed when they are short. They outlive a policy.
pub(super) struct ServicePermits {
    clock: EngineClock,
    by_name: RwLock<HashMap<Arc<str>, Arc<LimitPermits>>>,
    shedder: Arc<ArcSwapOption<PolicyShedder>>,
}

struct PolicyShedder {
    config: ShedderConfig,
    shedder: Shedder<EngineClock>,
}

impl ServicePermits {
    pub(super) fn new(clock: EngineClock) -> Self {
        Self { clock, by_name: RwLock::default(), shedder: Arc::default() }
    }

    fn of(&self, name: &Arc<str>) -> Arc<LimitPermits> {
        let known = self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        known.unwrap_or_else(|| {
            let mut all = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
            all.entry(name.clone()).or_default().clone()
        })
    }

    pub(super) async fn acquire(
        &self,
        request: ServicePermitRequest<'_>,
    ) -> Result<InFlightPermit, BulkheadError> {
        let of = self.of(request.name).of_key(request, self);
        Ok(match &of {
            KeyPermits::Fixed(bulkhead) if request.waits => {
                InFlightPermit::Local(bulkhead.acquire().await?)
            }
            KeyPermits::Fixed(bulkhead) => InFlightPermit::Local(bulkhead.try_acquire()?),
            KeyPermits::Adaptive(limit) if request.waits => {
                InFlightPermit::Adaptive(limit.acquire().await?.into_owned())
            }
            KeyPermits::Adaptive(limit) => {
                InFlightPermit::Adaptive(limit.try_acquire()?.into_owned())
            }
        })
    }

    /// Sheds by these rules from now on. Without a change of the rules, what is shed stays as it is.
    pub(super) fn set_shedding(&self, rule: Option<&SheddingRule>) {
        let config = rule.map(SheddingRule::config);
        if self.shedder.load().as_ref().map(|known| known.config) == config {
            return;
        }
        let made = config.and_then(|config| {
            // A policy whose configuration is not possible is rejected.
            let shedder = Shedder::with_clock(config, self.clock.clone()).ok()?;
            Some(Arc::new(PolicyShedder { config, shedder }))
        });
        self.shedder.store(made);
    }

    pub(super) fn shedder(&self) -> Option<Shedder<EngineClock>> {
        self.shedder.load().as_ref().map(|known| known.shedder.clone())
    }

    /// Returns the permits of a key, as the rule says. They begin with a limit that was learned before.
    fn permits(
        &self,
        request: &ServicePermitRequest<'_>,
        counters: &LimitPermits,
    ) -> PermitSettings {
        let mut settings =
            PermitSettings::new(usize::try_from(request.rule.max()).unwrap_or(usize::MAX))
                .with_counters(&counters.settings);
        if let Some(queue) = request.rule.queue {
            settings = settings.with_queue(queue.max, queue.wait).with_order(queue.order);
        }
        // One client's queue is no overload of the service. Without a queue, an adaptive limit that is used up is as it
        // should be under load.
        if request.is_of_all && request.rule.queue.is_some() {
            let shedder = Arc::clone(&self.shedder);
            settings = settings.with_report(Arc::new(move |signal: Overload| {
                if let Some(known) = &*shedder.load() {
                    known.shedder.observe(signal);
                }
            }));
        }
        settings
    }

    fn build(
        &self,
        request: &ServicePermitRequest<'_>,
        of: &LimitPermits,
        learned: Option<usize>,
    ) -> KeyPermits {
        let settings = self.permits(request, of);
        let adaptive = match request.rule.permits {
            Permits::Fixed(_) => None,
            Permits::Adaptive(rule) => AdaptiveLimit::builder(rule.config()).ok(),
        };
        let Some(builder) = adaptive else {
            return KeyPermits::Fixed(Bulkhead::with_settings(settings));
        };
        let builder = builder.clock(self.clock.clone()).permits(settings);
        let builder = match learned {
            Some(limit) => builder.begin_with(limit),
            None => builder,
        };
        // Many keys have few requests each.
        let shards = if request.is_of_all { None } else { Some(1) };
        KeyPermits::Adaptive(builder.shards(shards).build())
    }
}

impl fmt::Debug for ServicePermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServicePermits").finish_non_exhaustive()
    }
}

/// The permits of a limit, by key.
struct LimitPermits {
    /// With the counters of all keys.
    settings: PermitSettings,
    keys: Mutex<HashMap<Box<[u8]>, KeyEntry>>,
}

impl Default for LimitPermits {
    fn default() -> Self {
        Self { settings: PermitSettings::new(1), keys: Mutex::default() }
    }
}

struct KeyEntry {
    rule: ConcurrencyRule,
    permits: KeyPermits,
}

#[derive(Clone)]
enum KeyPermits {
    Fixed(Bulkhead),
    Adaptive(AdaptiveLimit<EngineClock>),
}

impl LimitPermits {
    fn keys(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, KeyEntry>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_key(&self, request: ServicePermitRequest<'_>, all: &ServicePermits) -> KeyPermits {
        let mut keys = self.keys();
        if let Some(entry) = keys.get_mut(request.key) {
            if entry.rule != *request.rule {
                let learned = entry.permits.limit();
                entry.permits = all.build(&request, self, learned);
                entry.rule = *request.rule;
            }
            return entry.permits.clone();
        }
        let mut key = request.key;
        if keys.len() >= KEYS_MAX && !forget_idle(&mut keys) {
            key = b"\0others";
        }
        let new = || KeyEntry { rule: *request.rule, permits: all.build(&request, self, None) };
        keys.entry(key.into()).or_insert_with(new).permits.clone()
    }
}

/// Forgets one key without requests, and returns whether there was one.
fn forget_idle(keys: &mut HashMap<Box<[u8]>, KeyEntry>) -> bool {
    let idle = keys.iter().find(|(_, entry)| entry.permits.is_unused());
    let Some(key) = idle.map(|(key, _)| key.clone()) else { return false };
    keys.remove(&key).is_some()
}

impl KeyPermits {
    /// Returns whether no request holds or waits for a permit, and none is about to.
    fn is_unused(&self) -> bool {
        match self {
            Self::Fixed(bulkhead) => bulkhead.is_unused(),
            Self::Adaptive(limit) => limit.is_unused(),
        }
    }

    /// Returns the limit that was learned.
    fn limit(&self) -> Option<usize> {
        match self {
            Self::Fixed(_) => None,
            Self::Adaptive(limit) => Some(limit.limit()),
        }
    }

    fn stats(&self) -> BulkheadStats {
        match self {
            Self::Fixed(bulkhead) => bulkhead.stats(),
            Self::Adaptive(limit) => limit.stats().permits,
        }
    }
}

/// What happened at a concurrency limit that is adaptive or has a queue, for metrics.
///
/// ```
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// assert!(limiter.engine().concurrency_stats().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConcurrencyStats {
    /// The name of the limit.
    pub name: Arc<str>,
    /// Of all keys together. The number of permits is that of the key that has the fewest.
    pub permits: BulkheadStats,
}

impl ServicePermits {
    /// Returns what happened at each limit, by name.
    pub(super) fn stats(&self) -> Vec<ConcurrencyStats> {
        let all = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        let mut stats: Vec<_> = all
            .iter()
            .map(|(name, of)| ConcurrencyStats { name: name.clone(), permits: of.stats() })
            .collect();
        stats.sort_by(|one, other| one.name.cmp(&other.name));
        stats
    }

    /// Prepares the permits of a limit, so that there are metrics of it before its first request.
    pub(super) fn prepare(&self, limit: &LimitRule) {
        let Some(rule) = limit.service_permits() else { return };
        let name = limit.shared_name();
        let permits = self.of(name);
        if limit.is_of_all() {
            let key = Key::of_all();
            let request = ServicePermitRequest {
                name,
                key: key.as_bytes(),
                is_of_all: true,
                rule,
                waits: false,
            };
            let _ = permits.of_key(request, self);
        }
    }

    /// Forgets the limits that are in no policy any more.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        let mut all = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|name, _| is_known(name));
    }
}

impl LimitPermits {
    fn stats(&self) -> BulkheadStats {
        let mut sum = self.settings.clone().build().stats(0);
        sum.permits_max = usize::MAX;
        let keys = self.keys();
        for entry in keys.values() {
            let stats = entry.permits.stats();
            sum.permits_max = sum.permits_max.min(stats.permits_max);
            sum.in_flight += stats.in_flight;
            sum.waiting += stats.waiting;
            sum.admitted += stats.admitted;
        }
        if keys.is_empty() {
            sum.permits_max = 0;
        }
        sum
    }
}
