//! Several limits over the same arrivals, at the same time.

use std::time::Duration;

use ratekeeper_core::{ALGORITHMS, Algorithm, Limit, LimitError, Rate};

use crate::arrival::Arrival;
use crate::outlet::Outlet;
use crate::simulate::{SimulateError, Simulation, next_batch};
use crate::summary::{Summary, delay_us};
use crate::timeline::{Columns, Timeline};
use crate::trace::TraceError;

/// A rate under every algorithm that can keep it.
#[derive(Debug)]
pub struct Lineup {
    /// The limits, in the order of the algorithms.
    pub limits: Vec<Limit>,
    /// What the reader has to know of them.
    pub notes: Vec<String>,
}

impl Lineup {
    /// The lineup for `rate`. Windows get it without its burst.
    pub fn new(rate: Rate) -> Result<Self, LimitError> {
        let plain = Rate::new(rate.count(), rate.period())?;
        let mut lineup = Self { limits: Vec::new(), notes: Vec::new() };
        for algorithm in ALGORITHMS {
            let rate = if algorithm.has_burst() { rate } else { plain };
            match Limit::new(rate, *algorithm) {
                Ok(limit) => lineup.limits.push(limit),
                Err(error) => lineup.notes.push(format!("{algorithm} is left out: {error}")),
            }
        }
        if rate != plain {
            lineup.notes.push(format!("the windows ran at {plain}: only buckets have a burst"));
        }
        Ok(lineup)
    }
}

/// How several limits took the same arrivals.
#[derive(Debug)]
pub struct Report {
    pub(crate) start_us: u64,
    pub(crate) span_us: u64,
    pub(crate) runs: Vec<Run>,
}

/// How one limit took them.
#[derive(Debug)]
pub struct Run {
    simulation: Simulation,
    summary: Summary,
    timeline: Timeline,
    /// For a queue only: the others let out what they admit at once.
    outlet: Option<Outlet>,
}

impl Run {
    /// The limit.
    pub fn limit(&self) -> &Limit {
        self.simulation.limit()
    }

    /// Counts and extremes.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    fn new(simulation: Simulation) -> Self {
        let limit = simulation.limit();
        Self {
            summary: Summary::new(limit),
            timeline: Timeline::new(),
            outlet: (limit.algorithm() == Algorithm::LeakyBucket).then(Outlet::new),
            simulation,
        }
    }

    fn add(&mut self, arrivals: &[Arrival], start_us: u64) -> Result<(), SimulateError> {
        let decisions = self.simulation.decide(arrivals)?;
        for (arrival, decision) in arrivals.iter().zip(&decisions) {
            self.summary.add(arrival, decision);
            let now_us = arrival.at.get().saturating_sub(start_us);
            self.timeline.add(now_us, decision.allowed());
            if let (Some(outlet), true) = (&mut self.outlet, decision.allowed()) {
                outlet.hold(now_us, now_us.saturating_add(delay_us(decision)));
            }
        }
        Ok(())
    }

    fn finish(&mut self, span_us: u64) {
        if let Some(outlet) = &mut self.outlet {
            outlet.let_out(span_us - 1);
        }
    }
}

impl Report {
    /// One run a limit, in their order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// How much time the report covers.
    pub fn span_us(&self) -> u64 {
        self.span_us
    }

    /// The run's requests over time. The columns of all runs are the same.
    pub fn columns(&self, run: &Run) -> Columns {
        run.timeline.columns(self.span_us)
    }

    /// How many requests a leaky bucket let out in each column; what is still held at the end is
    /// left out. `None` for the other algorithms, which hold nothing.
    pub fn let_out(&self, run: &Run) -> Option<Vec<u64>> {
        run.outlet.as_ref()?.columns(self.span_us)
    }

    /// How many keys were pushed out for want of room. If any, the results may be inexact.
    pub fn evictions(&self) -> u64 {
        self.runs.iter().map(|run| run.simulation.evictions()).sum()
    }
}

/// Runs all `limits` over the same arrivals, in memory, each with room for `keys_max` keys.
///
/// The report's time begins at 0 and goes on for `span`, or without one from the first arrival to
/// the last.
pub fn compare(
    limits: &[Limit],
    arrivals: impl Iterator<Item = Result<Arrival, TraceError>>,
    span: Option<Duration>,
    keys_max: usize,
) -> Result<Report, SimulateError> {
    let simulations = limits.iter().map(|limit| Simulation::new(limit.clone(), keys_max));
    compare_simulations(simulations, arrivals, span)
}

/// The same for limits that are decided elsewhere.
pub fn compare_simulations(
    simulations: impl Iterator<Item = Simulation>,
    mut arrivals: impl Iterator<Item = Result<Arrival, TraceError>>,
    span: Option<Duration>,
) -> Result<Report, SimulateError> {
    let mut runs: Vec<_> = simulations.map(Run::new).collect();
    let mut start_us = span.map(|_| 0);
    let mut last_us = 0;
    loop {
        let (batch, error) = next_batch(&mut arrivals);
        if let Some(error) = error {
            return Err(error.into());
        }
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else { break };
        let start_us = *start_us.get_or_insert(first.at.get());
        last_us = last.at.get();
        runs.iter_mut().try_for_each(|run| run.add(&batch, start_us))?;
    }
    let start_us = start_us.unwrap_or_default();
    let span_us = span.map_or(0, |span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
    let span_us = span_us.max(last_us - start_us + 1);
    runs.iter_mut().for_each(|run| run.finish(span_us));
    Ok(Report { start_us, span_us, runs })
}
