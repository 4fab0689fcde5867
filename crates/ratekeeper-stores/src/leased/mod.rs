//! Leases: hot keys are served from memory, with units that were charged in the shared store before.
//!
//! A node charges a batch in one call and spends it request by request. The store has counted every
//! unit before it is spent, so the nodes together never exceed the limit, whatever fails; unspent units
//! of a node that dies are lost to the others until they expire. A key is leased once it is hot; until
//! then, and for everything but checks of one limit without guarantees, every call goes to the store.

mod delegated;
mod hot_keys;
mod lease;

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ratekeeper_core::{Cost, Decision, Limit, Micros};

use crate::charge::{Charge, ChargeKind, ChargesError, OwnedCharge};
use crate::store::{ApplyFailure, Op, SharedStore, Store, StoreError};
use crate::verdict::Verdict;
use hot_keys::HotKeys;
use lease::{Lease, is_leasable};

const SHARDS: usize = 16;
/// How many keys may be leased at a time. All others are decided by the store.
const LEASES_MAX: usize = 16_384;
/// A batch is at most this part of the limit, and this part of what is left of it.
const LIMIT_PART: u64 = 16;
const LEFT_PART: u64 = 8;
/// How many requests in a tenth of a second make a key hot.
const HOT_RATE: u64 = 8;
/// How often unused leases are refunded.
const RETURN_EVERY: Duration = Duration::from_millis(100);
/// How far the estimated time of the background task may be off.
const SLACK_US: u64 = 5_000;

/// A shared store with leases on top. Clones share their leases.
///
/// **Never over the limit**, whatever fails: units are spent only after the store has counted them,
/// and only as long as it has not forgotten that. **Under-use is bounded**: for each key a node holds
/// back at most [`LeasedStore::unspent_max`] units, a sixteenth of the limit and an eighth of what was
/// left; what is not spent within a tenth of a second or two is refunded.
///
/// The cost: `remaining` and `reset_after` of a leased key are those of the store's last decision, so
/// they may be a batch behind.
///
/// ```no_run
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{LeasedStore, RedisConfig};
///
/// # fn f() -> Result<(), ratekeeper::RedisUrlError> {
/// let store = LeasedStore::new(RedisConfig::new("redis://127.0.0.1:6379").open()?);
/// # Ok(()) }
/// ```
pub struct LeasedStore<S> {
    inner: Arc<LeaseState<S>>,
}

struct LeaseState<S> {
    store: S,
    hot_keys: HotKeys,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    /// At most one lease call at a time for each key; other requests wait for it.
    leasing: [tokio::sync::Mutex<()>; 64],
    counters: LeaseCounters,
    is_returning: AtomicBool,
}

/// By the hash of the scope, the algorithm and the key.
type Shard = HashMap<u64, Entry>;

struct Entry {
    lease: Lease,
    of: OwnedCharge,
}

impl Entry {
    /// Returns whether it is the lease of this charge, at this rate.
    fn is_for(&self, charge: &Charge<'_>) -> bool {
        let of = self.charge();
        of.shares_usage(charge) && of.limit.rate() == charge.limit.rate()
    }

    fn charge(&self) -> Charge<'_> {
        self.of.as_charge()
    }
}

#[derive(Default)]
struct LeaseCounters {
    local: AtomicU64,
    store_calls: AtomicU64,
    leased: AtomicU64,
    refunded: AtomicU64,
}

/// Counters and sizes of leases.
///
/// ```no_run
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{LeasedStore, Micros, RedisStore};
///
/// # fn f(store: LeasedStore<RedisStore>, now: Micros) {
/// let stats = store.stats(now);
/// println!("{} decisions in memory, {} calls", stats.local, stats.store_calls);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Decisions without a call to the store.
    pub local: u64,
    /// Calls to the store.
    pub store_calls: u64,
    /// Units that were charged in batches.
    pub leased: u64,
    /// Units that were refunded.
    pub refunded: u64,
    /// Keys that are leased now.
    pub keys: usize,
    /// Units that are charged and not spent now: unavailable to other nodes.
    pub unspent: u64,
}

impl<S> Clone for LeasedStore<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<S> std::fmt::Debug for LeasedStore<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeasedStore").finish_non_exhaustive()
    }
}

impl<S: Store + Send + Sync + 'static> LeasedStore<S> {
    /// Returns leases over a store.
    pub fn new(store: S) -> Self {
        Self {
            inner: Arc::new(LeaseState {
                store,
                hot_keys: HotKeys::new(),
                hasher: RandomState::new(),
                shards: Default::default(),
                leasing: std::array::from_fn(|_| tokio::sync::Mutex::default()),
                counters: LeaseCounters::default(),
                is_returning: AtomicBool::new(false),
            }),
        }
    }

    /// Returns the most units of one key that one node holds: the bound on under-use for each node.
    pub fn unspent_max(limit: &Limit) -> u64 {
        (limit.quota() / LIMIT_PART).max(1)
    }

    /// Returns the store below.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Returns counters and sizes at `now`.
    pub fn stats(&self, now: Micros) -> LeaseStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let LeaseCounters { local, store_calls, leased, refunded } = &self.inner.counters;
        let mut stats = LeaseStats {
            local: read(local),
            store_calls: read(store_calls),
            leased: read(leased),
            refunded: read(refunded),
            ..LeaseStats::default()
        };
        for shard in &self.inner.shards {
            let shard = lock(shard);
            stats.keys += shard.len();
            stats.unspent +=
                shard.values().map(|entry| entry.lease.unspent(now.get())).sum::<u64>();
        }
        stats
    }

    /// Refunds all unspent units, for a graceful shutdown.
    pub async fn return_all(&self, now: Micros) {
        self.inner.return_leases(now, |_| true).await;
    }
}

impl<S: Store + Send + Sync + 'static> LeaseState<S> {
    fn locate(&self, charge: &Charge<'_>) -> (&Mutex<Shard>, u64) {
        let hash = self.hasher.hash_one((charge.usage_id, charge.key));
        (&self.shards[(hash >> 32) as usize % SHARDS], hash)
    }

    async fn check(
        self: &Arc<Self>,
        charge: &Charge<'_>,
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        let hash = self.locate(charge).1;
        let request_rate = self.hot_keys.count(hash, now.get());
        if let Some(decision) = self.decide(charge, now.get()) {
            return Ok(Verdict::single(decision, now));
        }
        if request_rate < HOT_RATE {
            self.counters.store_calls.fetch_add(1, Ordering::Relaxed);
            return self.store.apply(Op::Check, &[*charge], now).await;
        }
        let _guard = self.leasing[hash as usize % self.leasing.len()].lock().await;
        // Another request may have leased meanwhile.
        if let Some(decision) = self.decide(charge, now.get()) {
            return Ok(Verdict::single(decision, now));
        }
        self.lease(charge, request_rate, now).await
    }

    /// Decides without a call to the store, if the lease allows it.
    fn decide(&self, charge: &Charge<'_>, now: u64) -> Option<Decision> {
        let (shard, hash) = self.locate(charge);
        let mut shard = lock(shard);
        let entry = shard.get_mut(&hash).filter(|entry| entry.is_for(charge))?;
        let decision = entry.lease.decide(charge.limit, charge.cost, now)?;
        drop(shard);
        self.counters.local.fetch_add(1, Ordering::Relaxed);
        Some(decision)
    }

    /// Charges a batch and decides from it. If it does not fit, tries less, and in the end this cost alone.
    async fn lease(
        self: &Arc<Self>,
        charge: &Charge<'_>,
        request_rate: u64,
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        let cost = charge.cost.get();
        let mut batch = self.batch(charge, request_rate);
        loop {
            self.counters.store_calls.fetch_add(1, Ordering::Relaxed);
            let units = Cost::new(batch).unwrap_or(Cost::ONE);
            let verdict = self.store.apply(Op::Check, &[charge.cost(units)], now).await?;
            if verdict.allowed() {
                let spare = batch - cost;
                let mut held = spare;
                self.with_lease(charge, now, |lease| {
                    lease.add(charge.limit, spare, &verdict, now.get());
                    held = lease.unspent(now.get());
                });
                self.counters.leased.fetch_add(batch, Ordering::Relaxed);
                self.start_returning(now);
                let left = verdict.remaining().saturating_add(held);
                let reset_us = verdict.reset_after().as_micros() as u64;
                let decision = Decision::allow(charge.limit.quota(), left, reset_us);
                return Ok(Verdict::single(decision, verdict.at()));
            }
            if batch == cost {
                self.with_lease(charge, now, |lease| {
                    lease.deny(charge.cost, &verdict, now.get());
                });
                return Ok(verdict);
            }
            batch = (batch / 2).min(verdict.remaining()).max(cost);
        }
    }

    /// The size of a batch: what this node needs for a slice of time, up to its part of the limit.
    fn batch(&self, charge: &Charge<'_>, request_rate: u64) -> u64 {
        let (shard, hash) = self.locate(charge);
        let shard = lock(shard);
        let entry = shard.get(&hash).filter(|entry| entry.is_for(charge));
        let left = entry.map_or(u64::MAX, |entry| entry.lease.left_in_store());
        let is_full = entry.is_none() && shard.len() >= LEASES_MAX / SHARDS;
        let cost = charge.cost.get();
        match is_full {
            true => cost,
            false => (request_rate * cost)
                .min(charge.limit.quota() / LIMIT_PART)
                .min(left / LEFT_PART)
                .max(cost),
        }
    }

    /// Changes the lease of this charge, or a new one.
    fn with_lease(&self, charge: &Charge<'_>, now: Micros, change: impl FnOnce(&mut Lease)) {
        let (shard, hash) = self.locate(charge);
        let mut shard = lock(shard);
        let is_other = shard.get(&hash).is_some_and(|entry| !entry.is_for(charge));
        if is_other || (shard.len() >= LEASES_MAX / SHARDS && !shard.contains_key(&hash)) {
            shard.remove(&hash);
            if shard.len() >= LEASES_MAX / SHARDS {
                return;
            }
        }
        let entry = shard
            .entry(hash)
            .or_insert_with(|| Entry { lease: Lease::empty(now.get()), of: charge.into() });
        change(&mut entry.lease);
    }

    /// Removes the lease of this charge. Returns it and its unspent units.
    fn forget(&self, charge: &Charge<'_>, now: u64) -> Option<(Entry, u64)> {
        let (shard, hash) = self.locate(charge);
        let mut entry = lock(shard).remove(&hash)?;
        let unspent = entry.lease.take(now);
        Some((entry, unspent))
    }

    /// Refunds the unspent units of this charge's key, so that the store decides on the true usage.
    async fn refund_lease(&self, charge: &Charge<'_>, now: Micros) -> Result<(), StoreError> {
        match self.forget(charge, now.get()) {
            Some((entry, unspent)) => self.refund(&entry, unspent, now).await,
            None => Ok(()),
        }
    }

    async fn refund(&self, entry: &Entry, unspent: u64, now: Micros) -> Result<(), StoreError> {
        let Some(unspent) = Cost::new(unspent) else { return Ok(()) };
        let refund = Op::Refund { charged_at: entry.lease.charged_at() };
        let _ = self.store.apply(refund, &[entry.charge().cost(unspent)], now).await?;
        self.counters.refunded.fetch_add(unspent.get(), Ordering::Relaxed);
        Ok(())
    }

    /// Removes and refunds the leases for which `is_due` holds. What cannot be refunded expires.
    async fn return_leases(&self, now: Micros, is_due: impl Fn(&Lease) -> bool) -> usize {
        let mut left = 0;
        for shard in &self.shards {
            let due: Vec<(Entry, u64)> = {
                let mut shard = lock(shard);
                let due = shard.extract_if(|_, entry| is_due(&entry.lease));
                let due: Vec<_> = due
                    .map(|(_, mut entry)| {
                        let unspent = entry.lease.take(now.get());
                        (entry, unspent)
                    })
                    .collect();
                left += shard.len();
                due
            };
            for (entry, unspent) in &due {
                let _ = self.refund(entry, *unspent, now).await;
            }
        }
        left
    }

    /// Starts the task that refunds unused leases, unless it runs.
    fn start_returning(self: &Arc<Self>, now: Micros) {
        if !self.is_returning.swap(true, Ordering::AcqRel) {
            tokio::spawn(return_idle(Arc::downgrade(self), now));
        }
    }
}

async fn return_idle<S: Store + Send + Sync + 'static>(inner: Weak<LeaseState<S>>, began: Micros) {
    let started = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(RETURN_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        let now = began.get() + started.elapsed().as_micros() as u64 + SLACK_US;
        let idle_us = RETURN_EVERY.as_micros() as u64;
        let is_idle = |lease: &Lease| lease.last_used() + idle_us + SLACK_US < now;
        if inner.return_leases(Micros::new(now), is_idle).await == 0 {
            inner.is_returning.store(false, Ordering::Release);
            return;
        }
    }
}

impl<S: Store + Send + Sync + 'static> Store for LeasedStore<S> {
    async fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        ChargesError::check(charges)?;
        match (op, charges) {
            (Op::Check, [charge])
                if is_leasable(charge.limit)
                    && charge.kind == ChargeKind::Full
                    && charge.class.is_none() =>
            {
                self.inner.check(charge, now).await
            }
            (Op::Check, _) => self.inner.store.apply(op, charges, now).await,
            _ => {
                for charge in charges {
                    self.inner.refund_lease(charge, now).await?;
                }
                self.inner.store.apply(op, charges, now).await
            }
        }
    }

    fn reset(&self, charge: &Charge<'_>) -> impl Future<Output = Result<(), StoreError>> + Send {
        // Unspent units were charged before the reset, and may not be spent in addition.
        self.inner.forget(charge, 0);
        self.inner.store.reset(charge)
    }

    async fn usage_ttl(&self, charge: &Charge<'_>, now: Micros) -> Result<Duration, StoreError> {
        self.inner.refund_lease(charge, now).await?;
        self.inner.store.usage_ttl(charge, now).await
    }
}

impl<S: SharedStore + Send + Sync + 'static> SharedStore for LeasedStore<S> {
    fn announce(
        &self,
        node: &str,
        lives: Duration,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send {
        self.inner.store.announce(node, lives)
    }

    /// A late reply is not followed up: a batch that is charged late expires unspent.
    async fn try_apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, ApplyFailure> {
        let shard = charges.first().map_or(0, |charge| self.shard_of(charge.key));
        let applied = self.apply(op, charges, now).await;
        applied.map_err(|error| ApplyFailure { error, shard, late: None })
    }

    fn shards(&self) -> usize {
        self.inner.store.shards()
    }

    fn shard_of(&self, key: &[u8]) -> usize {
        self.inner.store.shard_of(key)
    }

    fn probe(&self, shard: usize) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.inner.store.probe(shard)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
