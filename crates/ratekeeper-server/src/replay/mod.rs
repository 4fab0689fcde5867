//! `ratekeeper replay`: what a policy would have done to the requests of access logs.

mod input;
mod progress;

use std::io::{self, BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ratekeeper::Policy;
use ratekeeper_core::Micros;
use ratekeeper_lab::access_log::{FORMATS, LogFormat};
use ratekeeper_lab::replay::{
    Logs, OpenLogError, ReadOptions, ReplayOptions, ReplayResult, Threshold, replay,
};
use ratekeeper_lab::report::Document;

use crate::choices;
use crate::command_line::command_line;
use crate::failure::Failure;
use crate::policy_input;
use crate::style;
use crate::terminal;
use progress::Progress;

const EXAMPLES: &str = "\
Examples:
  What a policy would have done to yesterday's traffic:
    ratekeeper replay access.log policy.yaml

  A day of several servers, rotated and compressed:
    ratekeeper replay web1/access.log* web2/access.log* policy.yaml --since 2026-10-10 --until 2026-10-11

  Who would be refused by a new policy and is not now, for a pull request:
    ratekeeper replay access.log policy.yaml --compare new.yaml --format md

  In a pipeline, fail if more than 0.5% of the requests would be refused:
    ratekeeper replay access.log policy.yaml --fail-if 'refused > 0.5%' --fail-if 'login.refused > 100'

  A format that is not found by itself, as nginx's log_format:
    ratekeeper replay access.log policy.yaml --log-format '$remote_addr [$time_local] \"$request\" $status'

--fail-if takes NUMBER > VALUE or NUMBER >= VALUE. The number is refused, delayed, shadow, skipped (lines),
newly_refused or no_longer_refused (with --compare), or LIMIT.refused, LIMIT.delayed, LIMIT.shadow, LIMIT.newly_refused,
LIMIT.keys_refused. The value is a count or a percentage.

Times in a log without an offset are UTC. Lines that are no requests are counted and left out.
Exit codes: 0 success, 1 reading or writing failed, 2 the input is invalid, 3 a --fail-if holds.";

/// Replay access logs: what a policy would have done to their requests
///
/// Reads logs of nginx, Apache, Envoy, Traefik, Caddy, HAProxy, AWS and the gateway, also compressed with gzip or
/// zstd, in the order of time, and decides every request exactly as a running limiter would have.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Replay {
    /// The logs, and then the policy file; - is standard input
    #[arg(value_name = "LOG... POLICY", required = true, num_args = 2..)]
    files: Vec<PathBuf>,

    /// Compare with this policy: which requests it newly refuses, and which no longer
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    /// Output format
    #[arg(long, value_enum, default_value_t = ReplayFormat::Text)]
    format: ReplayFormat,

    /// Exit with 3 if this holds, such as 'refused > 0.5%'; repeatable
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Threshold>,

    /// The format of all logs, as nginx's log_format [default: found by the first lines]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// Leave out requests before this date or time, in UTC unless it has an offset
    #[arg(long, value_name = "TIME", value_parser = choices::time)]
    since: Option<Micros>,

    /// Leave out requests from this date or time on
    #[arg(long, value_name = "TIME", value_parser = choices::time)]
    until: Option<Micros>,

    /// How far the lines of a log may be out of order
    #[arg(long, value_name = "DURATION", value_parser = choices::duration, default_value = "10s")]
    reorder: Duration,

    /// Number of threads; the result is the same with any number [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// List at most this many keys of each limit
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Keep the state of at most this many keys of each limit; with more, results may be inexact and a note says so
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    keys_max: u32,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ReplayFormat {
    /// Tables and a chart
    Text,
    /// One JSON document with all numbers and time series
    Json,
    /// A report in Markdown, for a pull request
    Md,
    /// A report with interactive charts, as one file that needs no network
    Html,
    /// The charts as a picture
    Svg,
}

impl Replay {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let [logs @ .., policy_file] = &self.files[..] else { unreachable!("two are required") };
        let policy = read_policy(policy_file)?;
        let other = self.compare.as_deref().map(read_policy).transpose()?;
        let policies: Vec<&Policy> = [&policy].into_iter().chain(&other).map(|of| &**of).collect();
        for threshold in &self.fail_if {
            threshold.check(&policy, other.as_ref()).map_err(Failure::input)?;
        }
        let progress = Progress::new(logs);
        let logs = self.open(logs, &policies, &progress)?;
        print_notes(&logs.notes(policies));
        let options = ReplayOptions::default().with_keys_max(self.keys_max as usize);
        let mut result = replay(logs, &policy, other.as_ref(), options.with_listed(self.top));
        progress.finish();
        if self.format == ReplayFormat::Text {
            // They are on the terminal already.
            result.notes.clear();
        }
        self.print(&result).map_err(Failure::output)?;
        self.judge(&result)
    }

    fn open(
        &self,
        logs: &[PathBuf],
        policies: &[&Policy],
        progress: &Progress,
    ) -> Result<Logs, Failure> {
        let inputs = input::open_all(logs, progress)?;
        let logs = Logs::open(inputs, self.read_options()?, policies).map_err(open_failure)?;
        Ok(logs.on_progress(progress.observer()))
    }

    fn read_options(&self) -> Result<ReadOptions, Failure> {
        let format = self.log_format.as_deref().map(LogFormat::of_log_format).transpose();
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Ok(ReadOptions {
            format: format.map_err(Failure::input)?,
            within: self.since.unwrap_or_default()..self.until.unwrap_or(Micros::MAX),
            reorder_us: u64::try_from(self.reorder.as_micros()).unwrap_or(u64::MAX),
            threads: self.threads.map_or(cores, NonZeroUsize::get),
        })
    }

    fn print(&self, result: &ReplayResult) -> io::Result<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        match self.format {
            ReplayFormat::Text => {
                write!(out, "{}", result.to_text(&self.names(), terminal::text_options()))?;
            }
            ReplayFormat::Json => {
                serde_json::to_writer_pretty(&mut out, result)?;
                writeln!(out)?;
            }
            ReplayFormat::Md => write!(out, "{}", self.document(result).to_markdown())?,
            ReplayFormat::Html => write!(out, "{}", self.document(result).to_html())?,
            ReplayFormat::Svg => write!(out, "{}", self.document(result).to_svg())?,
        }
        out.flush()
    }

    fn document(&self, result: &ReplayResult) -> Document {
        let document = result.to_document(&self.names()).command(command_line());
        let files = self.files.last().into_iter().chain(&self.compare);
        // A policy from standard input is gone.
        let texts = files.filter_map(|path| Some((path, std::fs::read_to_string(path).ok()?)));
        texts.fold(document, |document, (path, text)| {
            document.source(path.display().to_string(), text)
        })
    }

    /// The names of the policies.
    fn names(&self) -> Vec<&str> {
        let files = self.files.last().into_iter().chain(&self.compare);
        files.map(|path| path.to_str().unwrap_or("policy")).collect()
    }

    /// Fails if a log could not be read to its end, or a condition holds.
    fn judge(&self, result: &ReplayResult) -> Result<(), Failure> {
        let mut is_exceeded = false;
        for threshold in &self.fail_if {
            if let Some((count, of)) = threshold.exceeded_by(result).map_err(Failure::input)? {
                is_exceeded = true;
                let label = style::error("failed:");
                // If standard error cannot be written to, the exit code is all there is.
                _ = writeln!(style::stderr(), "{label} {threshold}: {count} of {of}");
            }
        }
        let broken = result.read.logs.iter().find_map(|log| Some((log, log.error.as_ref()?)));
        match broken {
            Some((log, why)) => {
                let name = &log.name;
                Err(Failure::io(format!(
                    "{name} ends early, the result is of what came before: {why}"
                )))
            }
            None if is_exceeded => Err(Failure::Exceeded),
            None => Ok(()),
        }
    }
}

/// Prints what the replay leaves out, before it begins: it may take long.
fn print_notes(notes: &[String]) {
    for note in notes {
        // If standard error cannot be written to, the report is still worth having.
        _ = writeln!(style::stderr(), "{} {note}", style::warning("note:"));
    }
}

fn open_failure(error: OpenLogError) -> Failure {
    match error {
        OpenLogError::Format { .. } => {
            let names =
                FORMATS.iter().map(|format| format!("\n  {:14}{}", format.name, format.about));
            Failure::input(format!("{error}\nknown formats:{}", names.collect::<String>()))
        }
        OpenLogError::Read { ref source, .. } if source.kind() == io::ErrorKind::InvalidData => {
            Failure::input(error)
        }
        OpenLogError::TooMany(_) => Failure::input(error),
        error => Failure::io(error),
    }
}

fn read_policy(path: &Path) -> Result<Arc<Policy>, Failure> {
    policy_input::read(path).map(Arc::new).map_err(Failure::input)
}
