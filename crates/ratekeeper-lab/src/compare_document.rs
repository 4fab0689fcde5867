//! A comparison as a document.

use crate::compare::{Report, Run};
use crate::report::{Axis, Chart, Column, Document, Role, Section, Series, Shape, Table, Unit};
use crate::table::{Comparison, releases_heading};
use crate::text::span_text;

/// As many as the data of a chart can have and each still be seen.
const COLUMNS_MAX: u64 = 120;

impl Report {
    /// Returns the report as a document with this title: numbers, and charts of the requests over time.
    #[must_use]
    pub fn to_document(&self, title: &str) -> Document {
        let numbers = Section::new("Numbers");
        let numbers = match self.runs() {
            [run] => numbers.facts(self.facts(run)),
            _ => match self.comparison() {
                Some(comparison) => numbers.table(comparison_table(comparison)),
                None => numbers,
            },
        };
        let groups = self.same_decisions();
        let arrivals = groups.iter().map(|group| self.arrivals_chart(group));
        let releases = self.runs().iter().filter_map(|run| self.releases_chart(run));
        let charts = Section::new("Over time");
        let charts = arrivals.chain(releases).fold(charts, Section::chart);
        Document::new(title).section(numbers).section(charts)
    }

    fn arrivals_chart(&self, runs: &[&Run]) -> Chart {
        let columns = self.columns(runs[0], COLUMNS_MAX);
        let heading = match self.arrivals_heading(runs) {
            heading if heading.is_empty() => "Requests when they arrive".to_string(),
            heading => heading,
        };
        over_time(heading, columns.width_us, columns.admitted.len())
            .series(Series::counts("admitted", Role::Admitted, &columns.admitted))
            .series(Series::counts("denied", Role::Denied, &columns.denied))
    }

    fn releases_chart(&self, run: &Run) -> Option<Chart> {
        if run.summary().delay_max_us() == 0 {
            return None;
        }
        let width_us = self.columns(run, COLUMNS_MAX).width_us;
        let released = self.released(run, COLUMNS_MAX)?;
        let chart = over_time(releases_heading(run), width_us, released.len());
        Some(chart.series(Series::counts("released", Role::Delayed, &released)))
    }
}

/// Returns a chart of requests over time, without series.
pub(crate) fn over_time(title: String, width_us: u64, columns: usize) -> Chart {
    let starts = (0..columns).map(|column| (column as u64 * width_us) as f64).collect();
    let requests = format!("requests per {}", span_text(width_us));
    let (time, requests) = (Axis::new("time", Unit::Duration), Axis::new(requests, Unit::Count));
    Chart::over(title, time, starts, requests).shape(Shape::Bars).stacked()
}

fn comparison_table(comparison: Comparison) -> Table {
    let Comparison { header, rows, note } = comparison;
    let column = |(i, name)| if i == 0 { Column::text(name) } else { Column::number(name) };
    let table = Table::new(header.into_iter().enumerate().map(column)).note(note);
    rows.into_iter().fold(table, Table::row)
}
