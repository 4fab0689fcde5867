//! `ratekeeper plan --log`: the smallest limits that the traffic of an access log fits into.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ratekeeper::Policy;
use ratekeeper_core::{ALGORITHMS, Algorithm, Rate};
use ratekeeper_lab::access_log::LogFormat;
use ratekeeper_lab::plan::{
    LimitSearch, LogReport, LoggedTraffic, Searched, Tolerance, plain_rate,
};
use ratekeeper_lab::replay::{Logs, ReadOptions, policy_notes};

use super::write::PolicyFile;
use super::{OpenError, OutputFormat};
use crate::choices::{AlgorithmChoice, AlgorithmChoiceParser};
use crate::command_line::command_line;
use crate::failure::Failure;
use crate::terminal;

#[derive(Args)]
#[command(next_help_heading = "From a log")]
pub(super) struct LogArgs {
    /// Access log, plain or compressed; repeatable
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,

    /// Format of the log, as nginx's log_format [default: found by its first lines]
    #[arg(long, value_name = "FORMAT", requires = "log")]
    log_format: Option<String>,

    /// What is counted by: ip, host, or header, cookie, query or custom and a name; all together if absent
    #[arg(long, value_name = "IDENTITY", requires = "log")]
    per: Option<String>,

    /// What may be refused: 0.1%, "0.1% of requests" or "0.1% of keys"
    #[arg(long, value_name = "SHARE", requires = "log", default_value = "0.1%")]
    refuse_at_most: Tolerance,

    /// Algorithm [default: all of them, the token bucket first]
    #[arg(long, value_name = "ALGORITHM", requires = "log", value_parser = AlgorithmChoiceParser)]
    algorithm: Option<AlgorithmChoice>,

    /// Period of the limit, as a rate: 1/s, 1/minute or 1/hour
    #[arg(long, value_name = "RATE", requires = "log", value_parser = plain_rate, default_value = "1/minute")]
    period: Rate,

    /// Find the smallest burst of buckets with this rate, instead of the smallest rate
    #[arg(long, value_name = "RATE", requires = "log", conflicts_with_all = ["period", "burst"], value_parser = plain_rate)]
    rate: Option<Rate>,

    /// Percent that the recommended limit has more than the smallest one
    #[arg(long, value_name = "PERCENT", requires = "log", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    headroom: u32,
}

/// Why there is no limit.
#[derive(Debug, thiserror::Error)]
#[error("no such limit refuses so little; allow more, or use another period")]
struct NoLimitError;

impl LogArgs {
    pub(super) fn is_given(&self) -> bool {
        !self.log.is_empty()
    }

    pub(super) fn run(
        &self,
        burst: Option<u64>,
        file: &PolicyFile,
        format: OutputFormat,
    ) -> Result<(), Failure> {
        let line = self.per.as_ref().map_or("1/s".to_string(), |per| format!("1/s per {per}"));
        let policy = Arc::new(Policy::one_line(&line).map_err(Failure::input)?);
        let logs = self.open(&policy)?;
        let mut notes = policy_notes(&policy, logs.fields());
        let (traffic, summary) = LoggedTraffic::read(logs, policy)?;
        if summary.skipped > 0 {
            notes.push(format!("skipped lines, because they are no requests: {}", summary.skipped));
        }
        let report = self.report(&traffic, burst, notes);
        if report.limits.is_empty() {
            return Err(Failure::input(NoLimitError));
        }
        file.write(|command| report.to_policy(self.per.as_deref(), command).unwrap_or_default())?;
        print(&report, format).map_err(Failure::output)
    }

    fn open(&self, policy: &Policy) -> Result<Logs, Failure> {
        let format = self.log_format.as_deref().map(LogFormat::of_log_format).transpose();
        let format = format.map_err(Failure::input)?;
        let options = ReadOptions { format, ..ReadOptions::default() };
        let names: Vec<_> = self.log.iter().map(|path| path.display().to_string()).collect();
        let files: Vec<_> = self.log.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
        let inputs = names.iter().map(String::as_str).zip(files);
        Logs::open(inputs, options, &[policy]).map_err(Failure::input)
    }

    fn report(&self, traffic: &LoggedTraffic, burst: Option<u64>, notes: Vec<String>) -> LogReport {
        let searched = match self.rate {
            Some(rate) => Searched::Burst { rate },
            None => Searched::Count { period: self.period, burst },
        };
        let search = LimitSearch::new(traffic, self.refuse_at_most, searched, self.headroom);
        let limits = self.algorithms().into_iter().filter_map(|algorithm| search.find(algorithm));
        LogReport {
            requests: traffic.requests(),
            callers: traffic.callers(),
            refuse_at_most: self.refuse_at_most.to_string(),
            limits: limits.collect(),
            band_of: search.band_text(),
            headroom_percent: self.headroom,
            notes,
        }
    }

    /// Returns the algorithms to try, the default first.
    fn algorithms(&self) -> Vec<Algorithm> {
        if let Some(AlgorithmChoice::One(algorithm)) = self.algorithm {
            return vec![algorithm];
        }
        let others = ALGORITHMS.iter().copied().filter(|one| *one != Algorithm::TokenBucket);
        std::iter::once(Algorithm::TokenBucket).chain(others).collect()
    }
}

pub(super) fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let error = OpenError { path: path.to_path_buf(), source: error };
        if is_missing { Failure::input(error) } else { Failure::io(error) }
    })
}

fn print(report: &LogReport, format: OutputFormat) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let document = || report.to_document().command(command_line());
    match format {
        OutputFormat::Text => write!(out, "{}", report.to_text(terminal::text_options()))?,
        OutputFormat::Json => writeln!(out, "{}", report.to_json())?,
        OutputFormat::Html => write!(out, "{}", document().to_html())?,
        OutputFormat::Md => write!(out, "{}", document().to_markdown())?,
    }
    out.flush()
}
