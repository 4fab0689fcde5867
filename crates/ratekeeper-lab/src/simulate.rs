//! Simulation of one limit in virtual time.

use std::error::Error;
use std::fmt;
use std::io;

use ratekeeper_core::{Decision, Limit};
use ratekeeper_stores::{Charge, MemoryStore};

use crate::arrival::Arrival;
use crate::trace::TraceError;

/// Memory for the entries of sliding logs, for each key.
const LOG_BYTES_PER_KEY: usize = 256;
const LOG_BYTES_MIN: usize = 256 << 20;
/// Arrivals decided at a time: enough to keep a remote store busy.
const BATCH: usize = 48;

/// Decides arrivals in memory or in a remote store.
pub trait Decider {
    /// Decides arrivals in their order, at their times.
    ///
    /// # Errors
    ///
    /// If the store fails.
    fn decide(
        &self,
        limit: &Limit,
        arrivals: &[Arrival],
    ) -> Result<Vec<Decision>, Box<dyn Error + Send + Sync>>;

    /// Returns how many keys were evicted although their state was still needed.
    fn evictions(&self) -> u64 {
        0
    }
}

impl Decider for MemoryStore {
    fn decide(
        &self,
        limit: &Limit,
        arrivals: &[Arrival],
    ) -> Result<Vec<Decision>, Box<dyn Error + Send + Sync>> {
        let decide = |arrival: &Arrival| {
            self.check(&Charge::new(limit, &arrival.key).cost(arrival.cost), arrival.at)
        };
        Ok(arrivals.iter().map(decide).collect())
    }

    fn evictions(&self) -> u64 {
        self.evictions()
    }
}

/// A limit and its state, which decides arrivals one after the other.
pub struct Simulation {
    limit: Limit,
    decider: Box<dyn Decider>,
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Simulation {
    /// Creates a simulation in memory with capacity for `keys_max` live keys. With more, keys are
    /// evicted and the results are no longer exact; see [`Simulation::evictions`].
    #[must_use]
    pub fn new(limit: Limit, keys_max: usize) -> Self {
        let log_bytes_max = keys_max.saturating_mul(LOG_BYTES_PER_KEY).max(LOG_BYTES_MIN);
        let store = MemoryStore::with_capacity(keys_max).with_log_bytes_max(log_bytes_max);
        Self::with_decider(limit, Box::new(store))
    }

    /// Creates a simulation with another decider.
    #[must_use]
    pub fn with_decider(limit: Limit, decider: Box<dyn Decider>) -> Self {
        Self { limit, decider }
    }

    /// Returns the limit.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Decides the next arrivals. Their times must not decrease, also from one call to the next.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn decide(&self, arrivals: &[Arrival]) -> Result<Vec<Decision>, SimulateError> {
        self.decider.decide(&self.limit, arrivals).map_err(SimulateError::Store)
    }

    /// Returns how many keys were evicted although their state was still needed. After an eviction,
    /// decisions may be wrong.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.decider.evictions()
    }
}

/// Reads the next arrivals; if the trace has an error, those before it and the error.
pub(crate) fn next_batch(
    arrivals: &mut impl Iterator<Item = Result<Arrival, TraceError>>,
) -> (Vec<Arrival>, Option<TraceError>) {
    let mut batch = Vec::with_capacity(BATCH);
    for arrival in arrivals.by_ref().take(BATCH) {
        match arrival {
            Ok(arrival) => batch.push(arrival),
            Err(error) => return (batch, Some(error)),
        }
    }
    (batch, None)
}

/// Why a simulation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The trace cannot be read or is invalid.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] Box<dyn Error + Send + Sync>),
    /// The decisions cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}
