//! Limits that were found in a log, as text, a document, JSON and a policy.

use std::fmt::Write;

use serde::Serialize;

use super::search::{FoundLimit, HitCaller};
use crate::TextOptions;
use crate::canvas;
use crate::report::{Column, Document, Section, Table};
use crate::table;
use crate::text::percent_text;

/// The limits that were found, and who would be hit by the first of them.
#[derive(Clone, Debug, Serialize)]
pub struct LogReport {
    /// How many requests the log has.
    pub requests: usize,
    /// How many callers.
    pub callers: usize,
    /// What may be refused.
    pub refuse_at_most: String,
    /// What the bands are of.
    pub band_of: String,
    /// What the recommended limits have more than the smallest ones, in percent.
    pub headroom_percent: u32,
    /// A limit for each algorithm.
    pub limits: Vec<FoundLimit>,
    /// What else the reader has to know.
    pub notes: Vec<String>,
}

impl LogReport {
    /// Returns the report as text for a terminal.
    #[must_use]
    pub fn to_text(&self, options: TextOptions) -> String {
        let mut text = canvas::heading(&self.title(), options.color);
        let mut part = |heading: &str, rows: &[Vec<String>]| {
            text.push('\n');
            text += &canvas::heading(heading, options.color);
            let lines = table::aligned(rows);
            lines.iter().for_each(|line| writeln!(text, "  {line}").expect("a string takes all"));
        };
        part("Limits", &self.limit_rows());
        if let Some((heading, rows)) = self.hit_rows() {
            part(&heading, &rows);
        }
        writeln!(text, "\nband: {}", self.band_of).expect("a string takes all");
        self.notes.iter().for_each(|note| {
            writeln!(text, "note: {note}").expect("a string takes all");
        });
        text
    }

    /// Returns the report as a document.
    #[must_use]
    pub fn to_document(&self) -> Document {
        let document = self.notes.iter().fold(Document::new(self.title()), Document::note);
        let limits = document_table(self.limit_rows()).note(format!("band: {}", self.band_of));
        let document = document.section(Section::new("Limits").table(limits));
        match self.hit_rows() {
            Some((heading, rows)) => {
                document.section(Section::new(heading).table(document_table(rows)))
            }
            None => document,
        }
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and texts are JSON")
    }

    /// Returns a policy with the first limit. `per` is what it counts by, as on the command line.
    #[must_use]
    pub fn to_policy(&self, per: Option<&str>, command: &str) -> Option<String> {
        let found = self.limits.first()?;
        let mut text = format!("# Made by: {}\n", command.replace(['\n', '\r'], " "));
        writeln!(text, "# {}: {}", self.title(), found.rate).expect("a string takes all");
        text += "version: 1\n";
        let (mut identities, mut names) = (String::new(), Vec::new());
        for (n, what) in per.into_iter().flat_map(|per| per.split(" and ")).enumerate() {
            let name = match what.trim().split_once(' ') {
                None => what.trim().to_string(),
                Some(("custom", name)) => {
                    writeln!(identities, "  {name}: {{ custom: true }}")
                        .expect("a string takes all");
                    name.to_string()
                }
                Some((kind, name)) => {
                    let caller = if n == 0 { "caller".to_string() } else { format!("caller-{n}") };
                    writeln!(identities, "  {caller}: {{ {kind}: {name} }}")
                        .expect("a string takes all");
                    caller
                }
            };
            names.push(name);
        }
        if !identities.is_empty() {
            write!(text, "identify:\n{identities}").expect("a string takes all");
        }
        let per = match names.is_empty() {
            true => String::new(),
            false => format!("per: [{}], ", names.join(", ")),
        };
        let (rate, algorithm) = (&found.recommended, found.algorithm);
        writeln!(
            text,
            "limits:\n  - {{ name: planned, {per}rate: {rate}, algorithm: {algorithm} }}"
        )
        .expect("a string takes all");
        Some(text)
    }

    fn title(&self) -> String {
        format!(
            "{} requests of {} callers, refusing at most {}",
            self.requests, self.callers, self.refuse_at_most
        )
    }

    fn limit_rows(&self) -> Vec<Vec<String>> {
        let headroom = format!("with {}% more", self.headroom_percent);
        let header =
            ["algorithm", "smallest", "band", &headroom, "requests refused", "callers refused"];
        let row = |found: &FoundLimit| {
            let (low, high) = found.band;
            let requests = percent_text(found.requests_refused, self.requests as u64);
            let callers = percent_text(found.callers_refused, self.callers as u64);
            vec![
                found.algorithm.to_string(),
                found.rate.clone(),
                format!("{low} to {high}"),
                found.recommended.clone(),
                format!("{} ({requests})", found.requests_refused),
                format!("{} ({callers})", found.callers_refused),
            ]
        };
        let mut rows = vec![header.map(str::to_string).to_vec()];
        rows.extend(self.limits.iter().map(row));
        rows
    }

    /// Returns who would be hit by the first limit, if anyone.
    fn hit_rows(&self) -> Option<(String, Vec<Vec<String>>)> {
        let found = self.limits.first().filter(|found| !found.hit.is_empty())?;
        let row = |caller: &HitCaller| {
            let share = percent_text(u64::from(caller.refused), u64::from(caller.requests));
            vec![caller.key.clone(), caller.refused.to_string(), caller.requests.to_string(), share]
        };
        let mut rows = vec![["caller", "refused", "of", ""].map(str::to_string).to_vec()];
        rows.extend(found.hit.iter().map(row));
        Some((format!("Callers refused by {} {}", found.algorithm, found.rate), rows))
    }
}

/// Returns a table of texts, whose first row has the names of the columns.
pub(super) fn document_table(rows: Vec<Vec<String>>) -> Table {
    let mut rows = rows.into_iter();
    let names = rows.next().unwrap_or_default();
    rows.fold(Table::new(names.into_iter().map(Column::text)), Table::row)
}
