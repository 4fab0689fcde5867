//! One limit and its state, in virtual time.

use tollgate_core::{Decision, Limit, Micros};
use tollgate_stores::{Charge, MemoryStore};

use crate::arrival::Arrival;

/// What the entries of sliding logs may take, for each key that there is room for.
const LOG_BYTES_PER_KEY: usize = 256;
const LOG_BYTES_MIN: usize = 256 << 20;

/// A limit that decides arrivals, one after the other.
#[derive(Debug)]
pub struct Simulation {
    limit: Limit,
    store: MemoryStore,
}

impl Simulation {
    /// A limit with room for `keys_max` live keys. Beyond that, keys push each other out and the
    /// results are no longer exact: see [`Simulation::evictions`].
    pub fn new(limit: Limit, keys_max: usize) -> Self {
        let log_bytes_max = keys_max.saturating_mul(LOG_BYTES_PER_KEY).max(LOG_BYTES_MIN);
        let store = MemoryStore::with_capacity(keys_max).with_log_bytes_max(log_bytes_max);
        Self { limit, store }
    }

    /// The limit that decides.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Decides the next arrival. It may not come before the last one.
    pub fn decide(&self, arrival: &Arrival) -> Decision {
        let charge = Charge::new(&self.limit, &arrival.key).cost(arrival.cost);
        self.store.check(&charge, arrival.at)
    }

    /// How many keys were pushed out although their state mattered. If any, decisions that came
    /// after may be wrong.
    pub fn evictions(&self) -> u64 {
        self.store.stats(Micros::MAX).evictions
    }
}
