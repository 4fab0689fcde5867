//! `ratekeeper simulate`: simulates a limit in virtual time.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ratekeeper_core::{Algorithm, Limit, Micros, Rate};
use ratekeeper_lab::{
    AllAlgorithms, Arrival, Pattern, Report, Simulation, Trace, TraceError, Traffic,
    compare_simulations, report::Document, span_text, write_decisions,
};

use crate::choices::{self, AlgorithmChoice, AlgorithmChoiceParser};
use crate::command_line::command_line;
use crate::failure::Failure;
use crate::remote::RemoteDecider;
use crate::scenario;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  Compare all algorithms on traffic around a window boundary:
    ratekeeper simulate 10/s --algorithm all

  A quota by the calendar, while clocks change:
    ratekeeper simulate '100/calendar day in Europe/Berlin' --start 2026-03-27

  A flash sale with ten keys and a spike of one more:
    ratekeeper simulate '5/s burst 10' --traffic flash-sale --keys 10

  Print every decision for recorded traffic, one JSON object per line:
    ratekeeper simulate '5/s burst 10' --trace trace.csv --format jsonl

  A report to attach to a design review, as one HTML file:
    ratekeeper simulate 10/s --algorithm all --format html > report.html

  A scenario from a file, such as a retry storm with and without a budget:
    ratekeeper simulate --scenario retry-storm.yaml

  Make the same decisions in Redis; the output is identical:
    ratekeeper simulate 100/minute --trace trace.csv --format jsonl --store redis://127.0.0.1:6379

  A trace is CSV, sorted by time in microseconds:
    at_us,key,cost
    0,alice,1
    200000,bob,3

Environment: COLUMNS sets the width of the chart, which is otherwise that of the terminal, or 80.
There are colours on a terminal; NO_COLOR turns them off and CLICOLOR_FORCE turns them on.

Exit codes: 0 success, 1 reading or writing failed, 2 the input is invalid.\n";

const PERIODS: u32 = 10;

/// Simulate a limit in virtual time
///
/// Decides recorded arrivals (--trace) or generated ones (--traffic) exactly as a running limiter
/// would, without waiting. The limit applies to each key.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Simulate {
    /// The limit: a rate such as 100/minute, "5/s burst 10" for a bucket, or "1000/calendar day in Europe/Berlin"
    #[arg(value_name = "LIMIT", required_unless_present = "scenario")]
    rate: Option<Rate>,

    /// Run this scenario file instead: clients that retry, several nodes, a store that fails
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "algorithm", "count_rejected", "trace", "traffic", "offered", "duration", "start", "keys", "store", "keys_max"])]
    scenario: Option<PathBuf>,

    /// Algorithm to simulate [default: token_bucket; fixed_window for a calendar period]
    #[arg(long, value_name = "ALGORITHM", value_parser = AlgorithmChoiceParser)]
    algorithm: Option<AlgorithmChoice>,

    /// Count denied requests too, so that a client that retries too fast stays limited (sliding_log only)
    #[arg(long)]
    count_rejected: bool,

    /// Decide the arrivals in this CSV file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["traffic", "offered", "duration", "start", "keys", "seed"])]
    trace: Option<PathBuf>,

    /// Generate arrivals of this pattern
    #[arg(long, value_name = "PATTERN", value_parser = choices::pattern_parser(), default_value = "boundary")]
    traffic: Pattern,

    /// Request rate of each key, such as 20/s [default: twice the limit; half of it in a flash-sale]
    #[arg(id = "offered", long = "rate", value_name = "RATE")]
    offered: Option<Rate>,

    /// Duration of the traffic, such as 10s or 2m [default: 10 periods of the limit]
    #[arg(long, value_name = "DURATION", value_parser = choices::duration)]
    duration: Option<Duration>,

    /// When the traffic starts: a date or time such as 2026-03-28 or 2026-03-28T18:00:00+01:00, in UTC unless it has
    /// an offset [default: 1970-01-01]
    #[arg(long, value_name = "TIME", value_parser = choices::time)]
    start: Option<Micros>,

    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,

    /// Seed of random traffic; the same seed generates the same traffic [default: 1, or that of the scenario]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Decide in this Redis or Valkey instead of in memory, at the times of the trace: redis://HOST:PORT,
    /// rediss://…, redis+sentinel://…/SERVICE, redis+cluster://…
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Output format
    #[arg(long, value_enum, default_value_t = OutputFormat::Table)]
    format: OutputFormat,

    /// Keep the state of at most this many keys; with more, results may be inexact and a warning is printed
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    keys_max: u32,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table and a chart
    Table,
    /// One JSON document with totals and time series
    Json,
    /// One JSON object per line for each decision
    Jsonl,
    /// A report with interactive charts, as one file that needs no network
    Html,
    /// The charts as a picture
    Svg,
    /// A report in Markdown
    Md,
}

/// Why a trace cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the trace {}", .path.display())]
struct OpenTraceError {
    path: PathBuf,
    source: io::Error,
}

type Arrivals = Box<dyn Iterator<Item = Result<Arrival, TraceError>>>;

impl Simulate {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if let Some(file) = &self.scenario {
            return scenario::run(file, self.seed, self.format);
        }
        let (limits, notes) = self.limits()?;
        let (arrivals, span) = self.arrivals()?;
        let out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
        let mut simulations = self.simulations(&limits)?;
        if self.format == OutputFormat::Jsonl {
            let simulation = simulations.remove(0);
            write_decisions(&simulation, arrivals, out)?;
            self.warn(simulation.evictions());
            return Ok(());
        }
        let report = compare_simulations(simulations.into_iter(), arrivals, span)?;
        self.print(&report, &notes, out).map_err(Failure::output)?;
        self.warn(report.evictions());
        Ok(())
    }

    fn rate(&self) -> Rate {
        self.rate.expect("there is a limit if there is no scenario")
    }

    fn simulations(&self, limits: &[Limit]) -> Result<Vec<Simulation>, Failure> {
        let Some(store) = &self.store else {
            let in_memory = |limit: &Limit| Simulation::new(limit.clone(), self.keys_max as usize);
            return Ok(limits.iter().map(in_memory).collect());
        };
        let remote = RemoteDecider::open(store)?;
        let remotely =
            |limit: &Limit| Simulation::with_decider(limit.clone(), Box::new(remote.clone()));
        Ok(limits.iter().map(remotely).collect())
    }

    fn limits(&self) -> Result<(Vec<Limit>, Vec<String>), Failure> {
        let algorithm = match self.algorithm {
            Some(AlgorithmChoice::All) => return self.all_limits(),
            Some(AlgorithmChoice::One(algorithm)) => algorithm,
            None => Algorithm::default_for(&self.rate()),
        };
        let limit = Limit::new(self.rate(), algorithm)?;
        let limit = if self.count_rejected { limit.count_rejected()? } else { limit };
        Ok((vec![limit], Vec::new()))
    }

    fn all_limits(&self) -> Result<(Vec<Limit>, Vec<String>), Failure> {
        if self.count_rejected {
            return Err(Failure::input("--count-rejected requires --algorithm sliding_log"));
        }
        if self.format == OutputFormat::Jsonl {
            return Err(Failure::input(
                "--format jsonl prints the decisions of one algorithm; use one instead of all",
            ));
        }
        let AllAlgorithms { limits, notes } = AllAlgorithms::new(self.rate())?;
        Ok((limits, notes))
    }

    fn arrivals(&self) -> Result<(Arrivals, Option<Range<Micros>>), Failure> {
        if self.trace.is_some() {
            return Ok((Box::new(Trace::new(self.open()?)), None));
        }
        let duration = self.duration.unwrap_or(self.rate().period() * PERIODS);
        let traffic = Traffic::new(self.traffic, self.rate(), duration);
        let traffic = traffic.with_keys(self.keys).with_seed(self.seed.unwrap_or(1));
        let traffic = match self.offered()? {
            Some(rate) => traffic.with_rate(rate),
            None => traffic,
        };
        let traffic = traffic.with_start(self.start.unwrap_or_default());
        Ok((Box::new(traffic.arrivals().map(Ok)), Some(traffic.span())))
    }

    fn offered(&self) -> Result<Option<Rate>, Failure> {
        match self.offered {
            Some(_) if self.traffic == Pattern::Boundary => Err(Failure::input(
                "--rate does not apply to boundary traffic, which offers the limit itself; use another --traffic",
            )),
            Some(rate) if rate.burst().is_some() => {
                Err(Failure::input("--rate has no burst; use --traffic burst"))
            }
            offered => Ok(offered),
        }
    }

    fn open(&self) -> Result<Box<dyn Read>, Failure> {
        let Some(path) = self.trace.as_ref().filter(|path| path.as_os_str() != "-") else {
            return Ok(Box::new(io::stdin().lock()));
        };
        let file = File::open(path).map_err(|error| {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            let error = OpenTraceError { path: path.clone(), source: error };
            if is_missing { Failure::input(error) } else { Failure::io(error) }
        })?;
        Ok(Box::new(file))
    }

    fn print(&self, report: &Report, notes: &[String], mut out: impl Write) -> io::Result<()> {
        match self.format {
            OutputFormat::Table => {
                writeln!(out, "{}", self.title(report))?;
                notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
                write!(out, "\n{}", report.to_text(terminal::text_options()))?;
            }
            OutputFormat::Json | OutputFormat::Jsonl => writeln!(out, "{}", report.to_json())?,
            OutputFormat::Html => write!(out, "{}", self.document(report, notes).to_html())?,
            OutputFormat::Svg => write!(out, "{}", self.document(report, notes).to_svg())?,
            OutputFormat::Md => write!(out, "{}", self.document(report, notes).to_markdown())?,
        }
        out.flush()
    }

    fn document(&self, report: &Report, notes: &[String]) -> Document {
        let document = report.to_document(&self.title(report)).command(command_line());
        notes.iter().fold(document, Document::note)
    }

    fn title(&self, report: &Report) -> String {
        let limit = match report.runs() {
            [run] => run.limit().to_string(),
            _ => format!("{} with every algorithm", self.rate()),
        };
        let offered = report.runs().first().map_or(0, |run| run.summary().offered());
        let source = match &self.trace {
            Some(path) if path.as_os_str() == "-" => "a trace from standard input".to_string(),
            Some(path) => format!("trace {}", path.display()),
            None => format!("{} traffic", self.traffic.name()),
        };
        format!("{limit}: {source}, {offered} requests in {}", span_text(report.span_us()))
    }

    fn warn(&self, evictions: u64) {
        if evictions > 0 {
            // A warning that cannot be written is ignored.
            let _ = writeln!(
                io::stderr(),
                "warning: {evictions} keys were evicted from memory, so results may be inexact; raise --keys-max (now {})",
                self.keys_max
            );
        }
    }
}
