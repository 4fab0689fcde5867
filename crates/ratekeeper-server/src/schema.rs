//! `ratekeeper schema`: prints the JSON Schema of policy files.

use std::io::Write;

use ratekeeper::Policy;

use crate::failure::Failure;

pub(crate) fn run() -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{}", Policy::json_schema()).map_err(Failure::output)
}
