//! The results of a scenario: numbers, series and a chart.

use std::fmt::Write;

use serde::Serialize;

use super::measures::Measures;
use crate::TextOptions;
use crate::canvas;
use crate::chart::{Bars, Chart, Decided, Legend, Panel};
use crate::compare_document::over_time;
use crate::report::{self, Column, Document, Role, Section, Series, Table};
use crate::table;
use crate::text::{percent_text, short_span_text, span_text};
use crate::timeline::Columns;

/// The columns of the series in JSON.
const COLUMNS: u64 = 120;

/// What each variant of a scenario did.
#[derive(Debug)]
pub struct ScenarioResults {
    name: String,
    duration_us: u64,
    shows_ends: bool,
    runs: Vec<VariantRun>,
}

/// What one variant did.
#[derive(Debug)]
pub struct VariantRun {
    name: String,
    measures: Measures,
}

impl VariantRun {
    pub(super) fn new(name: String, measures: Measures) -> Self {
        Self { name, measures }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what happened.
    #[must_use]
    pub fn measures(&self) -> &Measures {
        &self.measures
    }
}

/// The results, for programs.
#[derive(Debug, Serialize)]
pub struct ResultNumbers<'r> {
    name: &'r str,
    duration_us: u64,
    variants: Vec<VariantNumbers<'r>>,
}

#[derive(Debug, Serialize)]
struct VariantNumbers<'r> {
    name: &'r str,
    requests: u64,
    served: u64,
    failed: u64,
    attempts: u64,
    admitted: u64,
    refused: u64,
    timed_out: u64,
    most_attempts_in_a_second: Option<u64>,
    most_admitted_in_a_second: Option<u64>,
    latency_p50_us: u64,
    latency_p99_us: u64,
    column_us: u64,
    admitted_per_column: Vec<u64>,
    refused_per_column: Vec<u64>,
    served_per_column: Vec<u64>,
    failed_per_column: Vec<u64>,
}

impl<'r> From<&'r VariantRun> for VariantNumbers<'r> {
    fn from(run: &'r VariantRun) -> Self {
        let measures = &run.measures;
        let (decisions, ends) = (measures.decisions(COLUMNS), measures.ends(COLUMNS));
        Self {
            name: &run.name,
            requests: measures.requests(),
            served: measures.requests_served(),
            failed: measures.requests_failed(),
            attempts: measures.attempts(),
            admitted: measures.admitted(),
            refused: measures.refused(),
            timed_out: measures.attempts_timed_out(),
            most_attempts_in_a_second: measures.most_attempts_in_a_second(),
            most_admitted_in_a_second: measures.most_admitted_in_a_second(),
            latency_p50_us: measures.latency_us(50),
            latency_p99_us: measures.latency_us(99),
            column_us: decisions.width_us,
            admitted_per_column: decisions.admitted,
            refused_per_column: decisions.denied,
            served_per_column: ends.admitted,
            failed_per_column: ends.denied,
        }
    }
}

impl ScenarioResults {
    pub(super) fn new(
        name: String,
        duration_us: u64,
        shows_ends: bool,
        runs: Vec<VariantRun>,
    ) -> Self {
        Self { name, duration_us, shows_ends, runs }
    }

    /// Returns the runs, in the order of the file.
    #[must_use]
    pub fn runs(&self) -> &[VariantRun] {
        &self.runs
    }

    /// Returns how many requests were dropped because too many were under way.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.runs.iter().map(|run| run.measures.dropped()).sum()
    }

    /// Returns numbers and series that can be serialized.
    #[must_use]
    pub fn numbers(&self) -> ResultNumbers<'_> {
        let variants = self.runs.iter().map(VariantNumbers::from).collect();
        ResultNumbers { name: &self.name, duration_us: self.duration_us, variants }
    }

    /// Returns the results as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.numbers()).expect("numbers and texts are JSON")
    }

    /// Returns the results as text for a terminal.
    #[must_use]
    pub fn to_text(&self, options: TextOptions) -> String {
        let title = format!("{}: {}", self.name, span_text(self.duration_us));
        let mut text = canvas::heading(&title, options.color);
        text.push('\n');
        for line in table::aligned(&self.rows()) {
            writeln!(text, "{line}").expect("a string takes all");
        }
        format!("{text}\n{}", self.chart(options).to_text(options))
    }

    /// Returns the results as a document.
    #[must_use]
    pub fn to_document(&self) -> Document {
        let mut rows = self.rows().into_iter();
        let names = rows.next().unwrap_or_default().into_iter().enumerate();
        let column = |(i, name)| if i == 0 { Column::text(name) } else { Column::number(name) };
        let table = rows.fold(Table::new(names.map(column)), Table::row);
        let charts = self.runs.iter().map(|run| self.document_chart(run));
        let charts = charts.fold(Section::new("Over time"), Section::chart);
        Document::new(&self.name).section(Section::new("Numbers").table(table)).section(charts)
    }

    fn document_chart(&self, run: &VariantRun) -> report::Chart {
        let Columns { width_us, admitted, denied } = self.columns(run, COLUMNS);
        let legend = self.legend();
        over_time(run.name.clone(), width_us, admitted.len())
            .series(Series::counts(legend.lower, Role::Admitted, &admitted))
            .series(Series::counts(legend.upper, Role::Denied, &denied))
    }

    fn legend(&self) -> Legend {
        if self.shows_ends { Legend::RESPONSES } else { Legend::DECISIONS }
    }

    fn columns(&self, run: &VariantRun, columns_max: u64) -> Columns {
        match self.shows_ends {
            true => run.measures.ends(columns_max),
            false => run.measures.decisions(columns_max),
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let header = [
            "",
            "requests",
            "served",
            "attempts",
            "refused",
            "timed out",
            "most in 1s",
            "p50",
            "p99",
        ];
        let row = |run: &VariantRun| {
            let measures = &run.measures;
            let served = percent_text(measures.requests_served(), measures.requests());
            let amplification = measures.attempts() as f64 / measures.requests().max(1) as f64;
            let most = measures.most_admitted_in_a_second();
            vec![
                run.name.clone(),
                measures.requests().to_string(),
                format!("{} ({served})", measures.requests_served()),
                format!("{} ({amplification:.1}x)", measures.attempts()),
                measures.refused().to_string(),
                measures.attempts_timed_out().to_string(),
                most.map_or("too many".to_string(), |most| most.to_string()),
                short_span_text(measures.latency_us(50)),
                short_span_text(measures.latency_us(99)),
            ]
        };
        let mut rows = vec![header.map(str::to_string).to_vec()];
        rows.extend(self.runs.iter().map(row));
        rows
    }

    fn chart(&self, options: TextOptions) -> Chart {
        let columns = |run: &VariantRun| self.columns(run, options.bars_max() as u64);
        let panel = |run: &VariantRun| {
            let Columns { admitted, denied, .. } = columns(run);
            let pairs = admitted.into_iter().zip(denied);
            let bars = pairs.map(|(admitted, denied)| Decided { admitted, denied }).collect();
            Panel { heading: run.name.clone(), bars: Bars::Decisions(bars) }
        };
        let column_us = self.runs.first().map_or(1, |run| columns(run).width_us);
        let legend = self.legend();
        Chart { column_us, legend, panels: self.runs.iter().map(panel).collect() }
    }
}
