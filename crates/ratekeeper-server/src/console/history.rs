//! What happened lately, in a fixed amount of memory: every second of the last minutes, coarser steps of the last
//! hours.
//!
//! Nothing is counted here. Counters that exist are read once a second, and a row is the difference of two readings,
//! so a decision costs the same with and without a history.

use std::collections::VecDeque;
use std::sync::Arc;

use ratekeeper::histogram::{BOUNDS_US, DurationCounts};

/// Limits with a history of their own. Others are part of the total.
pub(super) const LIMITS_MAX: usize = 256;

/// Decisions: allowed, of these near the limit, denied, denied but for shadow mode.
pub(super) type LimitCounts = [u64; 4];
/// Requests: allowed, denied, errors, others.
pub(super) type ProtocolCounts = [u64; 4];

/// All counters at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub(super) at_us: u64,
    pub(super) limits: Vec<(Arc<str>, LimitCounts)>,
    pub(super) protocols: Vec<(&'static str, ProtocolCounts)>,
    /// What takes how long, by its name.
    pub(super) durations: Vec<(&'static str, DurationCounts)>,
}

/// How long a history reaches back, and in which steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    FiveMinutes,
    Hour,
    Day,
}

impl Span {
    pub(super) const ALL: [Self; 3] = [Self::FiveMinutes, Self::Hour, Self::Day];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::FiveMinutes => "5m",
            Self::Hour => "1h",
            Self::Day => "24h",
        }
    }

    pub(super) fn step_us(self) -> u64 {
        match self {
            Self::FiveMinutes => 1_000_000,
            Self::Hour => 10_000_000,
            Self::Day => 240_000_000,
        }
    }

    const fn rows_max(self) -> usize {
        match self {
            Self::FiveMinutes => 300,
            Self::Hour | Self::Day => 360,
        }
    }
}

/// A reading may be early by so much: they are a second apart.
const EARLY_US: u64 = 100_000;

/// What happened within one step.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// When it ended.
    pub(super) at_us: u64,
    pub(super) elapsed_us: u64,
    pub(super) total: [u32; 4],
    /// By the slot of the limit.
    limits: Box<[[u32; 4]]>,
    pub(super) protocols: Box<[(&'static str, [u32; 4])]>,
    pub(super) durations: Box<[(&'static str, Quantiles)]>,
}

/// The least bucket bounds that a half, 95% and 99% of the durations did not exceed, in microseconds. `None` if
/// there were no durations; a duration above all bounds counts as the greatest.
pub(super) type Quantiles = Option<[u32; 3]>;

impl Row {
    /// Returns the counts of the limit with this slot.
    pub(super) fn limit(&self, slot: usize) -> [u32; 4] {
        self.limits.get(slot).copied().unwrap_or_default()
    }
}

/// Rows of all spans.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The name of the limit in each slot.
    slots: Vec<Arc<str>>,
    spans: [Rows; Span::ALL.len()],
}

#[derive(Debug, Default)]
struct Rows {
    /// The reading that the next row begins with.
    since: Option<Reading>,
    rows: VecDeque<Row>,
}

impl History {
    /// Adds what happened since the last reading. Time that goes back restarts a row.
    pub(super) fn add(&mut self, reading: &Reading) {
        self.assign_slots(reading);
        for span in Span::ALL {
            let Rows { since, rows } = &mut self.spans[span as usize];
            let Some(before) = since.as_ref().filter(|before| before.at_us <= reading.at_us) else {
                *since = Some(reading.clone());
                continue;
            };
            if reading.at_us - before.at_us + EARLY_US < span.step_us() {
                continue;
            }
            if rows.len() == span.rows_max() {
                rows.pop_front();
            }
            rows.push_back(row(&self.slots, before, reading));
            *since = Some(reading.clone());
        }
    }

    pub(super) fn rows(&self, span: Span) -> impl ExactSizeIterator<Item = &Row> {
        self.spans[span as usize].rows.iter()
    }

    /// Returns what happened in the last second.
    pub(super) fn last(&self) -> Option<&Row> {
        self.spans[Span::FiveMinutes as usize].rows.back()
    }

    /// Returns where the counts of a limit are in each row.
    pub(super) fn slot(&self, limit: &str) -> Option<usize> {
        self.slots.iter().position(|name| **name == *limit)
    }

    /// Returns the sum of the last rows that cover this time.
    pub(super) fn sum(&self, limit: usize, over_us: u64) -> [u64; 4] {
        let rows = &self.spans[Span::FiveMinutes as usize].rows;
        let from_us = rows.back().map_or(0, |row| row.at_us.saturating_sub(over_us));
        let recent = rows.iter().rev().take_while(|row| row.at_us > from_us);
        recent.fold([0; 4], |mut sums, row| {
            let counts = row.limit(limit);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += u64::from(count));
            sums
        })
    }

    /// Gives each new limit a slot: an empty one, or one of a limit that is gone.
    fn assign_slots(&mut self, reading: &Reading) {
        for (name, _) in &reading.limits {
            if self.slots.contains(name) {
                continue;
            }
            if self.slots.len() < LIMITS_MAX {
                self.slots.push(Arc::clone(name));
                continue;
            }
            let is_gone = |slot: &Arc<str>| !reading.limits.iter().any(|(name, _)| name == slot);
            let Some(slot) = self.slots.iter().position(is_gone) else { return };
            self.slots[slot] = Arc::clone(name);
            let rows = self.spans.iter_mut().flat_map(|span| &mut span.rows);
            rows.filter_map(|row| row.limits.get_mut(slot)).for_each(|counts| *counts = [0; 4]);
        }
    }
}

fn row(slots: &[Arc<str>], before: &Reading, now: &Reading) -> Row {
    let counts_of = |limits: &[(Arc<str>, LimitCounts)], name: &Arc<str>| {
        limits.iter().find(|(known, _)| known == name).map(|(_, counts)| *counts)
    };
    let since = |name: &Arc<str>, counts: LimitCounts| {
        difference(counts, counts_of(&before.limits, name).unwrap_or_default())
    };
    let total = now.limits.iter().fold([0_u32; 4], |mut total, (name, counts)| {
        let counts = since(name, *counts);
        total.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
        total
    });
    let limit = |name| counts_of(&now.limits, name).map_or([0; 4], |counts| since(name, counts));
    let protocols = now.protocols.iter().zip(&before.protocols);
    let durations = now.durations.iter().zip(&before.durations);
    Row {
        at_us: now.at_us,
        elapsed_us: now.at_us - before.at_us,
        total,
        limits: slots.iter().map(limit).collect(),
        protocols: protocols.map(|(now, before)| (now.0, difference(now.1, before.1))).collect(),
        durations: durations.map(|(now, before)| (now.0, quantiles(&now.1, &before.1))).collect(),
    }
}

/// Counters restart when a limit is removed and comes back.
fn difference(now: [u64; 4], before: [u64; 4]) -> [u32; 4] {
    std::array::from_fn(|i| u32::try_from(now[i].saturating_sub(before[i])).unwrap_or(u32::MAX))
}

/// Returns the quantiles of what was recorded between two readings.
pub(super) fn quantiles(now: &DurationCounts, before: &DurationCounts) -> Quantiles {
    let count = now.count.saturating_sub(before.count);
    if count == 0 {
        return None;
    }
    let within: Vec<_> = now
        .within
        .iter()
        .zip(before.within)
        .map(|(now, before)| now.saturating_sub(before))
        .collect();
    let quantile = |percent: u64| {
        let least = (count * percent).div_ceil(100);
        let bucket = within.iter().position(|within| *within >= least);
        BOUNDS_US[bucket.unwrap_or(BOUNDS_US.len() - 1)] as u32
    };
    Some([50, 95, 99].map(quantile))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn reading(second: u64, limits: &[(&str, u64)]) -> Reading {
        let counts = |denied| [0, 0, denied, 0];
        let limits = limits.iter().map(|(name, denied)| (Arc::from(*name), counts(*denied)));
        Reading { at_us: second * SECOND, limits: limits.collect(), ..Reading::default() }
    }

    fn denied(history: &History, span: Span, limit: &str) -> Vec<u32> {
        let slot = history.slot(limit).unwrap();
        history.rows(span).map(|row| row.limit(slot)[2]).collect()
    }

    #[test]
    fn every_span_has_the_same_total_in_its_own_steps() {
        let mut history = History::default();
        for second in 0..=100 {
            history.add(&reading(second, &[("a", 3 * second)]));
        }
        assert_eq!(denied(&history, Span::FiveMinutes, "a"), [3; 100]);
        assert_eq!(denied(&history, Span::Hour, "a"), [30; 10]);
        assert_eq!(denied(&history, Span::Day, "a"), [0; 0]);
        assert_eq!(history.sum(0, 60 * SECOND), [0, 0, 180, 0]);
    }

    #[test]
    fn memory_is_bounded_whatever_the_time_and_the_names() {
        let mut history = History::default();
        for second in 0..2_000 {
            let names: Vec<_> = (0..300).map(|n| format!("{}", second / 500 * 1_000 + n)).collect();
            let limits: Vec<_> = names.iter().map(|name| (name.as_str(), second)).collect();
            history.add(&reading(second, &limits));
        }
        assert_eq!(history.rows(Span::FiveMinutes).len(), 300);
        assert_eq!(history.slots.len(), LIMITS_MAX);
        assert!(history.slot("3000").is_some() && history.slot("0").is_none());
        assert_eq!(history.last().unwrap().total, [0, 0, 300, 0], "also of limits without a slot");
    }

    #[test]
    fn a_limit_that_takes_the_slot_of_another_does_not_take_its_past() {
        let mut history = History::default();
        let old: Vec<_> = (0..LIMITS_MAX).map(|n| n.to_string()).collect();
        let old: Vec<_> = old.iter().map(|name| (name.as_str(), 7)).collect();
        history.add(&reading(0, &[]));
        history.add(&reading(1, &old));
        history.add(&reading(2, &[("new", 5)]));
        assert_eq!(denied(&history, Span::FiveMinutes, "new"), [0, 5]);
    }

    #[test]
    fn counters_that_restart_and_clocks_that_go_back_do_no_harm() {
        let mut history = History::default();
        history.add(&reading(10, &[("a", 100)]));
        history.add(&reading(11, &[("a", 5)]));
        history.add(&reading(5, &[("a", 6)]));
        history.add(&reading(6, &[("a", 8)]));
        assert_eq!(denied(&history, Span::FiveMinutes, "a"), [0, 2]);
    }

    #[test]
    fn quantiles_are_of_the_step_and_not_of_all_time() {
        let counts = |fast: u64, slow: u64| {
            let within = BOUNDS_US.map(|bound| if bound < 500 { fast } else { fast + slow });
            let within = std::array::from_fn(|i| if BOUNDS_US[i] < 10 { 0 } else { within[i] });
            let mut counts = DurationCounts::default();
            (counts.within, counts.count) = (within, fast + slow);
            counts
        };
        assert_eq!(quantiles(&counts(1_000, 0), &counts(1_000, 0)), None);
        let found = quantiles(&counts(1_090, 10), &counts(1_000, 0));
        assert_eq!(found, Some([10, 500, 500]));
    }
}
