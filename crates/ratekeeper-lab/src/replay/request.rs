//! Requests of a log as batches of what they are charged, without a reference to their lines.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::FixedState;
use ratekeeper_core::{Cost, Micros};
use ratekeeper_policy::{AppliedLimit, LimitVariant, Policy};

use super::summary::Skipped;

/// Stands for a duration or a cost that the log does not have.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// The requests of a block of lines.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) requests: Vec<BatchRequest>,
    /// For each request, one for each policy.
    pub(super) subjects: Vec<BatchSubject>,
    pub(super) charges: Vec<BatchCharge>,
    pub(super) keys: Vec<u8>,
    pub(super) lines: u64,
    /// Requests before or after the time that is read.
    pub(super) outside: u64,
    pub(super) skipped: Skipped,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct BatchRequest {
    pub(super) at_us: u64,
    pub(super) duration_us: u64,
}

/// What one policy says about a request.
#[derive(Clone, Debug)]
pub(super) enum BatchSubject {
    Exempt,
    /// An identity is missing that this limit requires.
    MissingIdentity(usize),
    Charged(Range<u32>),
}

#[derive(Clone, Debug)]
pub(super) struct BatchCharge {
    /// The index of the variant of the limit.
    pub(super) variant: u32,
    pub(super) key: Range<u32>,
    pub(super) key_hash: u64,
    pub(super) cost: Cost,
    /// The cost by the response, if it differs.
    pub(super) actual: u64,
}

/// The variants of a policy's limits that were seen so far.
#[derive(Debug)]
pub(super) struct Variants {
    pub(super) policy: Arc<Policy>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    by_variant: HashMap<LimitVariant, u32>,
    limits: Vec<Arc<AppliedLimit>>,
}

impl Variants {
    pub(super) fn new(policy: Arc<Policy>) -> Self {
        Self { policy, seen: Mutex::default() }
    }

    pub(super) fn index_of(&self, limit: &AppliedLimit) -> u32 {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen { by_variant, limits } = &mut *seen;
        *by_variant.entry(limit.variant()).or_insert_with(|| {
            limits.push(Arc::new(limit.clone()));
            limits.len() as u32 - 1
        })
    }

    /// Adds the variants that are not in `known` yet.
    pub(super) fn update(&self, known: &mut Vec<Arc<AppliedLimit>>) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend_from_slice(&seen.limits[known.len()..]);
    }
}

/// A request of a log, and what each policy charges it.
#[derive(Clone, Copy, Debug)]
pub struct LoggedRequest<'b> {
    pub(super) at: Micros,
    pub(super) batch: &'b Batch,
    pub(super) index: usize,
    pub(super) policies: &'b [Variants],
}

/// What a request is charged to one limit.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LoggedCharge<'b> {
    /// The key.
    pub key: &'b [u8],
    /// The cost before the response.
    pub cost: Cost,
}

impl<'b> LoggedRequest<'b> {
    /// Returns when it was made. Times do not decrease from one request to the next.
    #[must_use]
    pub fn at(&self) -> Micros {
        self.at
    }

    /// Returns how long it took, if the log has that.
    #[must_use]
    pub fn duration_us(&self) -> Option<u64> {
        let us = self.batch.requests[self.index].duration_us;
        (us != UNKNOWN).then_some(us)
    }

    /// Returns what the policy with this index charges it: nothing if it is exempt.
    pub fn charges(&self, policy: usize) -> impl Iterator<Item = LoggedCharge<'b>> + use<'b> {
        let range = match self.subject(policy) {
            BatchSubject::Charged(range) => range.start as usize..range.end as usize,
            BatchSubject::Exempt | BatchSubject::MissingIdentity(_) => 0..0,
        };
        let batch = self.batch;
        let charges = batch.charges[range].iter();
        charges.map(move |charge| LoggedCharge { key: batch.key(charge), cost: charge.cost })
    }

    pub(super) fn subject(&self, policy: usize) -> &'b BatchSubject {
        &self.batch.subjects[self.index * self.policies.len() + policy]
    }
}

/// How large a batch is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchSizes {
    requests: usize,
    subjects: usize,
    charges: usize,
    keys: usize,
}

impl Batch {
    /// Creates an empty batch with room for as much as another one has, and some more.
    pub(super) fn with_capacity(sizes: BatchSizes) -> Self {
        let room = |size: usize| size + size / 8;
        Self {
            requests: Vec::with_capacity(room(sizes.requests)),
            subjects: Vec::with_capacity(room(sizes.subjects)),
            charges: Vec::with_capacity(room(sizes.charges)),
            keys: Vec::with_capacity(room(sizes.keys)),
            ..Self::default()
        }
    }

    pub(super) fn sizes(&self) -> BatchSizes {
        BatchSizes {
            requests: self.requests.len(),
            subjects: self.subjects.len(),
            charges: self.charges.len(),
            keys: self.keys.len(),
        }
    }

    /// Adds what a limit charges.
    pub(super) fn charge(
        &mut self,
        limit: &AppliedLimit,
        variant: u32,
        actual: u64,
        hasher: &FixedState,
    ) {
        let key = limit.key.as_bytes();
        let start = self.keys.len() as u32;
        self.keys.extend_from_slice(key);
        let key_hash = hasher.hash_one(key);
        let key = start..self.keys.len() as u32;
        self.charges.push(BatchCharge { variant, key, key_hash, cost: limit.cost, actual });
    }

    pub(super) fn key(&self, charge: &BatchCharge) -> &[u8] {
        &self.keys[charge.key.start as usize..charge.key.end as usize]
    }
}
