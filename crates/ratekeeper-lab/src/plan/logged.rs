//! The requests of an access log, by key, ready to be replayed many times.

use std::collections::HashMap;
use std::sync::Arc;

use ratekeeper_core::{Cost, Limit, Micros};
use ratekeeper_policy::Policy;
use ratekeeper_stores::{Charge, MemoryStore};

use super::{Latencies, PlanError};
use crate::replay::{Logs, ReadSummary};

/// The most requests that are kept, of 16 bytes each.
const REQUESTS_MAX: usize = 100_000_000;
/// The longest name of a caller that is shown.
const NAME_MAX: usize = 100;
const DAY_US: u64 = 86_400_000_000;

/// Requests with their keys, in the order of time.
#[derive(Debug)]
pub struct LoggedTraffic {
    requests: Vec<LoggedArrival>,
    keys: Vec<Box<[u8]>>,
    /// The cost of all requests of each key.
    totals: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct LoggedArrival {
    at_us: u64,
    key: u32,
    cost: u32,
}

/// What one limit refuses of the requests of each key.
#[derive(Clone, Debug)]
pub(super) struct Refusals {
    pub(super) by_key: Vec<u32>,
}

impl LoggedTraffic {
    /// Reads logs. `policy` has one limit, which says what is counted by.
    ///
    /// # Errors
    /// If there are no requests that it counts, or too many.
    pub fn read(logs: Logs, policy: Arc<Policy>) -> Result<(Self, ReadSummary), PlanError> {
        let mut known: HashMap<Box<[u8]>, u32> = HashMap::new();
        let mut read = Self { requests: Vec::new(), keys: Vec::new(), totals: Vec::new() };
        let mut is_full = false;
        let summary = logs.each(&[policy], |request| {
            for charge in request.charges(0) {
                if read.requests.len() == REQUESTS_MAX {
                    is_full = true;
                    return;
                }
                let key = known.get(charge.key).copied().unwrap_or_else(|| {
                    let key = read.keys.len() as u32;
                    known.insert(charge.key.into(), key);
                    read.keys.push(charge.key.into());
                    read.totals.push(0);
                    key
                });
                let cost = u32::try_from(charge.cost.get()).unwrap_or(u32::MAX);
                read.totals[key as usize] += u64::from(cost);
                let at_us = request.at().get();
                read.requests.push(LoggedArrival { at_us, key, cost });
            }
        });
        match read.requests.is_empty() {
            _ if is_full => Err(PlanError::TooManyRequests(REQUESTS_MAX)),
            true => Err(PlanError::NoRequests),
            false => Ok((read, summary)),
        }
    }

    /// Returns how many requests there are.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Returns how many callers there are.
    #[must_use]
    pub fn callers(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn name(&self, key: usize) -> String {
        String::from_utf8_lossy(&self.keys[key]).chars().take(NAME_MAX).collect()
    }

    /// Returns the cost of all requests of the key that has the most.
    pub(super) fn total_max(&self) -> u64 {
        self.totals.iter().copied().max().unwrap_or(1)
    }

    /// Returns how many requests each key has.
    pub(super) fn requests_by_key(&self) -> Vec<u32> {
        let mut counts = vec![0; self.keys.len()];
        self.requests.iter().for_each(|request| counts[request.key as usize] += 1);
        counts
    }

    /// Returns the requests of each day, without keys that have none.
    pub(super) fn days(&self) -> Vec<Self> {
        let day = |request: &LoggedArrival| request.at_us / DAY_US;
        let days = self.requests.chunk_by(|a, b| day(a) == day(b));
        days.map(|requests| self.part(requests)).collect()
    }

    fn part(&self, requests: &[LoggedArrival]) -> Self {
        let mut numbers = HashMap::new();
        let mut part = Self { requests: Vec::new(), keys: Vec::new(), totals: Vec::new() };
        for request in requests {
            let key = *numbers.entry(request.key).or_insert_with(|| {
                part.keys.push(self.keys[request.key as usize].clone());
                part.totals.push(0);
                part.keys.len() as u32 - 1
            });
            part.totals[key as usize] += u64::from(request.cost);
            part.requests.push(LoggedArrival { key, ..*request });
        }
        part
    }

    /// Decides all requests as a limiter would have.
    pub(super) fn replay(&self, limit: &Limit) -> Refusals {
        let mut by_key = vec![0; self.keys.len()];
        // What a key asks in total fits at any time, so it is never refused.
        let is_possible = |key: usize| self.totals[key] > limit.quota();
        let busy = (0..self.keys.len()).filter(|key| is_possible(*key)).count();
        let store =
            MemoryStore::with_capacity((busy * 2).max(1_024)).with_log_bytes_max(usize::MAX / 4);
        for request in self.requests.iter().filter(|request| is_possible(request.key as usize)) {
            let key = request.key.to_le_bytes();
            let cost = Cost::new(u64::from(request.cost)).unwrap_or(Cost::ONE);
            let charge = Charge::new(limit, &key[..]).cost(cost);
            if !store.check(&charge, Micros::new(request.at_us)).allowed() {
                by_key[request.key as usize] += 1;
            }
        }
        Refusals { by_key }
    }
}

impl Latencies {
    /// Reads the durations of requests from access logs.
    ///
    /// # Errors
    /// If the logs have no durations.
    pub fn of_logs(logs: Logs) -> Result<Self, PlanError> {
        let mut found = Vec::new();
        let _ = logs.each(&[], |request| {
            found.extend(
                request.duration_us().filter(|us| *us > 0 && found.len() < REQUESTS_MAX / 2),
            );
        });
        Self::new(found)
    }
}
