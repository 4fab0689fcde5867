//! The refusal log: recent refusals, refusals that shadow mode prevented, and samples of admissions, each with what it
//! was computed from.
//!
//! Memory is bounded: by [`RefusalSettings::capacity`] records of at most 3 KiB. A decision never waits for the log: if
//! another thread is adding to the same part of it, the record is dropped and counted. Of a key that is refused very
//! often, a thread records the first 16 refusals of a second, and of a limit the first 256. While the log is full, a
//! new record replaces the oldest one of its key, if that has many, or of the limit that has the most.
//!
//! ```
//! use ratekeeper::policy::RequestAttributes;
//! use ratekeeper::refusals::{RecordedReason, RefusalFilter};
//! use ratekeeper::{Policy, PolicyLimiter};
//!
//! let limiter = PolicyLimiter::new(Policy::one_line("1/minute per ip")?)?;
//! let request = RequestAttributes { peer: Some([192, 0, 2, 1].into()), ..RequestAttributes::new("GET", "/") };
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! while limiter.decide(&request).await.is_admitted() {}
//! let refusal = &limiter.refusals().recent(&RefusalFilter::default())[0];
//! assert_eq!(refusal.key.to_string(), "ip=192.0.2.1");
//! let RecordedReason::Rate { decision, inputs: Some(inputs), .. } = &refusal.reason else { panic!() };
//! assert_eq!(inputs.decide(), Some(*decision), "the same decision again");
//! # });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod record;
mod recorder;
mod ring;
mod sampler;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ratekeeper_core::Micros;
use ratekeeper_policy::{RefusalKeys, RefusalSettings};

use crate::request_id::RequestIds;
use crate::telemetry::Outcome;
use ring::Ring;
use sampler::Sampler;

pub use record::{Decided, Details, RecordedKey, RecordedReason, RefusalRecord, RulePlace};
pub(crate) use recorder::Recorder;

/// The number of parts, each with a lock of its own. A key belongs to one of them.
const PARTS: usize = 16;
/// Of the capacity, the share of admissions.
const ADMISSIONS_SHARE: usize = 8;

/// Remembers recent refusals. A [`PolicyLimiter`](crate::PolicyLimiter) has one, which all listeners feed.
pub struct RefusalLog {
    hasher: RandomState,
    /// Of the keys, if they are hashed.
    key_hasher: RandomState,
    keys: AtomicU8,
    capacity: AtomicUsize,
    refused: [Mutex<Ring>; PARTS],
    admitted: Mutex<Ring>,
    ids: RequestIds,
    recorded: AtomicU64,
    sampled_out: AtomicU64,
    dropped: AtomicU64,
}

/// Counters of a [`RefusalLog`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusalLogStats {
    /// Decisions that were recorded.
    pub recorded: u64,
    /// Refusals that were not recorded, because there were many of the same key or limit.
    pub sampled_out: u64,
    /// Decisions that were not recorded, because another thread was adding to the same part of the log.
    pub dropped: u64,
    /// How many records there are.
    pub records: usize,
    /// How many there can be.
    pub capacity: usize,
}

/// Which refusals to return. The default is all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusalFilter<'a> {
    /// Only of this key. Where keys are plain, the value in a key such as `ip=192.0.2.1` will do.
    pub key: Option<&'a [u8]>,
    /// Only of this limit.
    pub limit: Option<&'a str>,
    /// Only at this time or later.
    pub since: Micros,
    /// Only with this outcome. Without one, admissions are left out.
    pub outcome: Option<Outcome>,
}

thread_local! {
    static SAMPLER: Sampler = const { Sampler::new() };
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self::new(RefusalSettings::default())
    }
}

impl std::fmt::Debug for RefusalLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RefusalLog").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl RefusalLog {
    /// Returns an empty log.
    #[must_use]
    pub fn new(settings: RefusalSettings) -> Self {
        Self {
            hasher: RandomState::new(),
            key_hasher: RandomState::new(),
            keys: AtomicU8::new(settings.keys as u8),
            capacity: AtomicUsize::new(settings.capacity),
            refused: std::array::from_fn(|_| Mutex::default()),
            admitted: Mutex::default(),
            ids: RequestIds::default(),
            recorded: AtomicU64::new(0),
            sampled_out: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Changes the settings. What was recorded of keys before stays.
    pub(crate) fn configure(&self, settings: RefusalSettings) {
        self.keys.store(settings.keys as u8, Ordering::Relaxed);
        if self.capacity.swap(settings.capacity, Ordering::Relaxed) > settings.capacity {
            for part in &self.refused {
                lock(part).shrink(part_of(settings.capacity));
            }
            lock(&self.admitted).shrink(admissions_of(settings.capacity));
        }
    }

    /// Returns a new id for a request that has none.
    pub fn new_request_id(&self) -> Arc<str> {
        self.ids.generate_text()
    }

    /// Records a refusal, unless many of the same key or limit were recorded within the last second. `details` is
    /// called if it is.
    pub fn record(&self, decided: &Decided<'_>, details: impl FnOnce() -> Details) {
        let capacity = self.capacity.load(Ordering::Relaxed);
        if capacity == 0 {
            return;
        }
        let hashes = self.hashes(decided);
        let at_us = decided.at.get();
        if !SAMPLER.with(|sampler| sampler.takes_refusal(hashes.0, hashes.1, at_us)) {
            self.sampled_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let record = Arc::new(self.new_record(decided, details()));
        let first = (hashes.0 >> 32) as usize % PARTS;
        // A reader has at most one part locked.
        let parts = [&self.refused[first], &self.refused[(first + 1) % PARTS]];
        self.add(&parts, hashes, record, part_of(capacity));
    }

    /// Records an admission now and then.
    #[inline]
    pub fn sample(&self, decided: &Decided<'_>, details: impl FnOnce() -> Details) {
        if SAMPLER.with(Sampler::is_admission_due) {
            self.record_admission(decided, details);
        }
    }

    #[cold]
    fn record_admission(&self, decided: &Decided<'_>, details: impl FnOnce() -> Details) {
        let capacity = admissions_of(self.capacity.load(Ordering::Relaxed));
        if capacity == 0 || !SAMPLER.with(|sampler| sampler.takes_admission(decided.at.get())) {
            return;
        }
        let record = Arc::new(self.new_record(decided, details()));
        self.add(&[&self.admitted], self.hashes(decided), record, capacity);
    }

    fn add(
        &self,
        parts: &[&Mutex<Ring>],
        hashes: (u64, u64),
        record: Arc<RefusalRecord>,
        capacity: usize,
    ) {
        let Some(mut part) = parts.iter().find_map(|part| part.try_lock().ok()) else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let replaced = part.add(hashes, record, capacity);
        drop(part);
        drop(replaced);
        self.recorded.fetch_add(1, Ordering::Relaxed);
    }

    fn new_record(&self, decided: &Decided<'_>, details: Details) -> RefusalRecord {
        let Details { reason, is_degraded, rule, policy_version } = details;
        RefusalRecord {
            at: decided.at,
            request_id: decided.request_id.map_or_else(|| self.new_request_id(), Arc::clone),
            outcome: decided.outcome,
            limit: decided.limit_name(),
            rule,
            key: self.recorded_key(decided.key),
            reason,
            is_degraded,
            protocol: decided.protocol,
            policy_version,
        }
    }

    fn recorded_key(&self, key: &[u8]) -> RecordedKey {
        match self.keys() {
            RefusalKeys::Plain => RecordedKey::plain(key),
            RefusalKeys::Hashed => RecordedKey::Hashed(self.key_hasher.hash_one(key)),
            RefusalKeys::Off => RecordedKey::Off,
        }
    }

    /// Returns what is kept of keys.
    pub fn keys(&self) -> RefusalKeys {
        match self.keys.load(Ordering::Relaxed) {
            0 => RefusalKeys::Plain,
            1 => RefusalKeys::Hashed,
            _ => RefusalKeys::Off,
        }
    }

    /// Returns the hashes of a key and of its limit.
    fn hashes(&self, decided: &Decided<'_>) -> (u64, u64) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(decided.limit.as_bytes());
        hasher.write_u8(0xff);
        let limit = hasher.finish();
        hasher.write(decided.key);
        (hasher.finish(), limit)
    }

    /// Returns the records of a request, the latest first.
    pub fn find(&self, request_id: &str) -> Vec<Arc<RefusalRecord>> {
        self.select(|record| &*record.request_id == request_id)
    }

    /// Returns the records that match, the latest first.
    pub fn recent(&self, filter: &RefusalFilter<'_>) -> Vec<Arc<RefusalRecord>> {
        let key = filter.key.map(|key| (key, self.key_hasher.hash_one(key)));
        self.select(|record| {
            let has_outcome = match filter.outcome {
                Some(outcome) => record.outcome == outcome,
                None => record.outcome != Outcome::Allowed,
            };
            has_outcome
                && record.at >= filter.since
                && filter.limit.is_none_or(|limit| *record.limit == *limit)
                && key.is_none_or(|(key, hash)| record.key.is_of(key, hash))
        })
    }

    fn select(&self, matches: impl Fn(&RefusalRecord) -> bool) -> Vec<Arc<RefusalRecord>> {
        let mut found = Vec::new();
        for part in self.refused.iter().chain([&self.admitted]) {
            // Compared after the lock is released, so that a decision seldom finds it taken.
            let records = lock(part).records().to_vec();
            found.extend(records.into_iter().filter(|record| matches(record)));
        }
        found.sort_by_key(|record| std::cmp::Reverse(record.at));
        found
    }

    /// Returns the counters.
    pub fn stats(&self) -> RefusalLogStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let parts = self.refused.iter().chain([&self.admitted]);
        let capacity = self.capacity.load(Ordering::Relaxed);
        RefusalLogStats {
            recorded: count(&self.recorded),
            sampled_out: count(&self.sampled_out),
            dropped: count(&self.dropped),
            records: parts.map(|part| lock(part).records().len()).sum(),
            capacity: part_of(capacity) * PARTS + admissions_of(capacity),
        }
    }
}

/// Returns the capacity of each part.
fn part_of(capacity: usize) -> usize {
    (capacity - admissions_of(capacity)).div_ceil(PARTS)
}

/// Returns the capacity of the samples of admissions.
fn admissions_of(capacity: usize) -> usize {
    capacity / ADMISSIONS_SHARE
}

fn lock(part: &Mutex<Ring>) -> std::sync::MutexGuard<'_, Ring> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
