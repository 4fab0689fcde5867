//! The `ratekeeper` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ratekeeper_server::run()
}
