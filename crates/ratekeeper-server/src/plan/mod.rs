//! `ratekeeper plan`: finds the limits that a service can sustain.

mod write;

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ratekeeper_core::Rate;
use ratekeeper_lab::plan::{
    Capacity, Dependency, Division, Latencies, LatencyModel, Percentile, PlanError, PlanReport,
    Share, Slo, Split, parse_latency, plain_rate,
};

use crate::command_line::command_line;
use crate::failure::Failure;
use crate::style;
use crate::terminal;
use write::PolicyFile;

const EXAMPLES: &str = "\
Examples:
  What 10 pods with 40 requests in flight each can be offered, with 30% in reserve:
    ratekeeper plan --pods 10 --concurrency 40 --p95 800ms --margin 70%

  Each request calls the inventory twice, which allows 300 calls a second:
    ratekeeper plan --pods 10 --concurrency 40 --p95 800ms --dependency inventory=300/s,amplification=2

  Divide the rate, and write a policy in which partners always get their part:
    ratekeeper plan --pods 10 --concurrency 40 --p95 800ms \\
      --split partner=200/s,public=rest --per-user 5/s --guarantee --write policy.yaml

  From measured latencies, one in each line (120ms), with an objective:
    ratekeeper plan --pods 10 --concurrency 40 --latencies latencies.txt --slo p99=1.5s

Exit codes: 0 success, 1 an objective is missed, or reading or writing failed, 2 the input is invalid.";

/// Plan limits from the capacity of a service
///
/// Goes from concurrency and latency to a safe rate by Little's law, and prints each step with its formula. A queueing
/// model says what response times are at that rate.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Plan {
    /// Number of instances of the service
    #[arg(long, value_name = "N")]
    pods: u32,

    /// Requests that one instance can process at once
    #[arg(long, value_name = "N")]
    concurrency: u32,

    /// 95th percentile of the latency without load, such as 800ms
    #[arg(long, value_name = "LATENCY", value_parser = parse_latency, required_unless_present = "latencies")]
    p95: Option<u64>,

    /// Median of the latency without load
    #[arg(long, value_name = "LATENCY", value_parser = parse_latency, requires = "p95")]
    p50: Option<u64>,

    /// File of measured latencies, one in each line, such as 120ms; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["p95", "p50"])]
    latencies: Option<PathBuf>,

    /// Share of the ceiling that is used
    #[arg(long, value_name = "SHARE", default_value = "70%")]
    margin: Share,

    /// What each request calls: NAME=RATE, or NAME=RATE,amplification=CALLS; repeatable
    #[arg(long = "dependency", value_name = "DEPENDENCY")]
    dependencies: Vec<Dependency>,

    /// Divide the rate between classes: NAME=RATE, NAME=SHARE or NAME=rest, separated by commas
    #[arg(long, value_name = "CLASSES")]
    split: Option<Split>,

    /// Rate of each user, such as 5/s
    #[arg(long, value_name = "RATE", value_parser = plain_rate)]
    per_user: Option<Rate>,

    /// Size of the bucket, at least 1 [default: the largest that fits]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    burst: Option<u64>,

    /// Check an objective at the planned rate, such as p99=1.5s; repeatable
    #[arg(long = "slo", value_name = "OBJECTIVE")]
    objectives: Vec<Slo>,

    #[command(flatten)]
    policy: PolicyFile,

    /// Output format
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    format: OutputFormat,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum OutputFormat {
    /// Tables for a terminal
    Text,
    /// One JSON document
    Json,
    /// A report, as one file that needs no network
    Html,
    /// A report in Markdown
    Md,
}

/// Why a file of latencies cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the latencies {}", .path.display())]
struct OpenError {
    path: PathBuf,
    source: io::Error,
}

impl Plan {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let (p95_us, latencies) = self.latencies()?;
        let capacity = Capacity::new(self.pods, self.concurrency, p95_us, self.margin);
        let add = |capacity: Capacity, dependency: &Dependency| {
            capacity.with_dependency(dependency.clone())
        };
        let capacity = self.dependencies.iter().fold(capacity.map_err(Failure::input)?, add);
        let plan = capacity.plan().map_err(Failure::input)?;
        let division = match &self.split {
            Some(split) => split.divide(&plan, self.per_user, self.burst),
            None => Division::undivided(&plan, self.per_user, self.burst),
        };
        let division = division.map_err(Failure::input)?;
        let report = PlanReport::new(&plan, &division, &latencies, &self.objectives);
        self.policy.write(&plan, &division)?;
        self.print(&report).map_err(Failure::output)?;
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

    fn print(&self, report: &PlanReport) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let document = || report.to_document().command(command_line());
        match self.format {
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
}

fn read(path: &Path) -> Result<Latencies, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Latencies::read(io::stdin().lock())?);
    }
    let file = File::open(path).map_err(|error| {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let error = OpenError { path: path.to_path_buf(), source: error };
        if is_missing { Failure::input(error) } else { Failure::io(error) }
    })?;
    Ok(Latencies::read(BufReader::new(file))?)
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Read(_) => Self::io(error),
            error => Self::input(error),
        }
    }
}
