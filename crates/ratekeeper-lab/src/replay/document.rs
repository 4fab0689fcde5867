//! What a replay found, as a document: for a pull request, a browser or a terminal.

use super::demand::Demand;
use super::result::{
    Changes, KeyResult, LimitChange, LimitCounts, LimitResult, PolicyResult, ReplayResult,
};
use crate::report::{Axis, Chart, Column, Document, Role, Section, Series, Shape, Table, Unit};
use crate::text::{grouped, percent_text, short_span_text, span_text, time_text};

/// The bars of a chart.
const COLUMNS_MAX: usize = 120;

impl ReplayResult {
    /// Returns the result as a document. `names` are those of the policies.
    #[must_use]
    pub fn to_document(&self, names: &[&str]) -> Document {
        let name = |index: usize| names.get(index).copied().unwrap_or("policy");
        let mut document = Document::new(self.title(name(0), names.get(1).copied()));
        for note in self.notes.iter().cloned().chain(self.read_notes()) {
            document = document.note(note);
        }
        if let Some(changes) = &self.changes {
            let sections = changes_sections(changes, self.read.requests, name(0), name(1));
            document = sections.into_iter().fold(document, Document::section);
        }
        for (index, policy) in self.policies.iter().enumerate() {
            let of = if self.policies.len() > 1 {
                format!(" under {}", name(index))
            } else {
                String::new()
            };
            document = policy.sections(&of).into_iter().fold(document, Document::section);
        }
        document
    }

    fn title(&self, policy: &str, other: Option<&str>) -> String {
        let read = &self.read;
        let versus = other.map_or(String::new(), |other| format!(", compared with {other}"));
        let logs = match &read.logs[..] {
            [log] => format!("{} ({})", log.name, log.format),
            logs => format!("{} logs", logs.len()),
        };
        let requests = grouped(read.requests);
        let span = span_text(read.end_us.saturating_sub(read.start_us));
        format!("{policy}{versus}: {logs}, {requests} requests in {span}")
    }

    /// Returns what the reader should know about the logs.
    fn read_notes(&self) -> impl Iterator<Item = String> {
        let read = &self.read;
        let logs = read.logs.iter().filter_map(|log| Some((log, log.error.as_ref()?)));
        let errors = logs.map(|(log, why)| format!("{} ends early: {why}", log.name));
        let skipped = (read.skipped > 0).then(|| {
            let part = percent_text(read.skipped, read.lines);
            let shown = read
                .skipped_lines
                .iter()
                .map(|line| format!("\n{}:{}: {}: {}", line.file, line.line, line.why, line.text));
            let first = shown.collect::<String>();
            match read.skipped {
                1 => format!("1 line ({part}) is no request and is left out:{first}"),
                lines => {
                    let lines = grouped(lines);
                    format!(
                        "{lines} lines ({part}) are no requests and are left out; the first:{first}"
                    )
                }
            }
        });
        let late = (read.late > 0).then(|| {
            format!(
                "requests that are further out of order than --reorder, and were decided later than they were made: {}",
                grouped(read.late)
            )
        });
        let evictions: u64 = self.policies.iter().map(|policy| policy.evictions).sum();
        let unlisted = self.policies.iter().flat_map(|policy| &policy.limits);
        let unlisted: u64 = unlisted.map(|limit| limit.unlisted).sum();
        let memory = (evictions + unlisted > 0).then(|| {
            format!(
                "there are more keys than --keys-max: {} were evicted, so decisions may be inexact, and {} requests of further \
                 keys are not in the lists and the demand of keys",
                grouped(evictions),
                grouped(unlisted)
            )
        });
        errors.chain(skipped).chain(late).chain(memory).collect::<Vec<_>>().into_iter()
    }
}

impl PolicyResult {
    fn sections(&self, of: &str) -> Vec<Section> {
        let mut sections = vec![self.summary(of)];
        sections.extend(self.limits.iter().filter(|limit| limit.counts.requests > 0).map(
            |limit| {
                let section = Section::new(format!("Limit {}{of}", limit.name));
                limit.blocks(section)
            },
        ));
        sections
    }

    fn summary(&self, of: &str) -> Section {
        let part =
            |count: u64| format!("{} ({})", grouped(count), percent_text(count, self.requests));
        let mut facts = vec![
            ("requests", grouped(self.requests)),
            ("admitted", part(self.admitted)),
            ("refused", part(self.refused)),
        ];
        let others = [
            ("delayed", self.delayed),
            ("refused by shadow limits", self.shadow_refused),
            ("exempt", self.exempt),
            ("without a limit", self.unlimited),
        ];
        let others = others.into_iter().filter(|(_, count)| *count > 0);
        facts.extend(others.map(|(label, count)| (label, part(count))));
        let section = Section::new(format!("Requests{of}")).facts(facts);
        section.table(self.limits_table()).chart(self.chart())
    }

    fn limits_table(&self) -> Table {
        let names =
            ["requests", "admitted", "delayed", "refused", "by others", "shadow", "binding"];
        let columns = names.map(Column::number);
        let columns = [Column::text("limit"), Column::text("amount")].into_iter().chain(columns);
        let columns = columns.chain([Column::number("keys refused")]);
        let mut table = Table::new(columns);
        for limit in &self.limits {
            let amount = limit.amount.as_deref().unwrap_or("-");
            let name = match limit.mode {
                "enforce" => limit.name.clone(),
                mode => format!("{} ({mode})", limit.name),
            };
            let keys = format!("{} of {}", grouped(limit.keys_refused), grouped(limit.keys));
            let row = counts_row(name, amount, &limit.counts);
            table = table.row(row.into_iter().chain([keys]));
            for tier in &limit.tiers {
                let amount = tier.amount.as_deref().unwrap_or("-");
                table =
                    table.row(counts_row(format!("  tier {}", tier.tier), amount, &tier.counts));
            }
        }
        table.note(
            "refused: as the binding limit, which has the longest wait; by others: another limit refused it; \
             shadow: would be refused if enforced; binding: admitted, with the least left of all its limits",
        )
    }

    fn chart(&self) -> Chart {
        let series = &self.series;
        let factor = series.admitted.len().div_ceil(COLUMNS_MAX).max(1);
        let sum = |counts: &[u64]| -> Vec<u64> {
            counts.chunks(factor).map(|of| of.iter().sum()).collect()
        };
        let (admitted, refused) = (sum(&series.admitted), sum(&series.refused));
        let width_us = series.width_us * factor as u64;
        let starts = (0..admitted.len() as u64).map(|column| (column * width_us) as f64).collect();
        let since = format!("time since {}", time_text(series.start_us));
        let requests = Axis::new(format!("requests per {}", span_text(width_us)), Unit::Count);
        Chart::over("Requests over time", Axis::new(since, Unit::Duration), starts, requests)
            .shape(Shape::Bars)
            .stacked()
            .series(Series::counts("admitted", Role::Admitted, &admitted))
            .series(Series::counts("refused", Role::Denied, &refused))
    }
}

fn counts_row(name: String, amount: &str, counts: &LimitCounts) -> Vec<String> {
    let refused = match counts.refused {
        0 => "0".to_string(),
        refused => format!("{} ({})", grouped(refused), percent_text(refused, counts.requests)),
    };
    let number = grouped;
    vec![
        name,
        amount.to_string(),
        number(counts.requests),
        number(counts.admitted),
        number(counts.delayed),
        refused,
        number(counts.refused_by_others),
        number(counts.shadow_refused),
        number(counts.binding),
    ]
}

impl LimitResult {
    fn blocks(&self, mut section: Section) -> Section {
        if self.delay_max_us > 0 {
            let [p50, p99, max] =
                [self.delay_p50_us, self.delay_p99_us, self.delay_max_us].map(short_span_text);
            section =
                section.facts([("delay p50", p50), ("delay p99", p99), ("longest delay", max)]);
        }
        if !self.most_refused.is_empty() {
            section = section.table(keys_table(&self.most_refused, self.keys_refused));
        }
        section.table(demand_table(&self.demand_per_key, &self.demand_total))
    }
}

fn keys_table(keys: &[KeyResult], all: u64) -> Table {
    let columns = [
        Column::text("key"),
        Column::number("refused"),
        Column::number("of its requests"),
        Column::text("from (UTC)"),
        Column::number("for"),
        Column::number("seconds with refusals"),
    ];
    let table = keys.iter().fold(Table::new(columns), |table, key| {
        table.row([
            key.key.clone(),
            grouped(key.refused),
            percent_text(key.refused, key.requests),
            time_text(key.first_refused_us),
            span_text(key.last_refused_us - key.first_refused_us),
            grouped(key.refused_secs),
        ])
    });
    match all.saturating_sub(keys.len() as u64) {
        0 => table,
        more => table.note(format!("{} more keys were refused less", grouped(more))),
    }
}

fn demand_table(per_key: &[Demand], total: &[Demand]) -> Table {
    let scales =
        per_key.iter().map(|demand| Column::number(span_text(demand.window_secs * 1_000_000)));
    let mut table = Table::new([Column::text("demand in")].into_iter().chain(scales));
    type Value = fn(&Demand) -> u64;
    let rows: [(&str, Value); 4] =
        [("p50", |of| of.p50), ("p95", |of| of.p95), ("p99", |of| of.p99), ("max", |of| of.max)];
    for (of, scales) in [("a key", per_key), ("all keys", total)] {
        for (name, value) in rows {
            let cells = scales.iter().map(|demand| grouped(value(demand)));
            table = table.row([format!("{of}, {name}")].into_iter().chain(cells));
        }
    }
    table.note(
        "a key: the busiest window of each key, over all keys; all keys: every window, over time. Windows begin at whole \
         seconds, minutes and hours",
    )
}

fn changes_sections(changes: &Changes, requests: u64, old: &str, new: &str) -> Vec<Section> {
    let part = |count: u64| format!("{} ({})", grouped(count), percent_text(count, requests));
    let facts = [
        ("newly refused", part(changes.newly_refused)),
        ("no longer refused", part(changes.no_longer_refused)),
    ];
    let mut sections = vec![Section::new("Changes").facts(facts)];
    let newly = format!("Newly refused, by limits of {new}");
    let no_longer = format!("No longer refused, by limits of {old}");
    for (heading, by) in
        [(newly, &changes.newly_refused_by), (no_longer, &changes.no_longer_refused_by)]
    {
        if !by.is_empty() {
            sections.push(Section::new(heading).table(change_table(by)));
        }
    }
    sections
}

fn change_table(limits: &[LimitChange]) -> Table {
    let columns = [
        Column::text("limit"),
        Column::text("key"),
        Column::number("requests"),
        Column::number("keys"),
    ];
    limits.iter().fold(Table::new(columns), |table, limit| {
        let all =
            [limit.limit.clone(), String::new(), grouped(limit.requests), grouped(limit.keys)];
        limit.most.iter().fold(table.row(all), |table, (key, requests)| {
            table.row([String::new(), key.clone(), grouped(*requests)])
        })
    })
}
