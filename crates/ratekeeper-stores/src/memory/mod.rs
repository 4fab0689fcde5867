//! The memory store: exact, synchronous, in a fixed amount of memory.

mod fast_path;
mod hash;
mod line;
mod line_array;
mod locked;
mod logs;
#[cfg(all(test, loom))]
mod loom_model;
mod slot;
mod sync;
mod table;

use std::future::{Future, ready};
use std::time::Duration;

use ratekeeper_core::{BucketCell, Cell, Decision, Evaluator, GuaranteedLimit, Micros, RequestLog};
use smallvec::SmallVec;

use crate::charge::{Charge, ChargesError, INLINE, MergedCharges};
use crate::decision_inputs::{DecisionInputs, StateBefore};
use crate::snapshot::{Snapshot, apply_to_buckets, apply_to_cell, apply_to_log};
use crate::store::{Op, Store, StoreError};
use crate::verdict::{Verdict, apply_all};
use hash::KeyHasher;
use locked::Locked;
use logs::Logs;
use slot::{Displaced, SlotState};
use table::{Address, Table};

/// The default capacity: 40 MB if all keys are in use.
const KEYS_MAX: usize = 1_000_000;
/// The default cap on the entries of all sliding logs.
const LOG_BYTES_MAX: usize = 256 << 20;

/// The addresses of the usages of a charge: one, unless it has guarantees.
type Addresses = SmallVec<[Address; 1]>;

/// State in this process.
///
/// It never grows: it takes 38.4 bytes for each of `keys_max` live keys, and the operating system only
/// provides what is touched. There is nothing to clean up: the slot of a key whose state has expired is
/// free for the next one. Beyond `keys_max` live keys, a new key evicts a nearby one: the one with the
/// least usage and, of equals, the one that expires first. So a flood of new keys evicts keys of that
/// flood, unless each of them uses as much as a busy key does; [`MemoryStats::evictions`] counts them.
/// Sliding logs keep their entries outside the table, under a cap of their own with the same choice.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{Charge, Limit, MemoryStore, Micros, Op};
///
/// let store = MemoryStore::with_capacity(10_000);
/// let per_user = Limit::token_bucket("2/s")?;
/// let overall: Limit = "1000/minute".parse()?;
///
/// let now = Micros::new(0);
/// let both = [Charge::new(&per_user, "ann"), Charge::new(&overall, "all")];
/// assert!(store.apply_now(Op::Check, &both, now)?.allowed());
/// assert!(store.apply_now(Op::Check, &both, now)?.allowed());
///
/// // The third is one too many for Ann, and is not charged to the other limit either.
/// let denied = store.apply_now(Op::Check, &both, now)?;
/// assert!(!denied.allowed());
/// assert_eq!(denied.binding(), 0);
/// assert_eq!(denied.decisions()[1].remaining(), 998);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryStore {
    table: Table,
    logs: Logs,
    hasher: KeyHasher,
}

/// Sizes and counters of a [`MemoryStore`].
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::{MemoryStore, Micros};
///
/// let stats = MemoryStore::with_capacity(10_000).stats(Micros::new(0));
/// assert_eq!((stats.live_keys, stats.evictions), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Keys whose state matters. Counting them walks the table.
    pub live_keys: usize,
    /// Live keys that were evicted.
    pub evictions: u64,
    /// Reserved memory in bytes. The operating system provides what is touched.
    pub memory_bytes: usize,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("memory_bytes", &self.table.memory_bytes()).finish()
    }
}

impl MemoryStore {
    /// Returns a store for a million keys.
    pub fn new() -> Self {
        Self::with_capacity(KEYS_MAX)
    }

    /// Returns a store in which up to `keys_max` live keys never evict each other.
    pub fn with_capacity(keys_max: usize) -> Self {
        Self {
            table: Table::with_capacity(keys_max),
            logs: Logs::new(LOG_BYTES_MAX),
            hasher: KeyHasher::random(),
        }
    }

    /// Sets the cap on the memory of the entries of sliding logs.
    #[must_use]
    pub fn with_log_bytes_max(mut self, bytes_max: usize) -> Self {
        self.logs = Logs::new(bytes_max);
        self
    }

    /// Applies `op` to one charge.
    #[inline]
    pub fn apply_one(&self, op: Op, charge: &Charge<'_>, now: Micros) -> Decision {
        match op {
            Op::Check => self.check(charge, now),
            _ => self.apply_locked(op, charge, now),
        }
    }

    /// Applies `op` to all charges: [`Store::apply`] without an `await`. A check charges all of
    /// them or none.
    ///
    /// # Errors
    /// If the charges cannot be decided together.
    #[inline]
    pub fn apply_now(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, ChargesError> {
        match charges {
            [charge] => Ok(Verdict::single(self.apply_one(op, charge, now), now)),
            _ => self.apply_together(op, charges, now),
        }
    }

    /// Refunds a charge if nothing has happened to its key since: if the state is still the one that
    /// [`MemoryStore::check_and_snapshot`] returned. Returns whether it was.
    pub fn undo_last(&self, charge: &Charge<'_>, after: &Snapshot, now: Micros) -> bool {
        let addresses = self.addresses(charge);
        let mut locked = Locked::new(&self.table, &addresses, now.get());
        let is_last = self.snapshot_of(&locked, charge, addresses[0]) == *after;
        if is_last {
            let refund = Op::Refund { charged_at: now };
            let _ = self.apply_to_slots(&mut locked, refund, charge, &addresses);
        }
        is_last
    }

    /// Charges if it fits, and returns a copy of the state afterwards.
    pub fn check_and_snapshot(&self, charge: &Charge<'_>, now: Micros) -> (Decision, Snapshot) {
        let addresses = self.addresses(charge);
        let mut locked = Locked::new(&self.table, &addresses, now.get());
        let decision = self.apply_to_slots(&mut locked, Op::Check, charge, &addresses);
        (decision, self.snapshot_of(&locked, charge, addresses[0]))
    }

    /// Resets the key to its full quota.
    pub fn reset(&self, charge: &Charge<'_>) {
        let addresses = self.addresses(charge);
        let mut locked = Locked::new(&self.table, &addresses, 0);
        addresses.iter().for_each(|address| self.free(locked.remove(*address)));
    }

    /// Returns the time after which the key is as new: [`Store::usage_ttl`] without an `await`.
    pub fn usage_ttl(&self, charge: &Charge<'_>, now: Micros) -> Duration {
        let addresses = self.addresses(charge);
        let locked = Locked::new(&self.table, &addresses, 0);
        let states = addresses.iter().filter_map(|address| locked.get(*address).0);
        let expires_at = states.map(SlotState::expires_at).max().unwrap_or(0);
        Duration::from_micros(expires_at.saturating_sub(now.get()))
    }

    /// Returns a copy of the key's state.
    pub fn snapshot(&self, charge: &Charge<'_>) -> Snapshot {
        let address = self.hasher.address(charge);
        let locked = Locked::new(&self.table, &[address], 0);
        self.snapshot_of(&locked, charge, address)
    }

    /// Returns what a denial was computed from. The state is missing if another request has changed it since.
    pub fn denial_inputs(&self, charges: &[Charge<'_>], denied: &Verdict) -> DecisionInputs {
        DecisionInputs::of_denial(charges, denied, |charge| match charge.class {
            None => Some(StateBefore::Own(self.snapshot(charge))),
            Some(_) => Some(StateBefore::Buckets(self.buckets(charge, denied.at()))),
        })
    }

    /// Returns the states of a total and its guarantees.
    fn buckets(&self, charge: &Charge<'_>, now: Micros) -> Vec<BucketCell> {
        let addresses = self.addresses(charge);
        let locked = Locked::new(&self.table, &addresses, now.get());
        addresses.iter().map(|address| Self::bucket(&locked, *address)).collect()
    }

    fn bucket(locked: &Locked<'_>, address: Address) -> BucketCell {
        let (state, now) = locked.get(address);
        BucketCell { cell: state.map_or(Cell::EMPTY, SlotState::cell), now: Micros::new(now) }
    }

    /// Returns how many live keys were evicted, without walking the table.
    pub fn evictions(&self) -> u64 {
        self.table.evictions() + self.logs.evictions()
    }

    /// Returns sizes and counters.
    pub fn stats(&self, now: Micros) -> MemoryStats {
        MemoryStats {
            live_keys: self.table.live_keys(now.get()),
            evictions: self.evictions(),
            memory_bytes: self.table.memory_bytes() + self.logs.memory_bytes(),
        }
    }

    fn snapshot_of(&self, locked: &Locked<'_>, charge: &Charge<'_>, address: Address) -> Snapshot {
        let state = locked.get(address).0;
        match charge.limit.evaluator() {
            Evaluator::Cell(_) => Snapshot::Cell(state.map_or(Cell::EMPTY, SlotState::cell)),
            Evaluator::Log(_) => Snapshot::Log(
                state
                    .and_then(SlotState::to_handle)
                    .map(|handle| self.logs.with(handle, |log| log.clone()))
                    .unwrap_or_default(),
            ),
        }
    }

    fn apply_locked(&self, op: Op, charge: &Charge<'_>, now: Micros) -> Decision {
        let addresses = self.addresses(charge);
        let mut locked = Locked::new(&self.table, &addresses, now.get());
        self.apply_to_slots(&mut locked, op, charge, &addresses)
    }

    fn addresses(&self, charge: &Charge<'_>) -> Addresses {
        charge.usages().map(|usage| self.hasher.address(&usage)).collect()
    }

    #[inline(never)]
    fn apply_together(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, ChargesError> {
        let charges = MergedCharges::new(charges)?;
        let mut addresses = SmallVec::<[Address; INLINE]>::new();
        // Where the addresses of each charge end.
        let mut ends = SmallVec::<[usize; INLINE]>::new();
        for charge in charges.as_slice() {
            addresses.extend(charge.usages().map(|usage| self.hasher.address(&usage)));
            ends.push(addresses.len());
        }
        let mut locked = Locked::new(&self.table, &addresses, now.get());
        let decisions = apply_all(op, charges.as_slice(), |i, op, charge| {
            let start = if i == 0 { 0 } else { ends[i - 1] };
            self.apply_to_slots(&mut locked, op, charge, &addresses[start..ends[i]])
        });
        Ok(Verdict::of_merged(&charges, now, &decisions))
    }

    /// Applies `op` to one charge, whose usages are locked.
    fn apply_to_slots(
        &self,
        locked: &mut Locked<'_>,
        op: Op,
        charge: &Charge<'_>,
        addresses: &[Address],
    ) -> Decision {
        match charge.class {
            None => self.apply_to_slot(locked, op, charge, addresses[0]),
            Some(limit) => self.apply_to_group(locked, op, charge, limit, addresses),
        }
    }

    /// Applies `op` to a total and its guarantees, which are locked.
    fn apply_to_group(
        &self,
        locked: &mut Locked<'_>,
        op: Op,
        charge: &Charge<'_>,
        limit: &GuaranteedLimit,
        addresses: &[Address],
    ) -> Decision {
        let before: SmallVec<[BucketCell; INLINE]> =
            addresses.iter().map(|address| Self::bucket(locked, *address)).collect();
        let mut next = before.clone();
        let decision = apply_to_buckets(op, limit, charge, &mut next);
        for ((address, before), next) in addresses.iter().zip(&before).zip(&next) {
            if next != before {
                self.free(locked.set(*address, next.cell.into()));
            }
        }
        decision
    }

    /// Applies `op` to one key, which is locked.
    fn apply_to_slot(
        &self,
        locked: &mut Locked<'_>,
        op: Op,
        charge: &Charge<'_>,
        address: Address,
    ) -> Decision {
        let (state, now) = locked.get(address);
        let now = Micros::new(now);
        let (op, cost) = op.on(charge);
        match charge.limit.evaluator() {
            Evaluator::Cell(rule) => {
                let before = state.map_or(Cell::EMPTY, SlotState::cell);
                let mut next = before;
                let decision = apply_to_cell(op, rule, &mut next, cost, now);
                if next != before {
                    self.free(locked.set(address, next.into()));
                }
                decision
            }
            Evaluator::Log(rule) => {
                let act = |log: &mut RequestLog| {
                    let decision = apply_to_log(op, rule, log, cost, now);
                    (decision, rule.expires_at(log), log.total())
                };
                self.act_on_log(locked, address, state, act)
            }
        }
    }

    fn act_on_log(
        &self,
        locked: &mut Locked<'_>,
        address: Address,
        state: Option<SlotState>,
        act: impl FnOnce(&mut RequestLog) -> (Decision, u64, u64),
    ) -> Decision {
        let (decision, next) = match state.and_then(SlotState::to_handle) {
            Some(handle) => {
                let (decision, expires_at, in_use) = self.logs.with(handle, act);
                (decision, SlotState::log(expires_at, handle, in_use))
            }
            None => {
                let mut log = RequestLog::default();
                let (decision, expires_at, in_use) = act(&mut log);
                if log.is_empty() {
                    return decision;
                }
                let handle = self.logs.add(address.spread(), log);
                (decision, SlotState::log(expires_at, handle, in_use))
            }
        };
        if state != Some(next) {
            self.free(locked.set(address, next));
        }
        decision
    }

    #[inline]
    fn free(&self, displaced: Displaced) {
        if let Some(handle) = displaced.to_handle() {
            self.logs.remove(handle);
        }
    }
}

impl Store for MemoryStore {
    fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        ready(self.apply_now(op, charges, now).map_err(StoreError::from))
    }

    fn reset(&self, charge: &Charge<'_>) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.reset(charge);
        ready(Ok(()))
    }

    fn usage_ttl(
        &self,
        charge: &Charge<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<Duration, StoreError>> + Send {
        ready(Ok(self.usage_ttl(charge, now)))
    }
}
