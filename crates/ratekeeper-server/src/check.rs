//! `ratekeeper check`: validates policy files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use ratekeeper::policy::Problem;
use ratekeeper::{Policy, PolicyErrors, RedisUrlError};
use serde_json::{Value as Json, json};

use crate::choices::Format;
use crate::failure::Failure;
use crate::policy_input;

/// Validate policy files: print all errors at once, each with its line and column
#[derive(Args)]
#[command(after_help = "Exit codes: 0 all files are valid, 2 some are not.")]
pub(crate) struct Check {
    /// The policy files; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Check {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let checked: Vec<_> = self.files.iter().map(|file| CheckedFile::new(file)).collect();
        let is_valid = checked.iter().all(CheckedFile::is_valid);
        match self.format {
            Format::Text => checked.iter().try_for_each(CheckedFile::print),
            Format::Json => {
                let files: Vec<_> = checked.iter().map(CheckedFile::to_json).collect();
                let all = json!({ "ok": is_valid, "files": files });
                writeln!(io::stdout(), "{all:#}")
            }
        }
        .map_err(Failure::output)?;
        if is_valid { Ok(()) } else { Err(Failure::Reported) }
    }
}

/// A policy file: the policy and the address of its store, or what is wrong.
struct CheckedFile {
    file: String,
    policy: Result<(Policy, Result<String, RedisUrlError>), PolicyErrors>,
}

impl CheckedFile {
    fn new(path: &Path) -> Self {
        let policy = policy_input::read(path).map(|policy| {
            let address = policy_input::address(policy.store());
            (policy, address)
        });
        let file = match &policy {
            Err(errors) => errors.file().to_string(),
            Ok(_) if path.as_os_str() == "-" => "standard input".into(),
            Ok(_) => path.display().to_string(),
        };
        Self { file, policy }
    }

    fn is_valid(&self) -> bool {
        matches!(&self.policy, Ok((_, Ok(_))))
    }

    fn print(&self) -> io::Result<()> {
        let (policy, address) = match &self.policy {
            Ok(policy) => policy,
            Err(errors) => return writeln!(io::stderr(), "{errors}\n"),
        };
        for warning in policy.warnings() {
            let (line, column, message) = (warning.line(), warning.column(), warning.message());
            writeln!(io::stderr(), "{}:{line}:{column}: warning: {message}", self.file)?;
        }
        match address {
            Err(error) => writeln!(io::stderr(), "{}: store: {error}", self.file),
            Ok(address) => {
                let limits = counted(policy.limits().len(), "limit", "limits");
                let identities = counted(policy.identities().count(), "identity", "identities");
                let file = &self.file;
                writeln!(io::stdout(), "{file}: ok, {limits}, {identities}, store {address}")
            }
        }
    }

    fn to_json(&self) -> Json {
        let problem = |problem: &Problem| {
            json!({
                "file": self.file,
                "line": problem.line(),
                "column": problem.column(),
                "text": problem.text(),
                "message": problem.message(),
            })
        };
        match &self.policy {
            Err(errors) => {
                let errors: Vec<_> = errors.problems().iter().map(problem).collect();
                json!({ "file": self.file, "ok": false, "errors": errors })
            }
            Ok((_, Err(error))) => {
                let message = format!("store: {error}");
                let error = json!({ "file": self.file, "line": 0, "column": 0, "text": "", "message": message });
                json!({ "file": self.file, "ok": false, "errors": [error] })
            }
            Ok((policy, Ok(address))) => json!({
                "file": self.file,
                "ok": true,
                "limits": policy.limits().len(),
                "identities": policy.identities().count(),
                "store": address,
                "warnings": policy.warnings().iter().map(problem).collect::<Vec<_>>(),
            }),
        }
    }
}

fn counted(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}
