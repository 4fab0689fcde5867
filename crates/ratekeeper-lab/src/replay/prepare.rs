//! Lines of a log as a batch of requests: parses each line and resolves it by every policy.

use std::borrow::Cow;
use std::ops::Range;

use foldhash::fast::FixedState;
use ratekeeper_core::Micros;
use ratekeeper_policy::{AppliedLimit, AppliedLimits, LimitVariant, NotCharged};

use super::request::{Batch, BatchRequest, BatchSizes, BatchSubject, UNKNOWN, Variants};
use crate::access_log::{AccessRecord, Block, LineError, LogFormat, TimeCache};

/// Prepares batches on one thread.
pub(super) struct Preparer<'p> {
    policies: &'p [Variants],
    within: Range<Micros>,
    times: TimeCache,
    /// For each policy and each of its limits, the few variants that this thread has seen.
    seen: Vec<Vec<Vec<(LimitVariant, u32)>>>,
    hasher: FixedState,
    applied: AppliedLimits,
    /// Those of the last batch: the next one is about as large.
    sizes: BatchSizes,
}

impl<'p> Preparer<'p> {
    pub(super) fn new(policies: &'p [Variants], within: Range<Micros>) -> Self {
        let seen = policies.iter().map(|of| vec![Vec::new(); of.policy.limits().len()]).collect();
        let (times, applied) = (TimeCache::default(), AppliedLimits::new());
        let (hasher, sizes) = (FixedState::default(), BatchSizes::default());
        Self { policies, within, times, seen, hasher, applied, sizes }
    }

    pub(super) fn prepare(&mut self, block: &Block, format: &LogFormat, file: usize) -> Batch {
        let mut batch = Batch::with_capacity(self.sizes);
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
        self.sizes = batch.sizes();
        batch
    }

    fn add(&mut self, line: &[u8], format: &LogFormat, batch: &mut Batch) -> Result<(), LineError> {
        let text = match std::str::from_utf8(line) {
            Ok(text) => Cow::Borrowed(text),
            // Another encoding: the path is as good as it gets.
            Err(_) => String::from_utf8_lossy(line),
        };
        let Self { policies, within, times, seen, hasher, applied, .. } = self;
        let mut record = AccessRecord::default();
        format.parse_into(&text, times, &mut record)?;
        if !within.contains(&record.at) {
            batch.outside += 1;
            return Ok(());
        }
        let duration_us = record.duration_us.unwrap_or(UNKNOWN);
        batch.requests.push(BatchRequest { at_us: record.at.get(), duration_us });
        record.with_attributes(|request| {
            for (variants, seen) in policies.iter().zip(seen) {
                applied.clear();
                let subject = match variants.policy.resolve_into(request, applied) {
                    Ok(()) => {
                        let first = batch.charges.len() as u32;
                        for limit in applied.iter() {
                            let variant = index_of(limit, variants, &mut seen[limit.rule.id()]);
                            batch.charge(limit, variant, actual_cost(limit, &record), hasher);
                        }
                        BatchSubject::Charged(first..batch.charges.len() as u32)
                    }
                    Err(NotCharged::Exempt(_)) => BatchSubject::Exempt,
                    Err(NotCharged::MissingIdentity { rule, .. }) => {
                        BatchSubject::MissingIdentity(rule.id())
                    }
                };
                batch.subjects.push(subject);
            }
        });
        Ok(())
    }
}

/// Returns the index of a limit's variant.
fn index_of(limit: &AppliedLimit, variants: &Variants, seen: &mut Vec<(LimitVariant, u32)>) -> u32 {
    let variant = limit.variant();
    if let Some((_, index)) = seen.iter().find(|(known, _)| *known == variant) {
        return *index;
    }
    let index = variants.index_of(limit);
    seen.push((variant, index));
    index
}

/// Returns the cost by the response, if that determines it.
fn actual_cost(limit: &AppliedLimit, record: &AccessRecord<'_>) -> u64 {
    if !limit.rule.is_charged_by_response() {
        return UNKNOWN;
    }
    let status = record.status.unwrap_or_default();
    let cost = record.with_response_headers(|headers| limit.rule.response_cost(status, headers));
    let usage_cost = || limit.rule.usage_cost(&record.usage(limit.rule.usage_format()?)?);
    cost.or_else(usage_cost).unwrap_or(UNKNOWN)
}
