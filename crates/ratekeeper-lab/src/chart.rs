//! A bar chart for the terminal, drawn with block characters over a time axis.

use std::fmt::Write;

use crate::text::span_text;

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Rows of one series.
const HEIGHT: u64 = 2;
const LABEL_WIDTH: usize = 12;

/// Series drawn below each other, with one scale.
pub(crate) struct Chart {
    max: u64,
    column_us: u64,
    columns: usize,
    text: String,
}

impl Chart {
    /// Creates a chart for series of `columns` numbers up to `max`.
    pub(crate) fn new(max: u64, column_us: u64, columns: usize) -> Self {
        let text = format!("requests per {}\n", span_text(column_us));
        Self { max, column_us, columns, text }
    }

    /// Adds a line of text above the next series.
    pub(crate) fn heading(&mut self, text: &str) {
        writeln!(self.text, "{text}").expect("a string takes all");
    }

    /// Adds a series.
    pub(crate) fn series(&mut self, label: &str, values: &[u64]) {
        for row in (0..HEIGHT).rev() {
            let is_top = row + 1 == HEIGHT;
            let label = if is_top { label } else { "" };
            let scale = if is_top { self.max } else { 0 };
            let bars: String = values.iter().map(|value| self.block(*value, row)).collect();
            self.line(label, &scale.to_string(), '┤', &bars);
        }
    }

    /// Adds the time axis and returns the chart.
    pub(crate) fn finish(mut self) -> String {
        let end = span_text(self.column_us * self.columns as u64);
        self.line("", "", '└', &"─".repeat(self.columns));
        let gap = self.columns.saturating_sub(1 + end.chars().count()).max(1);
        self.line("", "", ' ', &format!("0{:gap$}{end}", ""));
        self.text
    }

    fn line(&mut self, label: &str, scale: &str, edge: char, bars: &str) {
        let scale_width = self.max.to_string().len();
        let line = format!("{label:LABEL_WIDTH$}{scale:>scale_width$} {edge}{bars}");
        writeln!(self.text, "{}", line.trim_end()).expect("a string takes all");
    }

    /// Returns the part of a bar in `row`, counted from below. A value above 0 is always visible.
    fn block(&self, value: u64, row: u64) -> char {
        let levels = u128::from(value) * u128::from(8 * HEIGHT) / u128::from(self.max.max(1));
        let levels = u64::try_from(levels).unwrap_or(u64::MAX).max(value.min(1));
        BLOCKS[levels.saturating_sub(8 * row).min(8) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_to_scale_and_nothing_is_invisible() {
        let mut chart = Chart::new(1_600, 500_000, 7);
        chart.series("offered", &[0, 1, 100, 400, 800, 1_200, 1_600]);
        let expected = "\
requests per 500ms
offered     1600 ┤     ▄█
               0 ┤ ▁▁▄███
                 └───────
                  0  3.5s
";
        assert_eq!(chart.finish(), expected);
    }
}
