//! A report as text: a table and a chart.

use std::fmt::Write;

use crate::chart::Chart;
use crate::compare::{Report, Run};
use crate::text::{percent_text, span_text};

const LABEL_WIDTH: usize = 18;

impl Report {
    /// Returns the report as text for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self.runs() {
            [run] => format!("{}\n{}", self.facts(run), self.chart()),
            _ => format!("{}\n{}", self.comparison(), self.chart()),
        }
    }

    /// Returns a line for each number of one limit.
    fn facts(&self, run: &Run) -> String {
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
            (peak_label(run), peak_text(run)),
            ("max delay".to_string(), span_text(summary.delay_max_us())),
        ]);
        facts.iter().fold(String::new(), |mut text, (label, value)| {
            writeln!(text, "{label:LABEL_WIDTH$}{value}").expect("a string takes all");
            text
        })
    }

    /// Returns a line for each of several limits.
    fn comparison(&self) -> String {
        let Some(first) = self.runs.first() else { return String::new() };
        let peak = peak_label(first);
        let header =
            ["algorithm", "admitted", "denied", "denied %", &peak, "delay p50", "p99", "max"];
        let mut rows = vec![header.map(str::to_string)];
        rows.extend(self.runs.iter().map(comparison_row));
        let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        let widths: [usize; 8] = std::array::from_fn(width);
        let mut text = String::new();
        for row in &rows {
            let mut line = format!("{:<1$}", row[0], widths[0]);
            for (cell, width) in row.iter().zip(widths).skip(1) {
                write!(line, "  {cell:>width$}").expect("a string takes all");
            }
            writeln!(text, "{line}").expect("a string takes all");
        }
        writeln!(
            text,
            "{peak}: by one key, wherever that span begins, and how many times the rate"
        )
        .expect("a string takes all");
        text
    }

    fn chart(&self) -> String {
        let Some(first) = self.runs.first() else { return String::new() };
        let columns = self.columns(first);
        let offered = columns.offered();
        let max = offered.iter().copied().max().unwrap_or(0);
        let mut chart = Chart::new(max, columns.width_us, offered.len());
        chart.series("offered", &offered);
        let is_alone = self.runs.len() == 1;
        let label = |name: &str| if is_alone { name.to_string() } else { format!("  {name}") };
        for run in &self.runs {
            if !is_alone {
                chart.heading(run.limit().algorithm().name());
            }
            let columns = self.columns(run);
            chart.series(&label("admitted"), &columns.admitted);
            chart.series(&label("denied"), &columns.denied);
            if let Some(released) = self.released(run) {
                chart.series(&label("released"), &released);
            }
        }
        chart.finish()
    }
}

fn comparison_row(run: &Run) -> [String; 8] {
    let summary = run.summary();
    let delays = match summary.delay_max_us() {
        0 => ["-"; 3].map(str::to_string),
        max_us => {
            [summary.delay_quantile_us(50), summary.delay_quantile_us(99), max_us].map(span_text)
        }
    };
    let [p50, p99, max] = delays;
    [
        run.limit().algorithm().name().to_string(),
        summary.admitted().to_string(),
        summary.denied().to_string(),
        percent_text(summary.denied(), summary.offered()),
        peak_text(run),
        p50,
        p99,
        max,
    ]
}

fn peak_label(run: &Run) -> String {
    let period_us = run.limit().rate().period().as_micros();
    format!("most in any {}", span_text(u64::try_from(period_us).unwrap_or(u64::MAX)))
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
