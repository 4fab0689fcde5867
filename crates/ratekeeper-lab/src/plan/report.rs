//! A plan as text, Markdown and JSON.

use std::fmt::Write;

use serde::Serialize;

use super::capacity::CapacityNumbers;
use super::capacity::SAFE_RATE;
use super::log_report::document_table;
use super::split::ClassNumbers;
use super::{CapacityPlan, Class, Division, LatencyModel, Load, QueueModel, Slo, SloCheck, Step};
use crate::TextOptions;
use crate::canvas;
use crate::report::{self, Document};
use crate::table;
use crate::text::{short_span_text, wrap};

/// Everything that a plan says.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    #[serde(flatten)]
    numbers: CapacityNumbers,
    steps: Vec<Step>,
    classes: Vec<ClassNumbers>,
    #[serde(skip)]
    shown: Vec<Class>,
    loads: Vec<Load>,
    objectives: Vec<SloCheck>,
    assumptions: Vec<String>,
    warnings: Vec<String>,
}

/// A table with a heading, whose first row has the names of the columns.
struct Part {
    heading: &'static str,
    rows: Vec<Vec<String>>,
}

impl Part {
    fn into_section(self) -> report::Section {
        report::Section::new(self.heading).table(document_table(self.rows))
    }
}

impl PlanReport {
    /// Runs the queueing model of a plan and checks objectives.
    #[must_use]
    pub fn new(
        plan: &CapacityPlan,
        division: &Division,
        latencies: &LatencyModel,
        objectives: &[Slo],
    ) -> Self {
        let model = QueueModel::new(plan, latencies);
        let is_split = division.classes().len() > 1 || division.per_user.is_some();
        let shown = if is_split { division.classes().to_vec() } else { Vec::new() };
        Self {
            numbers: plan.into(),
            steps: plan.steps().to_vec(),
            classes: shown.iter().map(ClassNumbers::from).collect(),
            shown,
            loads: model.loads(),
            objectives: objectives.iter().map(|slo| model.check(*slo)).collect(),
            assumptions: vec![
                "Little's law with the p95 instead of the mean: the ceiling is lower than what the pods can do on average".to_string(),
                "requests arrive independently of each other, and go to a pod at random".to_string(),
                "a pod processes its concurrency at once, each request as fast as without load; others wait in order".to_string(),
                latencies.assumption(),
            ],
            warnings: plan.burst_warning(division.burst).into_iter().collect(),
        }
    }

    /// Returns the warnings.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns whether all objectives are kept.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.objectives.iter().all(|check| check.is_kept)
    }

    /// Returns the plan as text for a terminal.
    #[must_use]
    pub fn to_text(&self, options: TextOptions) -> String {
        let mut text = String::new();
        for section in self.sections() {
            text += &canvas::heading(section.heading, options.color);
            let lines = table::aligned(&section.rows);
            lines.iter().for_each(|line| writeln!(text, "  {line}").expect(STRING));
            text.push('\n');
        }
        text += &canvas::heading("Assumptions", options.color);
        for assumption in &self.assumptions {
            let lines = wrap(assumption, options.width() - 4);
            let marks = std::iter::once("  - ").chain(std::iter::repeat("    "));
            lines.iter().zip(marks).for_each(|(line, mark)| {
                writeln!(text, "{mark}{line}").expect(STRING);
            });
        }
        text
    }

    /// Returns the plan as a document.
    #[must_use]
    pub fn to_document(&self) -> Document {
        let rate = self.steps.iter().find(|step| step.name == SAFE_RATE);
        let title = format!("Plan: {}", rate.map_or("", |step| step.result.as_str()));
        let document = self.warnings.iter().fold(Document::new(title), Document::note);
        let sections = self.sections().into_iter().map(Part::into_section);
        let document = sections.fold(document, Document::section);
        let assumptions = report::Section::new("Assumptions");
        document.section(self.assumptions.iter().fold(assumptions, report::Section::text))
    }

    /// Returns the plan as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and texts are JSON")
    }

    fn sections(&self) -> Vec<Part> {
        let mut sections = vec![self.capacity()];
        if !self.shown.is_empty() {
            sections.push(self.division());
        }
        sections.push(self.response_times());
        if !self.objectives.is_empty() {
            sections.push(self.checks());
        }
        sections
    }

    fn capacity(&self) -> Part {
        let row = |step: &Step| [step.name.clone(), step.formula.clone(), step.result.clone()];
        let mut rows = vec![["step", "formula", "result"].map(str::to_string).to_vec()];
        rows.extend(self.steps.iter().map(|step| row(step).to_vec()));
        Part { heading: "Capacity", rows }
    }

    fn division(&self) -> Part {
        let has_users = self.shown.iter().any(|class| class.users().is_some());
        let header = ["class", "rate", "burst", "users at their full rate"];
        let width = if has_users { 4 } else { 3 };
        let row = |class: &Class| {
            let users = class.users().map_or(String::new(), |users| users.to_string());
            let cells = [
                class.name().to_string(),
                class.rate().to_string(),
                class.burst().to_string(),
                users,
            ];
            cells[..width].to_vec()
        };
        let mut rows = vec![header[..width].iter().map(ToString::to_string).collect()];
        rows.extend(self.shown.iter().map(row));
        Part { heading: "Split", rows }
    }

    fn response_times(&self) -> Part {
        let header = ["at", "rate", "busy", "p50", "p95", "p99"];
        let row = |load: &Load| {
            let times = match load.response_times {
                Some(times) => [times.p50_us, times.p95_us, times.p99_us].map(short_span_text),
                None => ["grows", "grows", "grows"].map(str::to_string),
            };
            let rate = format!("{:.0}/s", load.per_second);
            let busy = format!("{:.0}%", load.utilisation * 100.0);
            let mut row = vec![load.name.clone(), rate, busy];
            row.extend(times);
            row
        };
        let mut rows = vec![header.map(str::to_string).to_vec()];
        rows.extend(self.loads.iter().map(row));
        Part { heading: "Response times (queueing model)", rows }
    }

    fn checks(&self) -> Part {
        let header = ["objective", "at the safe rate", "", "kept up to"];
        let row = |check: &SloCheck| {
            let at = check.at_safe_rate_us.map_or("grows".to_string(), short_span_text);
            let verdict = if check.is_kept { "kept" } else { "missed" };
            let up_to = check.kept_up_to_per_second;
            let up_to = up_to.map_or("no rate".to_string(), |rate| format!("{rate:.0}/s"));
            vec![check.slo.clone(), at, verdict.to_string(), up_to]
        };
        let mut rows = vec![header.map(str::to_string).to_vec()];
        rows.extend(self.objectives.iter().map(row));
        Part { heading: "Objectives", rows }
    }
}

const STRING: &str = "a string takes all";
