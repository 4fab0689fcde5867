//! Lines of a log as a batch of requests: parses each line and resolves it by every policy.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::ops::Range;

use foldhash::fast::FixedState;
use ratekeeper_core::Micros;
use ratekeeper_policy::{AppliedLimit, AppliedLimits, LimitVariant, NotCharged};

use super::request::{Batch, BatchCharge, BatchRequest, BatchSubject, UNKNOWN, Variants};
use crate::access_log::{AccessRecord, Block, LineError, LogFormat, TimeCache};

/// Prepares batches on one thread.
pub(super) struct Preparer<'p> {
    policies: &'p [Variants],
    within: Range<Micros>,
    times: TimeCache,
    /// For each policy, the variants that this thread has seen.
    seen: Vec<HashMap<LimitVariant, u32, FixedState>>,
    hasher: FixedState,
    applied: AppliedLimits,
}

impl<'p> Preparer<'p> {
    pub(super) fn new(policies: &'p [Variants], within: Range<Micros>) -> Self {
        let seen = policies.iter().map(|_| HashMap::default()).collect();
        let (times, applied) = (TimeCache::default(), AppliedLimits::new());
        Self { policies, within, times, seen, hasher: FixedState::default(), applied }
    }

    pub(super) fn prepare(&mut self, block: &Block, format: &LogFormat, file: usize) -> Batch {
        let mut batch = Batch::default();
        block.each(|number, line| {
            batch.lines += 1;
            let added = match line {
                Some(line) => self.add(line, format, &mut batch),
                None => Err(LineError::TooLong),
            };
            match added {
                Ok(()) => {}
                Err(LineError::Blank) => batch.skipped.add_blank(),
                Err(why) => batch.skipped.add(file, number, why, line.unwrap_or_default()),
            }
        });
        batch
    }

    fn add(&mut self, line: &[u8], format: &LogFormat, batch: &mut Batch) -> Result<(), LineError> {
        let text = match std::str::from_utf8(line) {
            Ok(text) => Cow::Borrowed(text),
            // Another encoding: the path is as good as it gets.
            Err(_) => String::from_utf8_lossy(line),
        };
        let record = format.parse(&text, &mut self.times)?;
        if !self.within.contains(&record.at) {
            batch.outside += 1;
            return Ok(());
        }
        let duration_us = record.duration_us.unwrap_or(UNKNOWN);
        batch.requests.push(BatchRequest { at_us: record.at.get(), duration_us });
        record.with_attributes(|request| {
            for policy in 0..self.policies.len() {
                let mut applied = std::mem::take(&mut self.applied);
                let resolved = self.policies[policy].policy.resolve_into(request, &mut applied);
                let subject = match resolved {
                    Ok(()) => self.charge(policy, &applied, &record, batch),
                    Err(NotCharged::Exempt(_)) => BatchSubject::Exempt,
                    Err(NotCharged::MissingIdentity { rule, .. }) => {
                        BatchSubject::MissingIdentity(rule.id())
                    }
                };
                batch.subjects.push(subject);
                applied.clear();
                self.applied = applied;
            }
        });
        Ok(())
    }

    fn charge(
        &mut self,
        policy: usize,
        applied: &[AppliedLimit],
        record: &AccessRecord<'_>,
        batch: &mut Batch,
    ) -> BatchSubject {
        let first = batch.charges.len() as u32;
        for limit in applied {
            let key = limit.key.as_bytes();
            let start = batch.keys.len() as u32;
            batch.keys.extend_from_slice(key);
            batch.charges.push(BatchCharge {
                variant: self.variant(policy, limit),
                key: start..batch.keys.len() as u32,
                key_hash: self.hasher.hash_one(key),
                cost: limit.cost,
                actual: actual_cost(limit, record),
            });
        }
        BatchSubject::Charged(first..batch.charges.len() as u32)
    }

    fn variant(&mut self, policy: usize, limit: &AppliedLimit) -> u32 {
        let all = &self.policies[policy];
        *self.seen[policy].entry(limit.variant()).or_insert_with(|| all.index_of(limit))
    }
}

/// Returns the cost by the response, if that determines it.
fn actual_cost(limit: &AppliedLimit, record: &AccessRecord<'_>) -> u64 {
    if !limit.rule.is_charged_by_response() {
        return UNKNOWN;
    }
    let status = record.status.unwrap_or_default();
    let cost = record.with_response_headers(|headers| limit.rule.response_cost(status, headers));
    let usage_cost =
        || limit.rule.usage_cost(&record.usage(limit.rule.usage_format()?)?);
    cost.or_else(usage_cost).unwrap_or(UNKNOWN)
}
