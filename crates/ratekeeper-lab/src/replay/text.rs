//! A replay as text for a terminal.

use super::result::{PolicyResult, ReplayResult};
use crate::canvas::{Canvas, Ink, cells};
use crate::chart::{Bars, Chart, Decided, Legend, Panel, TextOptions};
use crate::report::{Block, Section, Table};
use crate::text::wrap;

/// The space between two columns.
const GAP: usize = 2;
/// The widest text of a cell: a longer one is cut.
const CELL_MAX: usize = 48;

impl ReplayResult {
    /// Returns the result as text. `names` are those of the policies.
    #[must_use]
    pub fn to_text(&self, names: &[&str], options: TextOptions) -> String {
        let document = self.to_document(names);
        let mut text = Text { canvas: Canvas::new(options.color), options };
        text.wrapped(&document.title, Ink::Heading);
        for note in &document.notes {
            let mut lines = note.lines();
            text.wrapped(&format!("note: {}", lines.next().unwrap_or_default()), Ink::Text);
            lines.for_each(|line| {
                text.line(&format!("  {}", shortened(line, options.width() - 2)), Ink::Text);
            });
        }
        document.sections.iter().for_each(|section| text.section(section));
        let mut text = text.canvas.into_text();
        for (policy, name) in self.policies.iter().zip(names) {
            let of = if names.len() > 1 { format!("requests under {name}") } else { String::new() };
            text.push_str(&format!("\n{}", policy.text_chart(of, options)));
        }
        text
    }
}

impl PolicyResult {
    fn text_chart(&self, heading: String, options: TextOptions) -> String {
        let series = &self.series;
        let factor = series.admitted.len().div_ceil(options.bars_max()).max(1);
        let columns = series.admitted.chunks(factor).zip(series.refused.chunks(factor));
        let bars = columns.map(|(admitted, refused)| Decided {
            admitted: admitted.iter().sum(),
            denied: refused.iter().sum(),
        });
        let panels = vec![Panel { heading, bars: Bars::Decisions(bars.collect()) }];
        let column_us = series.width_us * factor as u64;
        Chart { column_us, legend: Legend::DECISIONS, panels }.to_text(options)
    }
}

struct Text {
    canvas: Canvas,
    options: TextOptions,
}

impl Text {
    fn line(&mut self, text: &str, ink: Ink) {
        self.canvas.line(cells(text, ink));
    }

    fn wrapped(&mut self, text: &str, ink: Ink) {
        wrap(text, self.options.width()).iter().for_each(|line| self.line(line, ink));
    }

    fn section(&mut self, section: &Section) {
        self.line("", Ink::Text);
        self.line(&section.heading, Ink::Heading);
        for block in &section.blocks {
            match block {
                Block::Text(text) => self.wrapped(text, Ink::Text),
                Block::Facts(facts) => self.facts(facts),
                Block::Table(table) => self.table(table),
                // Charts follow at the end, one below the other.
                Block::Chart(_) => {}
            }
        }
    }

    fn facts(&mut self, facts: &[(String, String)]) {
        let width = facts.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        for (label, value) in facts {
            self.line(&format!("{label:width$}{:GAP$}{value}", ""), Ink::Text);
        }
    }

    /// Writes the columns that fit side by side, and the others below, each time after the first column.
    fn table(&mut self, table: &Table) {
        self.line("", Ink::Text);
        let header: Vec<String> = table.columns.iter().map(|column| column.name.clone()).collect();
        let rows: Vec<Vec<String>> = [&header]
            .into_iter()
            .chain(&table.rows)
            .map(|row| row.iter().map(|cell| shortened(cell, CELL_MAX)).collect())
            .collect();
        let widths: Vec<usize> = (0..header.len())
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut start = 1;
        while start < header.len() {
            let mut end = start + 1;
            let width = |end: usize| {
                widths[0] + widths[start..end].iter().map(|width| GAP + width).sum::<usize>()
            };
            while end < header.len() && width(end + 1) <= self.options.width() {
                end += 1;
            }
            if start > 1 {
                self.line("", Ink::Text);
            }
            for (index, row) in rows.iter().enumerate() {
                let mut line = format!("{:<1$}", row[0], widths[0]);
                for column in start..end {
                    let (cell, width) = (&row[column], widths[column]);
                    match table.columns[column].is_number {
                        true => line.push_str(&format!("{:GAP$}{cell:>width$}", "")),
                        false => line.push_str(&format!("{:GAP$}{cell:<width$}", "")),
                    }
                }
                self.line(line.trim_end(), if index == 0 { Ink::Heading } else { Ink::Text });
            }
            start = end;
        }
        if let Some(note) = &table.note {
            self.wrapped(&format!("({note})"), Ink::Text);
        }
    }
}

/// Cuts a text that is too long.
fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some(_) => text.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_string(),
    }
}
