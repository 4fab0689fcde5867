//! The `ratekeeper` command, as a library: for the program, and for fuzzers of its listeners.
#![forbid(unsafe_code)]

mod admin;
mod admin_client;
mod body;
mod check;
mod choices;
mod command_line;
mod console;
mod explain;
mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gateway;
mod listener;
mod log;
mod metrics;
mod plan;
mod policy_input;
mod refusals;
mod reload;
mod remote;
mod replay;
mod scenario;
mod schema;
mod serve;
mod simulate;
mod style;
mod terminal;
mod tokens;
mod top;
mod trace;
mod why;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use failure::Failure;

/// Ratekeeper is an exact rate limiter: it decides whether a request may proceed now, in integer
/// arithmetic that gives the same decision everywhere.
///
/// A limit is a rate such as "100/minute" or "5/s burst 10", enforced by one of five algorithms.
#[derive(Parser)]
#[command(name = "ratekeeper", version, arg_required_else_help = true, max_term_width = 100)]
struct Ratekeeper {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<serve::Serve>),
    Gateway(Box<gateway::Gateway>),
    Check(check::Check),
    Explain(explain::Explain),
    /// Print the JSON Schema of policy files, for editors
    Schema,
    Simulate(simulate::Simulate),
    Why(why::Why),
    Replay(replay::Replay),
    Plan(Box<plan::Plan>),
    /// Print a completion script for your shell
    ///
    /// For bash: source <(ratekeeper completions bash)
    #[command(verbatim_doc_comment)]
    Completions {
        /// The shell to complete in
        shell: Shell,
    },
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    if let Some(error) = choices::negative_rate(std::env::args_os()) {
        return Failure::input(error).report();
    }
    let done = match Ratekeeper::parse().command {
        Command::Serve(command) => command.run(),
        Command::Gateway(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Schema => schema::run(),
        Command::Simulate(command) => command.run(),
        Command::Why(command) => command.run(),
        Command::Replay(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Completions { shell } => completions(shell),
    };
    done.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
}

fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Ratekeeper::command(), "ratekeeper", &mut script);
    std::io::stdout().write_all(&script).map_err(Failure::output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Ratekeeper::command().debug_assert();
    }
}
