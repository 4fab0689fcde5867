//! What limits have done: counted by name, so that a reload loses nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ratekeeper_core::{Decision, Micros};
use ratekeeper_policy::AppliedLimit;

use super::live::Live;
use super::near::NearLimit;
use super::seen::{Listener, Outcome, Seen};

/// What a limit has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitStats {
    /// Its name.
    pub name: Arc<str>,
    /// Requests that it let pass.
    pub allowed: u64,
    /// Those of them that came when it was nearly used up.
    pub near_limit: u64,
    /// Requests that it refused.
    pub denied: u64,
    /// Requests that it would have refused, were it enforced.
    pub shadow_denied: u64,
}

/// The policy in force, and what has become of attempts to replace it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// How many policies have been in force so far.
    pub version: u64,
    /// When this one was loaded.
    pub at: Micros,
    /// How many could not be loaded.
    pub failures: u64,
    /// What was wrong with the last one, if no good one has come since.
    pub error: Option<String>,
    /// When that was.
    pub failed_at: Option<Micros>,
}

#[derive(Debug, Default)]
pub(crate) struct Meter {
    allowed: AtomicU64,
    near_limit: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
}

impl Meter {
    pub(crate) fn count_allowed(&self) {
        self.allowed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_near_limit(&self) {
        self.near_limit.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_denied(&self) {
        self.denied.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_shadow_denied(&self) {
        self.shadow_denied.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(crate) struct Meters {
    by_name: Mutex<BTreeMap<Arc<str>, Arc<Meter>>>,
    exempt: AtomicU64,
    loaded: Mutex<Loaded>,
    near_limit: OnceLock<NearLimit>,
    listener: OnceLock<Listener>,
}

impl Meters {
    pub(crate) fn of(&self, name: &Arc<str>) -> Arc<Meter> {
        lock(&self.by_name).entry(name.clone()).or_default().clone()
    }

    /// Limits that are gone are forgotten, or a file that changes names would fill the memory.
    pub(crate) fn keep_only(&self, is_there: impl Fn(&str) -> bool) {
        lock(&self.by_name).retain(|name, _| is_there(name));
    }

    /// Counts what a limit has said, and tells those who want to know.
    pub(crate) fn note(&self, live: &Live, of: &AppliedLimit, outcome: Outcome, at: Micros) {
        let meter = live.meter(&of.rule);
        match outcome {
            Outcome::Allowed => meter.count_allowed(),
            Outcome::Denied => meter.count_denied(),
            Outcome::ShadowDenied => meter.count_shadow_denied(),
        }
        if let Some(listener) = self.listener.get() {
            listener(&Seen { limit: of.rule.name(), key: of.key.as_bytes(), outcome, at });
        }
    }

    /// Is that limit nearly used up?
    pub(crate) fn is_near(&self, decision: &Decision) -> bool {
        self.near_limit.get().copied().unwrap_or_default().is_near(decision)
    }

    pub(crate) fn near_from(&self, near_limit: NearLimit) {
        let _ = self.near_limit.set(near_limit);
    }

    pub(crate) fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    pub(crate) fn count_exempt(&self) {
        self.exempt.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn exempt(&self) -> u64 {
        self.exempt.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> Vec<LimitStats> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stats = |(name, meter): (&Arc<str>, &Arc<Meter>)| LimitStats {
            name: name.clone(),
            allowed: read(&meter.allowed),
            near_limit: read(&meter.near_limit),
            denied: read(&meter.denied),
            shadow_denied: read(&meter.shadow_denied),
        };
        lock(&self.by_name).iter().map(stats).collect()
    }

    pub(crate) fn loaded(&self, at: Micros) {
        let mut loaded = lock(&self.loaded);
        *loaded =
            Loaded { version: loaded.version + 1, at, error: None, failed_at: None, ..*loaded };
    }

    pub(crate) fn failed(&self, error: String, at: Micros) {
        let mut loaded = lock(&self.loaded);
        loaded.failures += 1;
        loaded.error = Some(error);
        loaded.failed_at = Some(at);
    }

    pub(crate) fn status(&self) -> Loaded {
        lock(&self.loaded).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
