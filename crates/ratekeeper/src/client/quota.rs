//! What is known of a server's quota: whether it is paused, what remains of it, and what was retried.
//!
//! A quota is what the server counts together: requests to the same host with the same credential, unless the program
//! says otherwise. All requests of a quota share one [`Quota`].

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use ratekeeper_control::{LearnedQuota, ResponseHints, RetryBudget, Throttle};
use ratekeeper_core::Micros;

use super::stats::WaitReason;

/// How many quotas are remembered. Above that, idle ones are forgotten.
const QUOTAS_MAX: usize = 10_000;

/// The part of a pause, at most a second, over which processes come back.
const SPREAD_PART: u32 = 10;
const SPREAD_MAX: Duration = Duration::from_secs(1);

/// The state of one quota.
pub(super) struct Quota {
    state: Mutex<QuotaState>,
    /// The name by which processes share its pauses.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "there is one process"))]
    pub(super) shared_key: Option<Box<[u8]>>,
    /// Held by the request that waits longest. It is fair, and a request that is cancelled leaves it.
    pub(super) turn: tokio::sync::Mutex<()>,
    waiting: AtomicUsize,
    /// Whether requests may have to wait for the server. If not, they do not take the lock. It changes only under the lock.
    is_constrained: AtomicBool,
    /// What was sent and has no response yet.
    requests_in_flight: AtomicU64,
    tokens_in_flight: AtomicU64,
}

/// What changes with requests and responses.
pub(super) struct QuotaState {
    paused_until: Micros,
    recovery: Option<Recovery>,
    requests: LearnedQuota,
    tokens: LearnedQuota,
    pub(super) budget: RetryBudget,
    pub(super) throttle: Option<Throttle>,
    /// When pauses of other processes were last looked for.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "there is one process"))]
    pub(super) looked_at: Option<Micros>,
    /// When the request that waits longest expects to be sent, and how long after it each of the others.
    pub(super) next_at: Micros,
    pub(super) next_interval: Duration,
}

/// After a pause, requests are sent one by one instead of all at once.
struct Recovery {
    next: Micros,
    /// How many were sent since.
    sent: u32,
    /// Until then also if none waits: those that the pause has interrupted are not all back yet.
    until: Micros,
}

/// Why a request cannot be sent now, and until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) until: Micros,
    pub(super) reason: WaitReason,
}

impl Quota {
    pub(super) fn new(
        budget: RetryBudget,
        throttle: Option<Throttle>,
        shared_key: Option<Box<[u8]>>,
    ) -> Self {
        let state = QuotaState {
            paused_until: Micros::new(0),
            recovery: None,
            requests: LearnedQuota::default(),
            tokens: LearnedQuota::default(),
            budget,
            throttle,
            looked_at: None,
            next_at: Micros::new(0),
            next_interval: Duration::ZERO,
        };
        Self {
            state: Mutex::new(state),
            shared_key,
            turn: tokio::sync::Mutex::new(()),
            waiting: AtomicUsize::new(0),
            is_constrained: AtomicBool::new(false),
            requests_in_flight: AtomicU64::new(0),
            tokens_in_flight: AtomicU64::new(0),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, QuotaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many requests wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a request that waits, until the guard is dropped.
    pub(super) fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting { quota: Arc::clone(self) }
    }

    /// Returns why a request that is expected to use this many tokens cannot be sent now; if it can be, how many were
    /// sent since a pause, as long as they are sent one by one.
    pub(super) fn check(&self, tokens: u64, now: Micros) -> Result<Option<u32>, Hold> {
        if !self.is_constrained.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let state = self.state();
        state.check(tokens, now)?;
        self.is_constrained.store(state.is_constrained(), Ordering::Relaxed);
        Ok(state.recovery.as_ref().map(|recovery| recovery.sent))
    }

    /// Whether a request has no response yet.
    pub(super) fn is_in_flight(&self) -> bool {
        self.requests_in_flight.load(Ordering::Relaxed) > 0
    }

    /// Counts a request that is sent. While the quota recovers, the next one follows after `interval`; `is_last` says
    /// that no other waits.
    pub(super) fn send(&self, tokens: u64, now: Micros, interval: Duration, is_last: bool) {
        self.requests_in_flight.fetch_add(1, Ordering::Relaxed);
        if tokens > 0 {
            self.tokens_in_flight.fetch_add(tokens, Ordering::Relaxed);
        }
        if self.is_constrained.load(Ordering::Relaxed) {
            self.state().send(tokens, now, interval, is_last);
        }
    }

    /// Counts that a request has its response, or will have none.
    pub(super) fn end(&self, tokens: u64) {
        self.requests_in_flight.fetch_sub(1, Ordering::Relaxed);
        if tokens > 0 {
            self.tokens_in_flight.fetch_sub(tokens, Ordering::Relaxed);
        }
    }

    /// Learns what a response says remains.
    pub(super) fn learn(&self, hints: &ResponseHints, now: Micros) {
        let hints =
            [(&hints.requests, &self.requests_in_flight), (&hints.tokens, &self.tokens_in_flight)];
        let [requests, tokens] = hints.map(|(hint, in_flight)| {
            hint.as_ref().map(|hint| (hint, in_flight.load(Ordering::Relaxed)))
        });
        if requests.is_none() && tokens.is_none() {
            return;
        }
        let mut state = self.state();
        if let Some((hint, in_flight)) = requests {
            state.requests.observe(hint, in_flight, now);
        }
        if let Some((hint, in_flight)) = tokens {
            state.tokens.observe(hint, in_flight, now);
        }
        self.is_constrained.store(state.is_constrained(), Ordering::Relaxed);
    }

    /// Pauses the quota for this long, and a little longer, so that processes do not come back together. Returns
    /// whether it is paused for longer than before.
    pub(super) fn pause(&self, wait: Duration, now: Micros, random: u64) -> bool {
        let mut state = self.state();
        let is_longer = state.pause(wait, now, random);
        self.is_constrained.store(true, Ordering::Relaxed);
        is_longer
    }

    /// Whether nothing is known that has to be remembered.
    fn is_idle(&self, now: Micros) -> bool {
        let state = self.state();
        let is_learned =
            [&state.requests, &state.tokens].iter().any(|one| one.wait(1, now).is_some());
        state.paused_until <= now && !is_learned
    }
}

/// A request that waits.
pub(super) struct Waiting {
    quota: Arc<Quota>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.quota.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl QuotaState {
    /// Returns why a request that is expected to use this many tokens cannot be sent now.
    fn check(&self, tokens: u64, now: Micros) -> Result<(), Hold> {
        let hold = |until, reason| Err(Hold { until, reason });
        if now < self.paused_until {
            return hold(self.paused_until, WaitReason::Paused);
        }
        if let Some(recovery) = &self.recovery
            && now < recovery.next
        {
            return hold(recovery.next, WaitReason::Recovery);
        }
        let waits = [self.requests.wait(1, now), self.tokens.wait(tokens.max(1), now)];
        match waits.into_iter().flatten().max() {
            Some(wait) => hold(now.after(wait), WaitReason::ServerQuota),
            None => Ok(()),
        }
    }

    /// Whether requests may have to wait. A quota recovers after each pause, so it is not paused if it does not recover.
    fn is_constrained(&self) -> bool {
        self.recovery.is_some() || self.requests.is_known() || self.tokens.is_known()
    }

    fn send(&mut self, tokens: u64, now: Micros, interval: Duration, is_last: bool) {
        self.requests.charge(1, now);
        self.tokens.charge(tokens, now);
        match &mut self.recovery {
            Some(recovery) if is_last && now >= recovery.until => self.recovery = None,
            Some(recovery) => {
                recovery.next = recovery.next.max(now).after(interval);
                recovery.sent = recovery.sent.saturating_add(1);
            }
            None => {}
        }
    }

    fn pause(&mut self, wait: Duration, now: Micros, random: u64) -> bool {
        let until = now.after(wait);
        if until <= self.paused_until {
            return false;
        }
        self.paused_until = until;
        let spread = (wait / SPREAD_PART).min(SPREAD_MAX);
        let jitter = Duration::from_micros(random % (spread.as_micros() as u64).max(1));
        self.recovery =
            Some(Recovery { next: until.after(jitter), sent: 0, until: until.after(2 * spread) });
        true
    }
}

/// The quotas, by a hash of what the server counts together.
#[derive(Default)]
pub(super) struct QuotaTable {
    quotas: RwLock<HashMap<u64, Arc<Quota>, Hashed>>,
    hasher: foldhash::fast::RandomState,
}

impl QuotaTable {
    /// Returns the hash of what the server counts together, in parts.
    pub(super) fn hash<'p>(&self, parts: impl IntoIterator<Item = &'p [u8]>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for part in parts {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
        hasher.finish()
    }

    /// Returns a quota, which is made if it is not known.
    pub(super) fn get(&self, hash: u64, now: Micros, make: impl FnOnce() -> Quota) -> Arc<Quota> {
        let known = self.quotas.read().unwrap_or_else(PoisonError::into_inner).get(&hash).cloned();
        known.unwrap_or_else(|| {
            let mut quotas = self.quotas.write().unwrap_or_else(PoisonError::into_inner);
            if quotas.len() >= QUOTAS_MAX {
                quotas.retain(|_, quota| Arc::strong_count(quota) > 1 || !quota.is_idle(now));
            }
            if quotas.len() >= QUOTAS_MAX && !quotas.contains_key(&hash) {
                // All are in use. This request has one of its own, that no other shares.
                return Arc::new(make());
            }
            quotas.entry(hash).or_insert_with(|| Arc::new(make())).clone()
        })
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.quotas.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The key is a hash already.
#[derive(Clone, Copy, Default)]
struct Hashed;

struct HashedKey(u64);

impl BuildHasher for Hashed {
    type Hasher = HashedKey;

    fn build_hasher(&self) -> HashedKey {
        HashedKey(0)
    }
}

impl Hasher for HashedKey {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64")
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota() -> Quota {
        Quota::new(RetryBudget::default(), None, None)
    }

    #[test]
    fn idle_quotas_are_forgotten_and_paused_ones_are_not() {
        let table = QuotaTable::default();
        let now = Micros::new(1_000_000);
        let paused = table.get(7, now, quota);
        assert!(paused.pause(Duration::from_secs(60), now, 0));
        for hash in 100..100 + 2 * QUOTAS_MAX as u64 {
            table.get(hash, now, quota);
        }
        assert!(table.len() <= QUOTAS_MAX);
        assert!(Arc::ptr_eq(&paused, &table.get(7, now, quota)));
    }

    #[test]
    fn quotas_beyond_the_bound_are_not_kept() {
        let table = QuotaTable::default();
        let now = Micros::new(1_000_000);
        let in_use: Vec<_> =
            (0..QUOTAS_MAX as u64).map(|hash| table.get(hash, now, quota)).collect();
        in_use.iter().for_each(|quota| quota.send(1, now, Duration::ZERO, true));
        table.get(1 << 40, now, quota);
        assert_eq!(table.len(), QUOTAS_MAX);
    }

    #[test]
    fn after_a_pause_requests_are_sent_one_by_one_until_all_are_back() {
        let quota = quota();
        let (now, wait) = (Micros::new(1_000_000), Duration::from_secs(10));
        assert!(quota.pause(wait, now, u64::MAX));
        assert!(!quota.pause(wait / 2, now, 0), "it is paused for longer already");
        let hold = quota.check(1, now).unwrap_err();
        assert_eq!((hold.reason, hold.until), (WaitReason::Paused, now.after(wait)));
        let hold = quota.check(1, now.after(wait)).unwrap_err();
        assert_eq!(hold.reason, WaitReason::Recovery);
        assert!(hold.until.since(now.after(wait)) <= SPREAD_MAX);
        let first = hold.until;
        let interval = Duration::from_millis(10);
        assert!(quota.check(1, first).is_ok());
        quota.send(1, first, interval, false);
        assert_eq!(quota.check(1, first).unwrap_err().until, first.after(interval));
        quota.send(1, first.after(interval), interval, true);
        assert!(quota.check(1, first.after(interval)).is_err(), "others may come back");
        let later = now.after(wait + 2 * SPREAD_MAX);
        quota.send(1, later, interval, true);
        assert!(quota.check(1, later).is_ok(), "none waits");
    }
}
