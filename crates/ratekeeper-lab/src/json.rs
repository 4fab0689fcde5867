//! Output for programs: decisions as lines of JSON, and a report as a JSON document.

use std::io::{self, Write};

use ratekeeper_core::{Decision, Wait};
use serde::Serialize;

use crate::arrival::Arrival;
use crate::compare::{Report, Run};
use crate::simulate::{SimulateError, Simulation, next_batch};
use crate::summary::delay_us;
use crate::trace::TraceError;

/// Maximum number of columns in a document.
const COLUMNS_MAX: u64 = 60;

/// Decides every arrival and writes each decision as a line of JSON, in order.
///
/// # Errors
///
/// If the arrivals have an error, the store fails, or `out` cannot be written to. Decisions before an
/// error in the arrivals are written.
pub fn write_decisions(
    simulation: &Simulation,
    mut arrivals: impl Iterator<Item = Result<Arrival, TraceError>>,
    mut out: impl Write,
) -> Result<(), SimulateError> {
    loop {
        let (batch, error) = next_batch(&mut arrivals);
        let decisions = simulation.decide(&batch)?;
        for (arrival, decision) in batch.iter().zip(&decisions) {
            serde_json::to_writer(&mut out, &DecisionRecord::new(arrival, decision))
                .map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
        if let Some(error) = error {
            out.flush()?;
            return Err(error.into());
        }
        if batch.is_empty() {
            break;
        }
    }
    Ok(out.flush()?)
}

/// A decision as a line of JSON, with its fields in this order.
#[derive(Serialize)]
struct DecisionRecord<'a> {
    at_us: u64,
    key: &'a str,
    cost: u64,
    allowed: bool,
    remaining: u64,
    retry_after_us: Option<u64>,
    exceeds_capacity: bool,
    delay_us: u64,
}

impl<'a> DecisionRecord<'a> {
    fn new(arrival: &'a Arrival, decision: &Decision) -> Self {
        let retry_after_us = match decision.wait() {
            Wait::Micros(us) => Some(us),
            Wait::None | Wait::Never => None,
        };
        Self {
            at_us: arrival.at.get(),
            key: &arrival.key,
            cost: arrival.cost.get(),
            allowed: decision.allowed(),
            remaining: decision.remaining(),
            retry_after_us,
            exceeds_capacity: decision.exceeds_capacity(),
            delay_us: delay_us(decision),
        }
    }
}

#[derive(Serialize)]
struct ReportDocument {
    start_us: u64,
    span_us: u64,
    column_us: u64,
    evictions: u64,
    runs: Vec<RunDocument>,
}

#[derive(Serialize)]
struct RunDocument {
    algorithm: &'static str,
    rate: String,
    offered: u64,
    admitted: u64,
    denied: u64,
    exceeds_capacity: u64,
    cost_offered: u64,
    cost_admitted: u64,
    first_denied_at_us: Option<u64>,
    longest_retry_us: Option<u64>,
    most_in_a_period: Option<u64>,
    delay_p50_us: u64,
    delay_p99_us: u64,
    delay_max_us: u64,
    admitted_by_column: Vec<u64>,
    denied_by_column: Vec<u64>,
    released_by_column: Option<Vec<u64>>,
}

impl Report {
    /// Returns the report as a JSON document, without a line end.
    #[must_use]
    pub fn to_json(&self) -> String {
        let column_us = self.runs.first().map_or(0, |run| self.columns(run, COLUMNS_MAX).width_us);
        let document = ReportDocument {
            start_us: self.start_us,
            span_us: self.span_us,
            column_us,
            evictions: self.evictions(),
            runs: self.runs.iter().map(|run| self.run_document(run)).collect(),
        };
        serde_json::to_string(&document).expect("numbers and strings always serialize")
    }

    fn run_document(&self, run: &Run) -> RunDocument {
        let summary = run.summary();
        let columns = self.columns(run, COLUMNS_MAX);
        RunDocument {
            algorithm: run.limit().algorithm().name(),
            rate: run.limit().rate().to_string(),
            offered: summary.offered(),
            admitted: summary.admitted(),
            denied: summary.denied(),
            exceeds_capacity: summary.exceeds_capacity(),
            cost_offered: summary.cost_offered(),
            cost_admitted: summary.cost_admitted(),
            first_denied_at_us: summary.first_denied_at_us(),
            longest_retry_us: summary.longest_retry_us(),
            most_in_a_period: summary.most_in_a_period(),
            delay_p50_us: summary.delay_quantile_us(50),
            delay_p99_us: summary.delay_quantile_us(99),
            delay_max_us: summary.delay_max_us(),
            admitted_by_column: columns.admitted,
            denied_by_column: columns.denied,
            released_by_column: self.released(run, COLUMNS_MAX),
        }
    }
}
