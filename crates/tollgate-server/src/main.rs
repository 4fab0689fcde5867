//! The `tollgate` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_server::run()
}
