//! `ratekeeper simulate --scenario`: runs a scenario from a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use ratekeeper::files::{POLICY_BYTES_MAX, read_text};
use ratekeeper_lab::scenario::{Scenario, ScenarioResults};
use ratekeeper_lab::{Arrival, Trace};

use crate::command_line::command_line;
use crate::failure::Failure;
use crate::simulate::OutputFormat;
use crate::terminal;

/// The most arrivals of a trace.
const ARRIVALS_MAX: usize = 10_000_000;

/// Why a scenario cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the scenario {file}")]
struct ReadScenarioError {
    file: String,
    source: ratekeeper::files::ReadError,
}

/// Runs a scenario, with another seed if one is given.
pub(crate) fn run(path: &Path, seed: Option<u64>, format: OutputFormat) -> Result<(), Failure> {
    if format == OutputFormat::Jsonl {
        let why = "--format jsonl prints the decisions of one limit; use json for a scenario";
        return Err(Failure::input(why));
    }
    let file = path.display().to_string();
    let text = read_text(path, POLICY_BYTES_MAX)
        .map_err(|source| Failure::input(ReadScenarioError { file: file.clone(), source }))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let scenario = Scenario::parse(&file, &text, &|name| read_trace(&folder.join(name)));
    let scenario = scenario.map_err(Failure::input)?;
    let scenario = match seed {
        Some(seed) => scenario.with_seed(seed),
        None => scenario,
    };
    let results = scenario.run();
    if results.dropped() > 0 {
        // A warning that cannot be written is ignored.
        let _ = writeln!(
            io::stderr(),
            "warning: {} requests were left out, because too many were under way",
            results.dropped()
        );
    }
    print(&results, &file, &text, format).map_err(Failure::output)
}

/// Reads a trace, which is relative to the folder of the scenario.
fn read_trace(path: &Path) -> Result<Vec<Arrival>, String> {
    let file =
        File::open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    let arrivals: Result<Vec<_>, _> = Trace::new(file).take(ARRIVALS_MAX + 1).collect();
    match arrivals {
        Ok(arrivals) if arrivals.len() > ARRIVALS_MAX => {
            Err(format!("{} has more than {ARRIVALS_MAX} arrivals", path.display()))
        }
        Ok(arrivals) => Ok(arrivals),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn print(
    results: &ScenarioResults,
    file: &str,
    text: &str,
    format: OutputFormat,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let document = || results.to_document().command(command_line()).source(file, text);
    match format {
        OutputFormat::Table => write!(out, "{}", results.to_text(terminal::text_options()))?,
        OutputFormat::Json | OutputFormat::Jsonl => writeln!(out, "{}", results.to_json())?,
        OutputFormat::Html => write!(out, "{}", document().to_html())?,
        OutputFormat::Svg => write!(out, "{}", document().to_svg())?,
        OutputFormat::Md => write!(out, "{}", document().to_markdown())?,
    }
    out.flush()
}
