//! Comparison of several limits over the same arrivals.

use std::ops::Range;

use ratekeeper_core::{ALGORITHMS, Algorithm, Decision, Limit, LimitError, Micros, Rate};

use crate::arrival::Arrival;
use crate::releases::Releases;
use crate::simulate::{SimulateError, Simulation, next_batch};
use crate::summary::{Summary, delay_us};
use crate::text::list_text;
use crate::timeline::{Columns, Timeline};
use crate::trace::TraceError;

/// One rate with every algorithm that supports it.
///
/// ```
/// use ratekeeper_lab::AllAlgorithms;
///
/// let all = AllAlgorithms::new("5/s burst 10".parse()?)?;
/// assert_eq!(all.limits.len(), 5);
/// let note = "fixed_window, sliding_log and sliding_counter have no burst and use 5/s";
/// assert_eq!(all.notes, [note]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AllAlgorithms {
    /// The limits, in the order of the algorithms.
    pub limits: Vec<Limit>,
    /// Which algorithms were omitted or use another rate, as text for the reader of a report.
    pub notes: Vec<String>,
}

impl AllAlgorithms {
    /// Creates a limit for each algorithm. Window algorithms have no burst and use the rate without it.
    ///
    /// # Errors
    ///
    /// If the rate is invalid without its burst.
    pub fn new(rate: Rate) -> Result<Self, LimitError> {
        let plain = rate.with_count(rate.count())?;
        let mut all = Self { limits: Vec::new(), notes: Vec::new() };
        let mut without_calendar = Vec::new();
        for algorithm in ALGORITHMS {
            let rate = if algorithm.has_burst() { rate } else { plain };
            match Limit::new(rate, *algorithm) {
                Ok(limit) => all.limits.push(limit),
                Err(LimitError::Calendar(algorithm)) => without_calendar.push(algorithm.name()),
                Err(error) => all.notes.push(format!("{algorithm} is omitted: {error}")),
            }
        }
        if !without_calendar.is_empty() {
            let names = list_text(&without_calendar);
            all.notes.push(format!("{names} have no calendar windows and are omitted"));
        }
        let without_burst = all.limits.iter().map(Limit::algorithm).filter(|a| !a.has_burst());
        let without_burst: Vec<_> = without_burst.map(Algorithm::name).collect();
        if rate != plain && !without_burst.is_empty() {
            let names = list_text(&without_burst);
            all.notes.push(format!("{names} have no burst and use {plain}"));
        }
        Ok(all)
    }
}

/// The results of several limits for the same arrivals.
#[derive(Debug)]
pub struct Report {
    pub(crate) start_us: u64,
    pub(crate) span_us: u64,
    pub(crate) runs: Vec<Run>,
    /// For each run, the first run that admitted the same requests.
    groups: Vec<usize>,
}

/// The results of one limit.
#[derive(Debug)]
pub struct Run {
    simulation: Simulation,
    summary: Summary,
    timeline: Timeline,
    /// Of a leaky bucket only: the others do not delay.
    releases: Option<Releases>,
}

impl Run {
    /// Returns the limit.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        self.simulation.limit()
    }

    /// Returns counts and extremes.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    fn new(simulation: Simulation) -> Self {
        let limit = simulation.limit();
        Self {
            summary: Summary::new(limit),
            timeline: Timeline::new(),
            releases: (limit.algorithm() == Algorithm::LeakyBucket).then(Releases::new),
            simulation,
        }
    }

    /// Decides the arrivals and returns which were admitted.
    fn add(&mut self, arrivals: &[Arrival], start_us: u64) -> Result<Vec<bool>, SimulateError> {
        let decisions = self.simulation.decide(arrivals)?;
        for (arrival, decision) in arrivals.iter().zip(&decisions) {
            self.summary.add(arrival, decision);
            let now_us = arrival.at.get().saturating_sub(start_us);
            self.timeline.add(now_us, decision.allowed());
            if let (Some(releases), true) = (&mut self.releases, decision.allowed()) {
                releases.add(now_us, now_us.saturating_add(delay_us(decision)));
            }
        }
        Ok(decisions.iter().map(Decision::allowed).collect())
    }

    fn finish(&mut self, span_us: u64) {
        if let Some(releases) = &mut self.releases {
            releases.advance(span_us - 1);
        }
    }
}

impl Report {
    /// Returns one run for each limit, in their order.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns how much time the report covers.
    #[must_use]
    pub fn span_us(&self) -> u64 {
        self.span_us
    }

    /// Returns the requests of a run over time, in at most `columns_max` columns (and at most 500). All runs
    /// have the same columns.
    #[must_use]
    pub fn columns(&self, run: &Run, columns_max: u64) -> Columns {
        run.timeline.columns(self.span_us, columns_max)
    }

    /// Returns how many requests a leaky bucket released in each of these columns, without those that are
    /// still delayed at the end. `None` for the other algorithms, which do not delay.
    #[must_use]
    pub fn released(&self, run: &Run, columns_max: u64) -> Option<Vec<u64>> {
        run.releases.as_ref()?.columns(self.span_us, columns_max)
    }

    /// Returns the runs in groups that admitted the same requests, in the order of their first runs.
    #[must_use]
    pub fn same_decisions(&self) -> Vec<Vec<&Run>> {
        let groups = self.groups.iter().enumerate();
        let firsts = groups.filter(|(run, group)| run == *group).map(|(run, _)| run);
        let members = |first| self.runs.iter().zip(&self.groups).filter(move |(_, g)| **g == first);
        firsts.map(|first| members(first).map(|(run, _)| run).collect()).collect()
    }

    /// Returns how many keys were evicted because memory was full. After an eviction, results may be
    /// inexact.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.runs.iter().map(|run| run.simulation.evictions()).sum()
    }
}

/// Runs all `limits` over the same arrivals, in memory, each with capacity for `keys_max` keys.
///
/// The report covers the `span`, or without one the time from the first to the last arrival.
///
/// # Errors
///
/// If the arrivals have an error.
pub fn compare(
    limits: &[Limit],
    arrivals: impl Iterator<Item = Result<Arrival, TraceError>>,
    span: Option<Range<Micros>>,
    keys_max: usize,
) -> Result<Report, SimulateError> {
    let simulations = limits.iter().map(|limit| Simulation::new(limit.clone(), keys_max));
    compare_simulations(simulations, arrivals, span)
}

/// Does the same for simulations with deciders of their own.
///
/// # Errors
///
/// If the arrivals have an error, or a store fails.
pub fn compare_simulations(
    simulations: impl Iterator<Item = Simulation>,
    mut arrivals: impl Iterator<Item = Result<Arrival, TraceError>>,
    span: Option<Range<Micros>>,
) -> Result<Report, SimulateError> {
    let mut runs: Vec<_> = simulations.map(Run::new).collect();
    let mut groups = vec![0; runs.len()];
    let mut start_us = span.as_ref().map(|span| span.start.get());
    let mut last_us = 0;
    loop {
        let (batch, error) = next_batch(&mut arrivals);
        if let Some(error) = error {
            return Err(error.into());
        }
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else { break };
        let start_us = *start_us.get_or_insert(first.at.get());
        last_us = last.at.get();
        let admitted: Result<Vec<_>, _> =
            runs.iter_mut().map(|run| run.add(&batch, start_us)).collect();
        groups = split_groups(&groups, &admitted?);
    }
    let start_us = start_us.unwrap_or_default();
    let span_us = span.map_or(0, |span| span.end.get().saturating_sub(start_us));
    let span_us = span_us.max(last_us.saturating_sub(start_us) + 1);
    runs.iter_mut().for_each(|run| run.finish(span_us));
    Ok(Report { start_us, span_us, runs, groups })
}

/// Returns for each run the first run that was in the same group and admitted the same requests now.
fn split_groups(groups: &[usize], admitted: &[Vec<bool>]) -> Vec<usize> {
    let is_same = |a: usize, b: usize| groups[a] == groups[b] && admitted[a] == admitted[b];
    let first = |run| (0..run).find(|other| is_same(*other, run)).unwrap_or(run);
    (0..groups.len()).map(first).collect()
}
