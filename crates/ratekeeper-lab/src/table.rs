//! A report as text: a table and a chart.

use std::fmt::Write;
use std::ops::Range;

use crate::chart::{Bars, Chart, Decided, Legend, Panel, TextOptions};
use crate::compare::{Report, Run};
use crate::text::{list_text, percent_text, short_span_text, span_text, wrap};

const LABEL_WIDTH: usize = 18;
/// The space between two columns of a table.
const GAP: usize = 2;

impl Report {
    /// Returns the report as text for a terminal.
    #[must_use]
    pub fn to_text(&self, options: TextOptions) -> String {
        let numbers = match self.runs() {
            [run] => facts_text(&self.facts(run)),
            _ => self.comparison_text(options.width()),
        };
        format!("{numbers}\n{}", self.chart(options))
    }

    /// Returns the numbers of one limit with their labels.
    pub(crate) fn facts(&self, run: &Run) -> Vec<(String, String)> {
        let summary = run.summary();
        let after =
            |at_us: u64| format!("after {}", span_text(at_us.saturating_sub(self.start_us)));
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
        let mut facts = vec![
            ("offered".to_string(), summary.offered().to_string()),
            ("admitted".to_string(), summary.admitted().to_string()),
            ("denied".to_string(), summary.denied().to_string()),
            ("denied %".to_string(), percent_text(summary.denied(), summary.offered())),
        ];
        if summary.exceeds_capacity() > 0 {
            facts.push(("over capacity".to_string(), summary.exceeds_capacity().to_string()));
        }
        if summary.cost_offered() != summary.offered() {
            facts.push(("cost offered".to_string(), summary.cost_offered().to_string()));
            facts.push(("cost admitted".to_string(), summary.cost_admitted().to_string()));
        }
        facts.extend([
            ("first denial".to_string(), or_none(summary.first_denied_at_us().map(after))),
            ("longest retry".to_string(), or_none(summary.longest_retry_us().map(span_text))),
            (format!("most in any {}", period_text(run)), peak_text(run)),
            ("max delay".to_string(), span_text(summary.delay_max_us())),
        ]);
        facts
    }

    /// Returns several limits in tables below each other if one would be too wide.
    fn comparison_text(&self, width: usize) -> String {
        let Some(Comparison { header, mut rows, note }) = self.comparison() else {
            return String::new();
        };
        rows.insert(0, header);
        let lines = tables(&rows, width).into_iter().chain(wrap(&note, width));
        lines.map(|line| line + "\n").collect()
    }

    /// Returns a row for each of several limits.
    pub(crate) fn comparison(&self) -> Option<Comparison> {
        let period = period_text(self.runs.first()?);
        let peak = format!("most in {period}");
        let header = ["algorithm", "admitted", "denied", &peak, "delay p50", "p99", "max"];
        let header = header.map(str::to_string);
        let rows = self.runs.iter().map(comparison_row).collect();
        let note =
            format!("{peak}: by one key in any span of {period}, and how many times the rate");
        Some(Comparison { header, rows, note })
    }

    fn chart(&self, options: TextOptions) -> String {
        let offered = self.runs.first().map_or(0, |run| run.summary().offered());
        if offered == 0 {
            return "There are no requests to draw.\n".to_string();
        }
        let bars_max = options.bars_max() as u64;
        let column_us = self.runs.first().map_or(1, |run| self.columns(run, bars_max).width_us);
        let groups = self.same_decisions();
        let arrivals = groups.iter().map(|group| self.arrivals_panel(group, bars_max));
        let releases = self.runs.iter().filter_map(|run| self.releases_panel(run, bars_max));
        let legend = Legend::DECISIONS;
        Chart { column_us, legend, panels: arrivals.chain(releases).collect() }.to_text(options)
    }

    /// Returns the panel of runs that admitted the same requests.
    fn arrivals_panel(&self, runs: &[&Run], bars_max: u64) -> Panel {
        let columns = self.columns(runs[0], bars_max);
        let pairs = columns.admitted.into_iter().zip(columns.denied);
        let bars = pairs.map(|(admitted, denied)| Decided { admitted, denied }).collect();
        Panel { heading: self.arrivals_heading(runs), bars: Bars::Decisions(bars) }
    }

    pub(crate) fn arrivals_heading(&self, runs: &[&Run]) -> String {
        if self.runs.len() == 1 {
            return String::new();
        }
        let names: Vec<_> = runs.iter().map(|run| run.limit().algorithm().name()).collect();
        match runs {
            [_] => list_text(&names),
            _ if runs.len() < self.runs.len() => {
                format!("{} admit the same requests", list_text(&names))
            }
            _ if runs[0].summary().denied() == 0 => {
                "all algorithms admit every request in this traffic".to_string()
            }
            _ => "all algorithms admit the same requests in this traffic".to_string(),
        }
    }

    /// Returns the panel of a run that delays requests.
    fn releases_panel(&self, run: &Run, bars_max: u64) -> Option<Panel> {
        if run.summary().delay_max_us() == 0 {
            return None;
        }
        let bars = Bars::Released(self.released(run, bars_max)?);
        Some(Panel { heading: releases_heading(run), bars })
    }
}

pub(crate) fn releases_heading(run: &Run) -> String {
    format!("{}: when admitted requests are released", run.limit().algorithm())
}

/// The numbers of several limits, one in each row.
pub(crate) struct Comparison {
    pub(crate) header: [String; 7],
    pub(crate) rows: Vec<[String; 7]>,
    pub(crate) note: String,
}

fn facts_text(facts: &[(String, String)]) -> String {
    facts.iter().fold(String::new(), |mut text, (label, value)| {
        writeln!(text, "{label:LABEL_WIDTH$}{value}").expect("a string takes all");
        text
    })
}

/// Returns the lines of tables that together have all columns. Each begins with the first column and has
/// as many of the others as fit in `width`, but at least one.
fn tables<const N: usize>(rows: &[[String; N]], width: usize) -> Vec<String> {
    let column_width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(column_width);
    let mut lines = Vec::new();
    let mut start = 1;
    while start < N {
        let mut used = widths[0] + GAP + widths[start];
        let mut end = start + 1;
        while end < N && used + GAP + widths[end] <= width {
            used += GAP + widths[end];
            end += 1;
        }
        if start > 1 {
            lines.push(String::new());
        }
        lines.extend(rows.iter().map(|row| table_line(row, &widths, start..end)));
        start = end;
    }
    lines
}

/// Returns the lines of a table of texts, which begin where their column does.
pub(crate) fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |row: &Vec<String>, i: usize| row.get(i).map_or(0, |cell| cell.chars().count());
    let column_width = |i: usize| rows.iter().map(|row| width(row, i)).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(column_width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}

fn table_line(row: &[String], widths: &[usize], columns: Range<usize>) -> String {
    let mut line = format!("{:<1$}", row[0], widths[0]);
    for (cell, width) in row[columns.clone()].iter().zip(&widths[columns]) {
        write!(line, "{:GAP$}{cell:>width$}", "").expect("a string takes all");
    }
    line
}

fn comparison_row(run: &Run) -> [String; 7] {
    let summary = run.summary();
    let delays = match summary.delay_max_us() {
        0 => ["-"; 3].map(str::to_string),
        max_us => {
            let quantile_us = |percent| summary.delay_quantile_us(percent);
            [quantile_us(50), quantile_us(99), max_us].map(short_span_text)
        }
    };
    let [p50, p99, max] = delays;
    let denied_percent = percent_text(summary.denied(), summary.offered());
    [
        run.limit().algorithm().name().to_string(),
        summary.admitted().to_string(),
        format!("{} ({denied_percent})", summary.denied()),
        peak_text(run),
        p50,
        p99,
        max,
    ]
}

fn period_text(run: &Run) -> String {
    let period_us = run.limit().rate().period().as_micros();
    span_text(u64::try_from(period_us).unwrap_or(u64::MAX))
}

/// Returns the highest cost in a period, absolute and as a multiple of the rate.
fn peak_text(run: &Run) -> String {
    match run.summary().most_in_a_period() {
        Some(most) => {
            let times = most as f64 / run.limit().rate().count() as f64;
            format!("{most} ({times:.1}x)")
        }
        None => "too many".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_too_wide_is_split_and_keeps_all_columns() {
        let rows = [["name", "one", "two", "three"], ["a", "1", "22", "3"]];
        let rows = rows.map(|row| row.map(str::to_string));
        assert_eq!(tables(&rows, 80), ["name  one  two  three", "a       1   22      3"]);
        let split = ["name  one  two", "a       1   22", "", "name  three", "a         3"];
        assert_eq!(tables(&rows, 14), split);
    }
}
