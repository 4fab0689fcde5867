//! `ratekeeper plan`: finds the limits that a service can sustain, or that its traffic fits into.

mod capacity;
mod from_log;
mod write;

use std::io;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ratekeeper_lab::plan::PlanError;

use crate::failure::Failure;
use capacity::CapacityArgs;
use from_log::LogArgs;
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

  From measured latencies, with an objective:
    ratekeeper plan --pods 10 --concurrency 40 --latencies access.log --slo p99=1.5s

  The smallest limit for each address that refuses at most 0.1% of yesterday's requests:
    ratekeeper plan --log access.log --per ip --refuse-at-most 0.1%

Exit codes: 0 success, 1 an objective is missed, or reading or writing failed, 2 the input is invalid.";

/// Plan limits from the capacity of a service, or from an access log
///
/// From capacity: goes from concurrency and latency to a safe rate by Little's law, and prints each step with its
/// formula. A queueing model says what response times are at that rate.
///
/// From a log (--log): finds the smallest limit of each algorithm that refuses at most a share of the requests or
/// callers, by replaying the log.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Plan {
    #[command(flatten)]
    capacity: CapacityArgs,

    #[command(flatten)]
    log: LogArgs,

    /// Size of the bucket [default: from capacity the largest that fits, from a log the count]
    #[arg(long, value_name = "N", help_heading = "Options", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    burst: Option<u64>,

    #[command(flatten)]
    file: PolicyFile,

    /// Output format
    #[arg(long, value_enum, help_heading = "Options", default_value_t = OutputFormat::Text)]
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

/// Why a file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {}", .path.display())]
struct OpenError {
    path: PathBuf,
    source: io::Error,
}

impl Plan {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.log.is_given() {
            true => self.log.run(self.burst, &self.file, self.format),
            false => self.capacity.run(self.burst, &self.file, self.format),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Read(_) => Self::io(error),
            error => Self::input(error),
        }
    }
}
