//! One limit and its state, in virtual time.

use std::fmt;
use std::io;

use ratekeeper_core::{Decision, Limit, Micros};
use ratekeeper_stores::{Charge, MemoryStore};

use crate::arrival::Arrival;
use crate::trace::TraceError;

/// What the entries of sliding logs may take, for each key that there is room for.
const LOG_BYTES_PER_KEY: usize = 256;
const LOG_BYTES_MIN: usize = 256 << 20;
/// How many arrivals are decided at a time: enough to keep a store busy that is far away.
const BATCH: usize = 48;

/// Where decisions are made: in memory, or wherever somebody takes them.
pub trait Decider {
    /// Decides arrivals in their order, at their times. An error says why it cannot.
    fn decide(&self, limit: &Limit, arrivals: &[Arrival]) -> Result<Vec<Decision>, String>;

    /// How many keys were pushed out although their state mattered.
    fn evictions(&self) -> u64 {
        0
    }
}

impl Decider for MemoryStore {
    fn decide(&self, limit: &Limit, arrivals: &[Arrival]) -> Result<Vec<Decision>, String> {
        let decide = |arrival: &Arrival| {
            self.check(&Charge::new(limit, &arrival.key).cost(arrival.cost), arrival.at)
        };
        Ok(arrivals.iter().map(decide).collect())
    }

    fn evictions(&self) -> u64 {
        self.stats(Micros::MAX).evictions
    }
}

/// A limit that decides arrivals, one after the other.
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
    /// A limit in memory, with room for `keys_max` live keys. Beyond that, keys push each other out
    /// and the results are no longer exact: see [`Simulation::evictions`].
    pub fn new(limit: Limit, keys_max: usize) -> Self {
        let log_bytes_max = keys_max.saturating_mul(LOG_BYTES_PER_KEY).max(LOG_BYTES_MIN);
        let store = MemoryStore::with_capacity(keys_max).with_log_bytes_max(log_bytes_max);
        Self::with_decider(limit, Box::new(store))
    }

    /// A limit that is decided elsewhere.
    pub fn with_decider(limit: Limit, decider: Box<dyn Decider>) -> Self {
        Self { limit, decider }
    }

    /// The limit that decides.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Decides the next arrivals. None may come before the last one.
    pub fn decide(&self, arrivals: &[Arrival]) -> Result<Vec<Decision>, SimulateError> {
        self.decider.decide(&self.limit, arrivals).map_err(SimulateError::Store)
    }

    /// How many keys were pushed out although their state mattered. If any, decisions that came
    /// after may be wrong.
    pub fn evictions(&self) -> u64 {
        self.decider.evictions()
    }
}

/// Reads the next few arrivals; fewer, and why, if the trace is at fault.
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

/// Why a simulation ended early.
#[derive(Debug)]
pub enum SimulateError {
    /// The trace is at fault.
    Trace(TraceError),
    /// The store is at fault.
    Store(String),
    /// The decisions could not be written.
    Output(io::Error),
}

impl fmt::Display for SimulateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::Store(why) => f.write_str(why),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}

impl std::error::Error for SimulateError {}

impl From<TraceError> for SimulateError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}

impl From<io::Error> for SimulateError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
