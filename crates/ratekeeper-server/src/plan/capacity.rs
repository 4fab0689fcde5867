//! `ratekeeper plan --pods …`: a safe rate from capacity.

use std::io::{self, BufReader, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use ratekeeper_core::Rate;
use ratekeeper_lab::plan::{
    Capacity, Dependency, Division, Latencies, LatencyModel, Percentile, PlanReport, Share, Slo,
    Split, parse_latency, plain_rate,
};
use ratekeeper_lab::replay::{Logs, ReadOptions};

use super::write::{PolicyFile, PolicyHeaders};
use super::{OpenError, OutputFormat, from_log};
use crate::command_line::command_line;
use crate::failure::Failure;
use crate::style;
use crate::terminal;

/// How much of a file is looked at to see what it is.
const START_BYTES: u64 = 1_024;

#[derive(Args)]
#[command(next_help_heading = "From capacity")]
pub(super) struct CapacityArgs {
    /// Number of instances of the service
    #[arg(long, value_name = "N", required_unless_present = "log", conflicts_with = "log")]
    pods: Option<u32>,

    /// Requests that one instance can process at once
    #[arg(long, value_name = "N", required_unless_present = "log", conflicts_with = "log")]
    concurrency: Option<u32>,

    /// 95th percentile of the latency without load, such as 800ms
    #[arg(long, value_name = "LATENCY", value_parser = parse_latency, required_unless_present_any = ["latencies", "log"], conflicts_with = "log")]
    p95: Option<u64>,

    /// Median of the latency without load
    #[arg(long, value_name = "LATENCY", value_parser = parse_latency, requires = "p95")]
    p50: Option<u64>,

    /// Measured latencies: an access log with durations, or a file with one in each line, such as 120ms; - is
    /// standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["p95", "p50", "log"])]
    latencies: Option<PathBuf>,

    /// Share of the ceiling that is used
    #[arg(long, value_name = "SHARE", default_value = "70%", conflicts_with = "log")]
    margin: Share,

    /// What each request calls: NAME=RATE, or NAME=RATE,amplification=CALLS; repeatable
    #[arg(long = "dependency", value_name = "DEPENDENCY", conflicts_with = "log")]
    dependencies: Vec<Dependency>,

    /// Divide the rate between classes: NAME=RATE, NAME=SHARE or NAME=rest, separated by commas
    #[arg(long, value_name = "CLASSES", conflicts_with = "log")]
    split: Option<Split>,

    /// Rate of each user, such as 5/s
    #[arg(long, value_name = "RATE", value_parser = plain_rate, conflicts_with = "log")]
    per_user: Option<Rate>,

    /// Check an objective at the planned rate, such as p99=1.5s; repeatable
    #[arg(long = "slo", value_name = "OBJECTIVE", conflicts_with = "log")]
    objectives: Vec<Slo>,

    #[command(flatten)]
    headers: PolicyHeaders,
}

impl CapacityArgs {
    pub(super) fn run(
        &self,
        burst: Option<u64>,
        file: &PolicyFile,
        format: OutputFormat,
    ) -> Result<(), Failure> {
        let (p95_us, latencies) = self.latencies()?;
        let capacity = Capacity::new(
            // Both are required.
            self.pods.unwrap_or_default(),
            self.concurrency.unwrap_or_default(),
            p95_us,
            self.margin,
        );
        let add = |capacity: Capacity, dependency: &Dependency| {
            capacity.with_dependency(dependency.clone())
        };
        let capacity = self.dependencies.iter().fold(capacity.map_err(Failure::input)?, add);
        let plan = capacity.plan().map_err(Failure::input)?;
        let division = match &self.split {
            Some(split) => split.divide(&plan, self.per_user, burst),
            None => Division::undivided(&plan, self.per_user, burst),
        };
        let division = division.map_err(Failure::input)?;
        let report = PlanReport::new(&plan, &division, &latencies, &self.objectives);
        let text = |command: &str| self.headers.policy(&plan, &division, command);
        file.write(text)?;
        print(&report, format).map_err(Failure::output)?;
        if report.is_kept() { Ok(()) } else { Err(Failure::Warnings) }
    }

    /// Returns the 95th percentile, and how long requests take.
    fn latencies(&self) -> Result<(u64, LatencyModel), Failure> {
        let Some(path) = &self.latencies else {
            // One of them is required.
            let p95_us = self.p95.unwrap_or_default();
            let model = match self.p50 {
                Some(p50_us) => LatencyModel::of_p50_and_p95(p50_us, p95_us)?,
                None => LatencyModel::of_p95(p95_us),
            };
            return Ok((p95_us, model));
        };
        let latencies = read(path)?;
        Ok((latencies.percentile_us(Percentile::P95), LatencyModel::Measured(latencies)))
    }
}

fn print(report: &PlanReport, format: OutputFormat) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let document = || report.to_document().command(command_line());
    match format {
        OutputFormat::Text => {
            write!(out, "{}", report.to_text(terminal::text_options()))?;
            for warning in report.warnings() {
                writeln!(style::stderr(), "{} {warning}", style::warning("warning:"))?;
            }
        }
        OutputFormat::Json => writeln!(out, "{}", report.to_json())?,
        OutputFormat::Html => write!(out, "{}", document().to_html())?,
        OutputFormat::Md => write!(out, "{}", document().to_markdown())?,
    }
    out.flush()
}

/// Reads latencies, one in each line, or the durations of an access log.
fn read(path: &Path) -> Result<Latencies, Failure> {
    let name =
        if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() };
    let mut file: Box<dyn Read + Send> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(from_log::open(path)?),
    };
    let mut start = Vec::new();
    let unreadable = |source| Failure::io(OpenError { path: path.to_path_buf(), source });
    file.by_ref().take(START_BYTES).read_to_end(&mut start).map_err(unreadable)?;
    let is_list = String::from_utf8_lossy(&start).lines().find(|line| is_data(line)).is_none_or(
        // What begins with a number and a unit is a list, even if the rest of the line is a mistake.
        |line| line.trim().len() < 20,
    );
    let whole = Cursor::new(start).chain(file);
    if is_list {
        return Ok(Latencies::read(BufReader::new(whole))?);
    }
    let logs = Logs::open([(name.as_str(), whole)], ReadOptions::default(), &[]);
    Ok(Latencies::of_logs(logs.map_err(Failure::input)?)?)
}

fn is_data(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with('#')
}
